"""What an engine cannot do is said at the start, all at once, before anything is written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from humanlm.core.basics import ConfigError
from humanlm.engines.settings import VerlConfig
from humanlm.training.run import read_settings
from humanlm.training.stages import train_or_plan

ROOT = Path(__file__).resolve().parents[2]
PAPER = [
    "--config",
    str(ROOT / "configs/paper/humanlm.yaml"),
    "--run.engine",
    "verl",
    "--verl.gpus",
    "8",
    "--dry-run",
]


def refused(*argv: str) -> list[str]:
    with pytest.raises(ConfigError) as e:
        train_or_plan(*read_settings(argv))
    return e.value.problems


def test_all_that_an_engine_refuses_is_said_at_once():
    problems = refused(*PAPER, "--trainer.optim", "sgd")
    assert [problem.split()[0] for problem in problems] == ["trainer.optim", "trainer.beta:"]


@pytest.mark.parametrize(
    "recipe, more",
    [
        ("sdpo", ["--sft.lesson_steps", "0"]),
        ("gyms", ["--sft.lesson_steps", "0"]),
        ("classmate", ["--sft.lesson_steps", "0", "--classmate.models", "[initial]"]),
    ],
)
def test_recipes_know_whether_they_teach(recipe, more):
    given = ["--run.recipe", recipe, "--dry-run"]
    assert [
        own.teaches(s) for own, s in (read_settings([*given, *argv]) for argv in ([], more))
    ] == [True, False]


def test_who_shall_write_must_be_installed(monkeypatch):
    from humanlm.engines import verl

    monkeypatch.setattr(verl, "WANTED", {})  # as if verl were installed
    monkeypatch.setattr(verl, "find_spec", lambda name: None if name == "vllm" else object())
    with pytest.raises(ConfigError, match="verl.device cuda needs vllm"):
        verl._check_packages(VerlConfig())
    verl._check_packages(VerlConfig(device="cpu", rollout="hf"))


def test_the_container_of_verl_installs_what_is_pinned():
    file, pins = (
        (ROOT / name).read_text() for name in ("docker/verl.Dockerfile", "constraints-verl.txt")
    )
    assert "-r constraints-verl.txt" in file and "torch==2.13.0" in file
    assert {line.partition("==")[2] for line in pins.splitlines() if line.startswith("verl")} == {
        part.partition("==")[2].rstrip("'")
        for part in file.split()
        if part.startswith("'verl[vllm]==")
    }


def test_a_run_that_is_refused_leaves_no_folder_of_runs(tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "ANTHROPIC_API_KEY"} | {
        "PYTHONPATH": str(ROOT)
    }
    done = subprocess.run(
        [sys.executable, "-m", "humanlm.train", "--judge.model", "anthropic/claude-haiku-4-5"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert (
        done.returncode == 2
        and "Set ANTHROPIC_API_KEY" in done.stderr
        and not list(tmp_path.iterdir())
    )
