"Runs are found where the command line or its file says that they are kept."

import pytest

from humanlm.core.basics import atomic_write
from humanlm.core.grammar import cut_line
from humanlm.eval import _recipe_of, main
from humanlm.evaluation.measured import Measurement, load_results, save_measured

RECIPE = "humanlm.training.recipe:Recipe"


@pytest.fixture
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    units = [Measurement(f"u{i}", f"c{i // 2}", {"right": {"answer": i % 2}}) for i in range(4)]
    for name in ("one", "two"):
        atomic_write(f"kept/{name}/config.yaml", f"run: {{name: {name}, recipe: '{RECIPE}'}}\n")
        save_measured(f"kept/{name}/measured/base.jsonl", units)
    atomic_write("kept.yaml", f"run: {{out: kept, recipe: '{RECIPE}'}}\n")


@pytest.mark.parametrize(
    "argv",
    [
        ["one", "two", "--run.out", "kept"],
        ["--run.out=kept", "one:base"],
        ["one", "--run.out", "nowhere", "--run.out", "kept"],
        ["one", "--config", "kept.yaml"],
        ["kept/one:base", "kept/two:base", "--run.out", "elsewhere"],
    ],
)
def test_eval_finds_a_run_where_it_is_kept(there, argv):
    assert type(_recipe_of(argv)).__name__ == "Recipe"
    assert main([*argv, "--dry-run"]) == 0


def test_eval_leaves_its_folder_beside_the_runs(there, tmp_path):
    assert main(["one", "two", "--run.out", "kept"]) == 0
    assert load_results(tmp_path / "kept/one-eval/results.json").rows


def test_a_run_that_goes_on_reads_its_settings_where_it_is_kept(there):
    assert cut_line(["--resume", "one", "--run.out", "kept"]).files == ["kept/one/config.yaml"]
    assert cut_line(["--resume=one", "--run.out=kept"]).files == ["kept/one/config.yaml"]
    assert cut_line(["--resume", "one"]).files == []
