"""What verl is told follows from our settings alone, and what it could not follow is refused."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from humanlm.core.basics import ConfigError
from humanlm.engines.settings import DEFAULTS, Job, overrides
from humanlm.training.run import check_settings, read_settings

ROOT, HERE = Path(__file__).resolve().parents[2], Path(__file__).resolve().parent
ON_CPU = ["--run.engine", "verl", "--verl.device", "cpu"]


def settings(*more: str, recipe: str = "classmate"):
    return read_settings(["--run.recipe", recipe, *ON_CPU, *more])[1]


def told(s, job=Job("MODEL", "ROWS", "OUT", "stage", 48, 10)) -> dict[str, str]:
    return dict(line.split("=", 1) for line in overrides(s, job))


@pytest.mark.parametrize(
    "name, argv",
    {
        "classmate-cpu": ["--config", "configs/classmate-mini.yaml", *ON_CPU],
        "humanlm-8-gpus": [
            "--config",
            "configs/humanlm-mini.yaml",
            "--run.token_budget",
            "null",
            "--run.engine",
            "verl",
            "--verl.gpus",
            "8",
            "--verl.nodes",
            "1",
            "--model.dtype",
            "bfloat16",
            "--trainer.beta",
            "0.001",
            "--trainer.use_bias_correction_kl",
            "false",
            "--verl.overrides",
            '["trainer.nnodes=2"]',
        ],
    }.items(),
)
def test_what_verl_is_told_is_as_committed(name, argv, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = (
        "\n".join(overrides(read_settings(argv)[1], Job("MODEL", "ROWS", "OUT", "stage", 48, 10)))
        + "\n"
    )
    assert found == (HERE / f"{name}.overrides").read_text(), "write the file anew if that is meant"


def test_options_that_are_not_given_are_those_of_the_other_engine():
    from humanlm.training.trainer import trainer_args

    other = trainer_args({}, "x", 2, 2, 6, 8)
    assert {name: getattr(other, name) for name in DEFAULTS} == DEFAULTS


QUOTED = {
    "/a b/é(,)='x'#&!~;{[]}": "\"/a b/é(,)='x'#&!~;{[]}\"",
    "null": '"null"',
    "True": '"True"',
    "12": '"12"',
    "": '""',
}


def test_names_of_folders_are_told_in_hydras_quotes():
    found = {
        name: told(settings(), Job(name, name, "OUT", "stage", 48, 10))[
            "actor_rollout_ref.model.path"
        ]
        for name in QUOTED
    }
    assert (
        found == QUOTED
        and told(settings(), Job("/data/a-b/x.1_c", "ROWS", "OUT", "stage", 48, 10))[
            "actor_rollout_ref.model.path"
        ]
        == "/data/a-b/x.1_c"
    )
    assert (
        told(settings(), Job("M", "R", "OUT", "stage", 48, 10, critic=True))["critic.optim.lr"]
        == "${actor_rollout_ref.actor.optim.lr}"
    ), "words that are Hydra's own are none"


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--classmate.estimator", "gae", "--model.lora_rank", "8"], "no critic"),
        (["--trainer.beta", "0.001"], "use_bias_correction_kl false"),
        (["--trainer.top_entropy_quantile", "0.5"], "engine verl does not know that"),
        (["--trainer.optim", "sgd"], "AdamW in 32 bits"),
    ],
)
def test_what_verl_cannot_follow_is_refused_before_anything_is_read(argv, words):
    recipe, s = read_settings(["--run.recipe", "classmate", *ON_CPU, "--dry-run", *argv])
    with pytest.raises(ConfigError, match=words):
        check_settings(recipe, s)


def test_a_missing_verl_is_said_in_one_sentence(tmp_path):
    pytest.importorskip("trl")
    if find_spec("verl"):
        pytest.skip("verl is installed here")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "humanlm.train",
            "--run.recipe",
            "classmate",
            "--classmate.models",
            "[initial]",
            *ON_CPU,
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (
        done.returncode == 2
        and "constraints-verl.txt" in done.stderr
        and not list(tmp_path.iterdir())
    )


def test_a_command_shows_what_verl_is_told_without_verl_and_without_torch():
    code = (
        "import sys; from humanlm.train import main\ntry: main(sys.argv[1:])\nexcept "
        "SystemExit: pass\nprint([n for n in ('torch', 'verl', 'ray') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--run.recipe", "classmate", *ON_CPU, "--dry-run"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert "algorithm.adv_estimator=humanlm\n" in done.stdout and done.stdout.rstrip().endswith(
        "[]"
    )


def test_published_settings_reach_verl_in_its_own_words(monkeypatch):
    monkeypatch.chdir(ROOT)
    _, s = read_settings(
        [
            "--config",
            "configs/paper/humanlm.yaml",
            "--data.path",
            ".",
            "--run.engine",
            "verl",
            "--verl.gpus",
            "8",
            "--trainer.beta",
            "0",
        ]
    )
    found = told(s)
    assert (
        found["actor_rollout_ref.actor.clip_ratio_c"] == "3.0"
        and found["actor_rollout_ref.rollout.name"] == "vllm"
    )
    assert (
        told(settings("--trainer.delta", "null"))["actor_rollout_ref.actor.clip_ratio_c"]
        == "1000000000.0"
    )
    assert (
        told(settings("--trainer.lr_scheduler_type", "cosine", "--trainer.warmup_steps", "0.25"))[
            "actor_rollout_ref.actor.optim.lr_warmup_steps"
        ]
        == "3"
    )
