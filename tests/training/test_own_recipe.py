"""One command for every system: a recipe outside the package trains, evaluates, resumes and reports; train names no system."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import warm
from halves import stop_in_the_first
from safetensors.torch import load_file

from humanlm.clients.ledger import Ledger
from humanlm.clients.protocol import Usage
from humanlm.core.basics import ConfigError, DataError, HumanLMError, read_jsonl
from humanlm.evaluation.measured import Measurement, load_measured, load_results
from humanlm.methods.functions import TextReward, ask_row, group_advantage
from humanlm.methods.method import Method
from humanlm.methods.rollouts import single_turn
from humanlm.training.recipe import Recipe, Stage, Work, find_recipe
from humanlm.training.run import read_settings
from humanlm.training.stages import fit, learn

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
WORDS = ("level", "persona", "hierarchy", "judge", "person", "stance", "response")


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


def test_train_names_no_system():
    for path in ("train.py", "training/run.py", "training/recipe.py"):
        source = (ROOT / "humanlm" / path).read_text("utf-8")
        assert re.findall(rf"\b(?:{'|'.join(WORDS)})s?\b", source) == [], path


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


def test_a_recipe_outside_the_package_logs_nothing_of_another_system(own):
    logged = {key for row in read_jsonl(own[0] / "runs" / "zoo" / "metrics.jsonl") for key in row}
    assert not [key for key in logged if key.startswith(("parse/", "judge/", "text/"))]


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


@pytest.mark.parametrize(
    "at, share",
    [(0, 0.0), (6, 0.5), (-1, 0.9)],
    ids=["its first byte", "on the way", "its last bytes"],
)
def test_a_stage_that_was_killed_in_its_first_checkpoint_starts_again_and_ends_with_the_same_weights(
    own, at, share
):
    name = f"cut{at}"
    first = stop_in_the_first(unfinished(own[0], name), at, share)
    assert "the stage starts again" in assert_same_weights_after_a_resume(own[0], name)
    steps = [
        [
            (row["step"], row.get("loss"))
            for row in read_jsonl(own[0] / "runs" / run / "metrics.jsonl")
        ]
        for run in ("zoo", name)
    ]
    assert steps[0] == steps[1] and first.with_name("broken-checkpoint-2").is_dir()


def test_the_plan_of_an_own_recipe_needs_nothing_heavy(own):
    done = humanlm(own[0], "--run.recipe", "my_recipe:Animals", "--dry-run")
    assert done.returncode == 0 and "judged by counting animals" in done.stdout


@pytest.mark.parametrize(
    "name, said",
    [
        ("humanml", "Did you mean 'humanlm'"),
        ("nothere:X", "there is no module 'nothere'"),
        ("my_recipe:Animal", "Did you mean 'Animals'"),
    ],
)
def test_a_recipe_that_is_not_there_is_named(own, name, said):
    done = humanlm(own[0], "--run.recipe", name, "--dry-run")
    assert done.returncode == 2 and said in done.stderr


class Spender(Recipe):
    "Trains nothing; spends"

    def load(self, s, **given):
        self.ledger = Ledger(budget=1.0)
        return Work("spender", {"": self.ledger})

    def vocabulary(self, run):
        return ["some words to learn from"] * 9, []

    def stages(self, run):
        return [Stage("paid", "base", self.pay)]

    def pay(self, run, stage, model, tokenizer):
        self.ledger.record("tests", "model", Usage(calls=1, cost=0.25))
        if self.stop:
            raise DataError("stopped here")

    def evaluate(self, run, name):
        return [Measurement("u", "c", {"m": {"all": 1.0}})]


def test_what_a_stopped_run_has_spent_counts_after_a_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = Spender()
    groups = {
        "run": {"name": "r", "report": False},
        "model": dict(hidden=32, heads=2, kv_heads=2, mlp=64, vocab=330),
    }
    recipe.stop = True
    with pytest.raises(HumanLMError, match="stopped here"):
        fit(groups, recipe)
    recipe.stop = False
    folder = fit(groups, recipe)
    assert recipe.ledger.total.cost == 0.5
    assert json.loads((folder / "run.json").read_text())["ledger"][0]["cost"] == 0.5


def test_flags_of_a_recipe_are_those_of_its_groups():
    recipe, settings = read_settings(["--run.recipe", "humanlm", "--judge.model", "rule"])
    assert (
        settings.judge.model == "rule"
        and recipe is find_recipe("humanlm")
        and settings.run.methods == ["response-only", "humanlm"]
    )
    with pytest.raises(ConfigError, match="judge"):
        read_settings(["--run.recipe", f"{__name__}:Spender", "--judge.model", "rule"])


class Judged(Recipe):
    "Measures on the way: the second measurement is the best one"

    def __init__(self):
        self.values = iter((0.2, 0.9, 0.1))

    def load(self, s, **given):
        return Work("measured")

    def vocabulary(self, run):
        return ["some words to learn from"] * 9, []

    def stages(self, run):
        return [Stage("taught", "base", self.train)]

    def train(self, run, stage, model, tokenizer):
        rows = [ask_row(f"question {i}", str(i), 4) for i in range(4)]
        learn(
            run,
            stage,
            model,
            tokenizer,
            Method(
                single_turn(),
                group_advantage([1.0]),
                TextReward(lambda texts: [len(t) for t in texts]),
            ),
            rows,
        )

    def validate(self, run, name, policy):
        return next(self.values)

    def evaluate(self, run, name):
        return [Measurement("u", "c", {"m": {"all": 1.0}})]


def test_the_best_checkpoint_by_the_recipes_measure_becomes_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    groups = {
        "run": {"name": "r", "report": False, "validate": 2},
        "model": dict(hidden=32, heads=2, kv_heads=2, mlp=64, vocab=330),
        "rollout": dict(num_prompts=2, group_size=4),
        "trainer": dict(max_steps=6),
    }
    folder = fit(groups, Judged())

    def weights(path):
        return (path / "model.safetensors").read_bytes()

    steps = {
        step: weights(folder / "checkpoints" / "taught" / f"checkpoint-{step}")
        for step in (2, 4, 6)
    }
    kept = load_file(folder / "models" / "taught" / "model.safetensors")
    found = {
        step: load_file(
            folder / "checkpoints" / "taught" / f"checkpoint-{step}" / "model.safetensors"
        )
        for step in (2, 4, 6)
    }
    assert len(set(steps.values())) == 3
    assert [
        all(torch.equal(kept[name], tensors[name]) for name in kept) for tensors in found.values()
    ] == [False, True, False]


def test_measuring_on_the_way_is_refused_where_the_recipe_cannot(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="this recipe makes none"):
        fit({"run": {"name": "r", "validate": 2}}, Spender())


TINY_PEOPLE = {
    "data": dict(max_train=40, max_test=4),
    "world": dict(users=24, replies_per_user=8),
    "run": {"name": "r", "report": False, "methods": ["response-only"]},
    "model": dict(hidden=32, heads=2, kv_heads=2, mlp=64, vocab=700),
    "sft": dict(lesson_steps=2, polite_steps=1, reply_steps=2, batch=4),
    "hierarchy": dict(state_tokens=12, response_tokens=24),
    "rollout": dict(num_prompts=2, group_size=2),
    "judge": {"model": "rule"},
    "trainer": dict(max_steps=1),
    "eval": dict(bootstrap=20),
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


@pytest.mark.parametrize(
    "flag, said",
    [
        ("--reward.extra=nothere:x", "there is no module 'nothere'"),
        ("--judge.model=json:nope", "json has no 'nope'"),
    ],
)
def test_own_code_that_is_not_there_is_refused_by_the_plan_and_before_a_folder_is_made(
    tmp_path, flag, said
):
    for more in (["--dry-run"], []):
        done = humanlm(tmp_path, "--run.name", "r", flag, *more)
        assert done.returncode == 2 and said in done.stderr and not (tmp_path / "runs").exists()


def test_a_run_remembers_the_recipe_that_was_given_as_an_object(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = Spender()
    recipe.stop = False
    folder = fit(
        {
            "run": {"name": "r", "report": False},
            "model": dict(hidden=32, heads=2, kv_heads=2, mlp=64, vocab=330),
        },
        recipe,
    )
    assert f"recipe: {__name__}:Spender" in (folder / "config.yaml").read_text()


class Faulty(Recipe):
    "Gives what it is told to give"

    work, listed = Work("faulty"), ()

    def load(self, s, **given):
        return self.work

    def stages(self, run):
        return self.listed

    def evaluate(self, run, name):
        return [Measurement("u", "c", {"m": {"all": 1.0}})]


@pytest.mark.parametrize(
    "own, said",
    [
        ({"work": None}, "load gave None. It must give a Work"),
        ({"listed": ["a"]}, "It must give a list of Stage"),
        (
            {"listed": [Stage("a", "base", print), Stage("a", "base", print)]},
            "two stages or models named 'a'",
        ),
        ({"listed": [Stage("a", "nowhere", print)]}, "start of the stage 'a'"),
        ({}, "learns its tokenizer from texts"),
        ({"groups": {"run": dict}}, "all recipes share"),
    ],
)
def test_faulty_recipes_are_named_with_what_is_expected(tmp_path, monkeypatch, own, said):
    monkeypatch.chdir(tmp_path)
    recipe = type("Faulty", (Faulty,), own)()
    with pytest.raises(ConfigError, match=re.escape(said)):
        fit({"run": {"name": "r", "report": False}}, recipe)


@pytest.mark.parametrize("name", ["json:dumps", "pathlib:Path"])
def test_what_is_no_recipe_is_refused_with_a_sentence(tmp_path, name):
    done = humanlm(tmp_path, "--run.recipe", name, "--dry-run")
    assert done.returncode == 2 and "is no recipe" in done.stderr and "Traceback" not in done.stderr
