"""What an engine or workers cannot do is said at the start: all of it at once, with a next step, and before anything is written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from humanlm.core.basics import ConfigError, DataError, HumanLMError
from humanlm.core.plugins import require_workers
from humanlm.engines.settings import VerlConfig
from humanlm.models.settings import ChatConfig
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


def test_muon_is_no_matter_where_nothing_is_taught():
    assert [problem.partition(":")[0] for problem in refused(*PAPER)] == ["trainer.beta"]


def test_all_that_an_engine_refuses_is_said_at_once():
    found = refused(
        *PAPER, "--sft.reply_steps", "10", "--sft.batch", "44", "--trainer.optim", "sgd"
    )
    assert [problem.split()[0] for problem in found] == [
        "trainer.optim",
        "trainer.beta:",
        "sft.muon_lr",
        "sft.batch",
    ] and "Give --sft.batch 48" in found[-1]


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


@pytest.mark.parametrize("rollout", ["vllm", "sglang"])
def test_who_shall_write_must_be_installed(rollout, monkeypatch):
    from humanlm.engines import verl

    monkeypatch.setattr(verl, "WANTED", {})  # as if verl were installed
    monkeypatch.setattr(
        verl, "find_spec", lambda name: None if name in (rollout, "flash_attn") else object()
    )
    with pytest.raises(
        ConfigError, match=f"verl.device cuda needs {rollout}, which is not installed"
    ):
        verl._check_packages(VerlConfig(rollout=rollout))
    verl._check_packages(VerlConfig(device="cpu", rollout="hf"))


def test_attention_that_is_missing_on_gpus_is_named_with_the_settings_that_do_without(monkeypatch):
    from humanlm.engines import verl

    monkeypatch.setattr(verl, "WANTED", {})
    monkeypatch.setattr(verl, "find_spec", lambda name: None if name == "flash_attn" else object())
    with pytest.raises(ConfigError, match="needs flash-attn.*attn_implementation=sdpa"):
        verl._check_packages(VerlConfig())
    verl._check_packages(
        VerlConfig(overrides=["+actor_rollout_ref.model.override_config.attn_implementation=sdpa"])
    )


@pytest.mark.parametrize(
    "v, said, other",
    [
        (VerlConfig(), "pip install 'verl[vllm]==0.9.1' first", "torch==2.13.0"),
        (VerlConfig(rollout="sglang"), "'verl[sglang]==0.9.1' first", "torch==2.13.0"),
        (
            VerlConfig(device="cpu", rollout="hf"),
            "pip install torch==2.13.0 first, then torch==2.13.0 -r constraints-verl.txt",
            "vllm",
        ),
    ],
)
def test_a_device_has_one_environment_and_one_sentence_about_it(v, said, other, monkeypatch):
    from humanlm.core import plugins
    from humanlm.engines import verl

    monkeypatch.setattr(plugins, "version", {"verl": "0.8.0"}.__getitem__)
    with pytest.raises(
        ConfigError, match=f"verl.device {v.device} needs verl 0.9.x, and 0.8.0 is installed"
    ) as e:
        verl._check_packages(v)
    assert (
        said in str(e.value)
        and other not in str(e.value)
        and "--no-deps humanlm" in str(e.value)
        and len(e.value.problems) == 1
    )


@pytest.mark.parametrize(
    "change, said",
    [
        ({"ray": "2.9.0"}, "needs ray from 2.52 and below 3.0, and 2.9.0 is installed"),
        ({"transformers": "5.23.1"}, "needs transformers from 5.7 and below 5.11, and 5.23.1 is"),
        ({"hydra": None}, "needs hydra, which is not installed"),
        ({"cachetools": None}, "needs cachetools, which"),
        ({"uvicorn": None}, "needs uvicorn, which"),
        ({}, None),
    ],
)
def test_what_verl_would_end_over_behind_the_cold_start_is_asked_before_it(
    change, said, monkeypatch
):
    from humanlm.core import plugins
    from humanlm.engines import settings, verl

    found = {
        "verl": "0.9.1",
        "ray": "2.60.0",
        "tensordict": "0.10.0",
        "transformers": "5.10.4",
        **change,
    }
    for module in (plugins, settings):
        monkeypatch.setattr(module, "version", found.__getitem__)
    monkeypatch.setattr(verl, "find_spec", lambda name: found.get(name, "there"))
    v = VerlConfig(device="cpu", rollout="hf")
    if said is None:
        return verl._check_packages(v)
    with pytest.raises(ConfigError, match=f"{said}.*-r constraints-verl.txt"):
        verl._check_packages(v)


def test_gpus_are_counted_before_verl_waits_for_them(monkeypatch):
    import torch

    from humanlm.engines import verl

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(
        ConfigError, match="verl.gpus is 4, and this machine shows 2. Give --verl.gpus 2"
    ):
        verl._require_gpu(VerlConfig(gpus=4))
    for v in (
        VerlConfig(gpus=2),
        VerlConfig(gpus=4, address="10.0.0.1:6379"),
        VerlConfig(device="cpu", rollout="hf", gpus=4, tensor_parallel=4),
    ):
        verl._require_gpu(v)


def test_a_package_that_verl_misses_is_no_traceback(monkeypatch):
    from humanlm.engines.cluster import composed

    monkeypatch.setitem(sys.modules, "hydra", None)
    with pytest.raises(
        ConfigError, match="verl cannot be imported: .*pip install -r constraints-verl.txt"
    ):
        composed([])


@pytest.mark.parametrize("found", ["1.13.0", "3.0.0"])
def test_workers_of_another_ray_are_refused_before_anything_is_written(found, monkeypatch):
    from humanlm.engines.workers import _join_cluster

    from humanlm.core import plugins

    monkeypatch.setattr(plugins, "version", lambda name: found)
    said = (
        f"workers ray/N needs ray 2.x, and {found} is installed: pip install 'ray==2.60.0', "
        "or leave workers out"
    )
    with pytest.raises(ConfigError, match=f"judge.{said}"):
        require_workers({"judge": ChatConfig("scripted/echo", workers="ray/2")})
    with pytest.raises(ConfigError, match=said):
        _join_cluster()


def test_numbers_that_do_not_match_come_with_one_that_does():
    with pytest.raises(ConfigError, match="Give --verl.tensor_parallel 4"):
        VerlConfig(device="cpu", rollout="hf", nodes=2, gpus=2)
    assert (
        "Give --verl.tensor_parallel 2"
        in refused(*PAPER[:-1], "--dry-run", "--verl.tensor_parallel", "6", "--trainer.beta", "0")[
            0
        ]
    )


def test_a_cluster_that_does_not_answer_is_named_before_work_begins(monkeypatch):
    from humanlm.core import plugins

    monkeypatch.setattr(
        plugins, "version", lambda name: "2.60.0"
    )  # as if Ray were installed; nothing of it is asked
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    asking = {"judge": ChatConfig("scripted/echo", workers="ray/2")}
    with pytest.raises(ConfigError, match="Nobody answers at 127.0.0.1:1, where RAY_ADDRESS says"):
        require_workers(asking)
    require_workers({"judge": ChatConfig("scripted/echo")})


def test_a_build_whose_workers_cannot_start_leaves_nothing(monkeypatch, tmp_path):
    from contextlib import contextmanager

    from humanlm.corpus import build
    from humanlm.engines.exchange import EngineError

    @contextmanager
    def broken(workers):
        raise EngineError("Ray cannot be started.")
        yield

    monkeypatch.setattr(build, "mapper", broken)
    monkeypatch.setattr(build, "require_workers", lambda groups: None)
    from humanlm.humanual import main

    (tmp_path / "rows.jsonl").write_text('{"id": "a", "text": "b"}\n')
    assert (
        main(
            [
                "build",
                "--build.path",
                str(tmp_path / "rows.jsonl"),
                "--build.out",
                str(tmp_path / "out"),
                "--build.workers",
                "ray/2",
            ]
        )
        == 2
    )
    assert [p.name for p in tmp_path.iterdir()] == ["rows.jsonl"]


def test_workers_of_the_group_run_are_pointed_to_where_they_are():
    with pytest.raises(
        ConfigError,
        match="--run.workers does not exist. Did you mean --judge.workers or --test_judge.workers",
    ):
        read_settings(["--run.workers", "ray"])
    with pytest.raises(
        ConfigError, match="judge.workers: expected ray/N, such as ray/4, got 'ray'"
    ):
        read_settings(["--judge.workers", "ray"])


def test_what_accelerate_was_told_wrong_is_a_sentence_of_its_own():
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "WORLD_SIZE": "2",
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "1",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
    }
    done = subprocess.run(
        [sys.executable, "-m", "humanlm.train", "--dry-run"],
        env=env,
        capture_output=True,
        text=True,
    )
    lines = done.stderr.splitlines()
    assert (
        lines[0].startswith("error: FSDP of version 1 is not supported")
        and lines[1].startswith("fsdp_cpu_ram_efficient_loading")
        and all(line.endswith(".") for line in lines)
    ), lines


@pytest.mark.parametrize(
    "file, make",
    [
        (
            "sdpo/wildfeedback",
            "python -m humanlm.sdpo prepare wildfeedback --prepare.out data/wildfeedback",
        ),
        ("classmate/classmate", "python -m humanlm classmate prepare helpful_instructions "),
    ],
)
def test_data_that_a_command_makes_are_asked_for_with_that_command(
    file, make, monkeypatch, tmp_path
):
    path = ROOT / f"configs/{file}.yaml"
    assert make in "".join(
        own.read_text() for own in (path, path.with_name("shared.yaml")) if own.exists()
    ), "the head of the file says so too"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"there is no such file. Make it: {make}"):
        train_or_plan(*read_settings(["--config", str(path), "--dry-run"]))


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


def test_a_model_that_cannot_be_loaded_is_refused_in_sentences_of_one_full_stop(monkeypatch):
    from humanlm.models import checkpoints

    def offline(where):
        raise OSError("Cannot reach the Hub: unset the variable.")

    monkeypatch.setattr(checkpoints, "_require_hub", offline)
    with pytest.raises(HumanLMError, match=r"unset the variable\. There is no such folder"):
        checkpoints.load_model("some/model")
