"""One command for every system: a recipe outside the package trains, resumes and reports."""

import json
import shutil
from pathlib import Path

import pytest
import warm

from humanlm.core.basics import read_jsonl
from humanlm.evaluation.measured import load_measured, load_results
from humanlm.training.run import fit

ROOT = Path(__file__).resolve().parents[2]
OWN = ROOT / "nbs" / "howto" / "my_recipe.py"
TINY = [
    "--model.hidden",
    "32",
    "--model.heads",
    "2",
    "--model.kv_heads",
    "2",
    "--model.mlp",
    "64",
    "--model.vocab",
    "330",
]
STEPS = [
    "--rollout.num_prompts",
    "4",
    "--rollout.group_size",
    "4",
    "--trainer.max_steps",
    "6",
    "--trainer.save_steps",
    "2",
]


def humanlm(folder: Path, *argv: str):
    return warm.run("-m", "humanlm.train", *argv, cwd=folder)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    "The recipe of the how-to, trained by the command from a folder outside the package"
    folder = tmp_path_factory.mktemp("own")
    shutil.copy(OWN, folder)
    done = humanlm(folder, "--run.recipe", "my_recipe:Animals", "--run.name", "zoo", *TINY, *STEPS)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_a_recipe_outside_the_package_trains_and_is_evaluated(own):
    folder, said = own
    run = folder / "runs" / "zoo"
    assert [p.name for p in sorted((run / "models").iterdir())] == ["animals", "base"]
    assert {row["stage"] for row in read_jsonl(run / "metrics.jsonl")} == {"animals"}
    assert len(load_measured(run / "measured" / "animals.jsonl")) == 4 and "animals" in said
    rows = load_results(run / "results.json").rows
    assert [(r.model, r.metric, r.n) for r in rows] == [
        ("base", "animals", 4),
        ("animals", "animals", 4),
    ]


def test_a_recipe_outside_the_package_gets_a_report(own):
    page = (own[0] / "runs" / "zoo" / "report.html").read_text("utf-8")
    assert "animals" in page and "<script" not in page


def unfinished(folder, name):
    "A copy of the run without its model and what follows from that"
    again = folder / "runs" / name
    shutil.copytree(folder / "runs" / "zoo", again)
    for path in (again / "models" / "animals", again / "measured"):
        shutil.rmtree(path)
    (again / "results.json").unlink()
    record = json.loads((again / "run.json").read_text()) | {"state": "started"}
    (again / "run.json").write_text(json.dumps(record))
    return again / "checkpoints" / "animals"


def assert_same_weights_after_a_resume(folder, name):
    done = humanlm(
        folder, "--run.recipe", "my_recipe:Animals", "--run.name", name, *TINY, *STEPS, "--resume"
    )
    assert done.returncode == 0, done.stderr
    weights = [
        (folder / "runs" / run / "models" / "animals" / "model.safetensors").read_bytes()
        for run in ("zoo", name)
    ]
    assert weights[0] == weights[1]
    return done.stdout


def test_a_killed_stage_of_an_own_recipe_goes_on_and_ends_with_the_same_weights(own):
    shutil.rmtree(unfinished(own[0], "again") / "checkpoint-6")
    assert_same_weights_after_a_resume(own[0], "again")


TINY_PEOPLE = {
    "data": dict(max_train=40, max_test=4),
    "world": dict(users=24, replies_per_user=8),
    "run": {"name": "r", "methods": ["response-only"]},
    "model": dict(hidden=32, heads=2, kv_heads=2, mlp=64, vocab=700),
    "sft": dict(lesson_steps=2, polite_steps=1, reply_steps=2, batch=4),
    "hierarchy": dict(state_tokens=12, response_tokens=24),
    "rollout": dict(num_prompts=2, group_size=2),
    "judge": {"model": "rule"},
    "trainer": dict(max_steps=1),
}


def test_a_function_is_taken_as_judge_and_as_reward(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked, rewarded = [], []

    def brief(request):
        return asked.append(request) or dict.fromkeys(request.candidates, 0.5)

    def short(trajectories):
        return rewarded.append(trajectories) or [1.0 for _ in trajectories]

    folder = fit(TINY_PEOPLE, judge=brief, reward=short)
    assert len(rewarded) == 1 and len(rewarded[0]) == 4
    assert json.loads((folder / "run.json").read_text())["judge"] == "brief"
