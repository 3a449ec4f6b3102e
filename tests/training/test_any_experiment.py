"""Experiments of any recipe: what runs leave behind becomes one outcome, and no system is named."""

import json
import math

import pytest

from humanlm.core.basics import write_jsonl
from humanlm.core.runs import save_record
from humanlm.evaluation.measured import Measurement, load_results, save_measured
from humanlm.training.experiment import (
    Study,
    _ExperimentConfig,
    _trials_of,
    outcome,
)
from humanlm.training.recipe import Recipe, Stage


class Plain(Recipe):
    "A recipe that says nothing about experiments"

    def stages(self, run):
        return [Stage("ours", "base", print)]


@pytest.fixture
def finished(tmp_path):
    "Two finished runs of a plain recipe, one per seed, whose model gains 0.4 on every unit"
    from humanlm.core.grammar import parse
    from humanlm.training.run import COMMON

    groups = COMMON | {"experiment": _ExperimentConfig, "variants": dict}
    settings = parse(
        groups, ["--run.name", "e", "--run.out", str(tmp_path), "--experiment.seeds", "[0,1]"]
    )
    trials = _trials_of(Plain(), settings)
    for trial in trials:
        for model, gain in (("base", 0.0), ("ours", 0.4), ("chance", 0.1)):
            scores = [
                {"score": {"a": 0.1 * i + gain + 0.01 * trial.seed, "b": math.nan if i else gain}}
                for i in range(4)
            ]
            found = [Measurement(f"u{i}", f"c{i // 2}", values) for i, values in enumerate(scores)]
            save_measured(trial.folder / "measured" / f"{model}.jsonl", found)
        write_jsonl(
            trial.folder / "metrics.jsonl",
            [
                {"stage": "ours", "step": n, "tokens/generated": 50, "reward/a": n / 4}
                for n in (1, 2)
            ],
        )
        save_record(trial.folder, {"state": "finished", "seconds": {"ours": 2.0}, "commit": "abc"})
    return settings, trials


def test_a_recipe_without_a_study_gets_means_differences_and_curves(finished, tmp_path):
    settings, trials = finished
    found = outcome(settings, trials, Study(Plain()), ["--config", "x.yaml"])
    (tmp_path / "o.json").write_text(json.dumps(found))
    read = load_results(tmp_path / "o.json")
    (pair,) = [p for p in read.paired if p.level == "a"]
    assert (
        (pair.a, pair.b, pair.n) == ("ours", "base", 8)
        and math.isclose(pair.diff, 0.4)
        and pair.low == pair.high
    )
    assert [(r.n, r.mean) for r in read.rows if (r.model, r.level) == ("ours", "b")] == [
        (2, 0.4)
    ]  # missing scores stay missing
    assert read.notes["references"] == ["chance"] and read.notes["arms"] == ["base", "ours"]
    assert [(s["tokens"], s["seconds"]) for s in read.notes["spent"] if s["arm"] == "ours"] == [
        (100, 2.0)
    ] * 2
    assert (
        read.notes["curves"][0]["reward"] == [0.25, 0.5]
        and read.notes["command"] == "python -m humanlm.experiment --config x.yaml"
    )


def test_a_plan_names_the_stages_of_an_own_recipe(tmp_path, monkeypatch, capsys):
    from humanlm.experiment import main

    monkeypatch.chdir(tmp_path)
    assert main(["--run.recipe", "tests.training.test_any_experiment:Plain", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert (
        "3 runs, 3 trained models" in shown
        and "stages              ours" in shown
        and "runs/run/summary.json" in shown
    )
    assert "100 steps of 8 prompts x 8 completions" in shown
