"""What an engine cannot do is said at the start, all at once, before anything is written."""

from pathlib import Path

import pytest

from humanlm.core.basics import ConfigError
from humanlm.engines.settings import VerlConfig
from humanlm.training.run import check_settings, read_settings

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
        check_settings(*read_settings(argv))
    return e.value.problems


def test_all_that_an_engine_refuses_is_said_at_once():
    problems = refused(*PAPER, "--trainer.optim", "sgd")
    assert [problem.split()[0] for problem in problems] == ["trainer.optim", "trainer.beta:"]


def test_who_shall_write_must_be_installed(monkeypatch):
    from humanlm.engines import verl

    monkeypatch.setattr(verl, "WANTED", {})  # as if verl were installed
    monkeypatch.setattr(verl, "find_spec", lambda name: None if name == "vllm" else object())
    with pytest.raises(ConfigError, match="verl.device cuda needs vllm"):
        verl._check_packages(VerlConfig())
    verl._check_packages(VerlConfig(device="cpu"))
