"A gym outside the package, the one of the how-to page: it passes the suite and is trained on."

import json
import math
import shutil
from pathlib import Path

import pytest
import warm

from humanlm.core.basics import run_sync
from humanlm.gyms.conformance import gym_problems
from humanlm.gyms.evaluation import load_episodes
from humanlm.gyms.protocol import find_gym

OWN = Path(__file__).resolve().parents[2] / "nbs" / "howto" / "my_gym.py"
TINY = {
    "gyms.tasks": 6,
    "gyms.test_n": 3,
    "gyms.max_turns": 3,
    "gyms.turn_tokens": 12,
    "gyms.max_tokens": 90,
    "gyms.system": "false",
    "sft.lesson_steps": 3,
    "sft.batch": 4,
    "rollout.num_prompts": 2,
    "rollout.group_size": 2,
    "trainer.max_steps": 2,
    "model.hidden": 32,
    "model.heads": 2,
    "model.kv_heads": 2,
    "model.mlp": 64,
    "model.vocab": 420,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bar")
    shutil.copy(OWN, folder)
    return folder


@pytest.fixture
def bar(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    return find_gym("my_gym:gym")


def train(folder, *more):
    return warm.run(
        "-m",
        "humanlm.train",
        "--run.recipe",
        "gyms",
        "--run.name",
        "bar",
        *(f"--{name}={value}" for name, value in TINY.items()),
        *more,
        cwd=folder,
    )


def test_a_gym_of_ones_own_passes_the_suite_and_the_checker(bar):
    assert run_sync(gym_problems(bar)) == []


def test_a_gym_of_ones_own_is_trained_on_and_measured_by_the_command(folder):
    done = train(
        folder,
        '--gyms.train=["my_gym:gym"]',
        '--gyms.held_out=["telepathy"]',
        '--gyms.weights={"my_gym:gym": 2.0}',
    )
    assert done.returncode == 0, done.stderr
    run = folder / "runs" / "bar"
    rows = json.loads((run / "results.json").read_text())["rows"]
    assert {(row["model"], row["level"]) for row in rows if row["metric"] == "score"} >= {
        ("gyms", "bar"),
        ("gyms", "telepathy"),
        ("expert", "bar"),
    }
    episodes = load_episodes(run / "episodes" / "gyms.jsonl")
    assert [e.gym for e in episodes].count("bar") == 3 and all(
        e.stop and not math.isnan(e.score) for e in episodes
    )


@pytest.mark.parametrize(
    "name, said",
    [
        ("my_gim:gym", "there is no module 'my_gim'"),
        ("my_gym:gim", "has no 'gim'"),
    ],
)
def test_a_gym_that_is_not_there_is_named_before_anything_is_made(folder, name, said):
    done = train(folder, "--run.name=wrong", f'--gyms.train=["{name}"]')
    assert (
        done.returncode == 2
        and said in done.stderr
        and "Traceback" not in done.stderr
        and not (folder / "runs" / "wrong").exists()
    )
