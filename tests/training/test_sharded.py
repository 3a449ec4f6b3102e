"""A model split over two processes (FSDP2, gloo, CPUs) learns what a whole one does."""

import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import warm
import yaml
from pair import Pair
from safetensors.torch import load_file

from humanlm.core.basics import ConfigError, read_jsonl
from humanlm.evaluation.index import load_trajectories
from humanlm.training.sharding import require_sharding

TWO = Pair()
LAST = "trainer_state.json"  # written when all else of a checkpoint is there
METHODS = ["humanlm", "prefix-chaining"]
CONFIG = {
    "run": {
        "recipe": "experiments.prefixes:recipe",
        "methods": METHODS,
    },
    "data": {"max_train": 8, "max_test": 2},
    "world": {"users": 24, "replies_per_user": 8},
    "model": {"vocab": 700, "hidden": 48, "heads": 3, "kv_heads": 3, "mlp": 96},
    "hierarchy": {
        "path": str(Path(__file__).with_name("lowest.json")),
        "levels": ["stance", "response"],
        "state_tokens": 16,
        "response_tokens": 16,
        "thought_tokens": 20,
    },
    "sft": {"lesson_steps": 10, "polite_steps": 2, "batch": 8, "muon_lr": 0.0},
    "rollout": {"num_prompts": 4, "group_size": 4},
    "judge": {"model": "rule"},
    "test_judge": {"model": "rule"},
    "reward": {"extra": "own:even"},
    "trainer": {
        "optim": "sgd",
        "learning_rate": 0.5,
        "max_steps": 3,
        "save_steps": 2,
        "per_device_train_batch_size": 4,
    },
}
BRIEF = {
    "sft": {"lesson_steps": 1, "polite_steps": 1},
    "trainer": {"max_steps": 2, "warmup_steps": 0},
}
EVEN = """
from humanlm.training.policies import row_seeds
from humanlm.models.generation import Prefixes
from humanlm.training.trainer import _TrainerPolicy

def even(trajectories):
    found = [t.completion_ids for t in trajectories]
    return [sum(i % 2 for i in ids) / len(ids) for ids in found]

known = _TrainerPolicy.write
def write(self, rows, sampling=None, prefixes=None):
    "Draw by seeds of rows, so that any number of processes draws the same"
    rows = [row | {"seed": seed} for row, seed in zip(rows, row_seeds(rows, self))]
    return known(self, rows, sampling, Prefixes())
_TrainerPolicy.write = write
"""


def started(folder: Path, name: str, sharded: bool, *flags: str, **groups):
    "Do a run in one process, or in two that share a model, by accelerate's file for two GPUs"
    own = {
        group: CONFIG.get(group, {}) | groups.get(group, {})
        for group in CONFIG.keys() | groups.keys()
    }
    own["run"] |= {"name": name, "out": str(folder)}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(own), "utf-8")
    (folder / "own.py").write_text(EVEN)
    words = ["--config", str(folder / f"{name}.yaml"), *flags]
    return (
        TWO.run(*words, cwd=folder)
        if sharded
        else warm.run(
            "-m",
            "humanlm.train",
            *words,
            cwd=folder,
            env=os.environ | {"ACCELERATE_USE_CPU": "true"},
        )
    )


def trained(folder: Path, name: str, sharded: bool, **groups) -> Path:
    done = started(folder, name, sharded, **groups)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("response_alignment") == 1, (
        "one process evaluates and shows the result"
    )
    return folder / name


@pytest.fixture(scope="module", autouse=True)
def two():
    with TWO:
        yield


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    return [trained(folder, name, sharded) for name, sharded in (("one", False), ("split", True))]


def said(run, method):
    return sorted(
        load_trajectories(run / "trajectories" / method), key=lambda t: (t.step, t.group, t.id)
    )


def logged(run, stage):
    return [
        row for row in read_jsonl(run / "metrics.jsonl") if row["stage"] == stage and "loss" in row
    ]


@pytest.mark.parametrize("method", METHODS)
def test_a_split_model_writes_and_is_pushed_as_one_in_one_process(both, method):
    one, split = (said(run, method) for run in both)
    assert len(one) == len(split) == 3 * 16
    for name in ("id", "step", "group", "level", "prompt_ids", "completion_ids", "rewards"):
        assert [getattr(t, name) for t in one] == [getattr(t, name) for t in split], name
    assert any(t.advantage for t in one) and [t.advantage for t in one] == pytest.approx(
        [t.advantage for t in split], abs=1e-5
    )


@pytest.mark.parametrize("stage", ["cold-start", *METHODS])
def test_a_split_model_loses_what_a_whole_one_does_and_is_saved_whole_as_float32(both, stage):
    one, split = (logged(run, stage) for run in both)
    assert [row["step"] for row in one] == [row["step"] for row in split]
    for name in [
        name for name in one[0] if name.startswith(("loss", "reward", "tokens", "grad_norm"))
    ]:
        assert [row.get(name) for row in one] == pytest.approx(
            [row.get(name) for row in split], abs=2e-4, nan_ok=True
        ), name
    weights = [load_file(run / "models" / stage / "model.safetensors") for run in both]
    assert weights[0].keys() == weights[1].keys() and {x.dtype for x in weights[1].values()} == {
        torch.float32
    }
    for name in weights[0]:
        torch.testing.assert_close(weights[1][name], weights[0][name], atol=5e-4, rtol=1e-3)
    assert (both[1] / "models" / stage / "config.json").read_text() == (
        both[0] / "models" / stage / "config.json"
    ).read_text()


def test_the_model_was_split(both):
    checkpoint = both[1] / "checkpoints" / "prefix-chaining" / "checkpoint-3"
    assert (checkpoint / "pytorch_model_fsdp_0" / ".metadata").is_file() and not list(
        checkpoint.glob("*.safetensors")
    )
    assert len(list((checkpoint / "pytorch_model_fsdp_0").glob("*.distcp"))) == 2, (
        "each process wrote its slices"
    )


def unfinished(run: Path, folder: Path, *lost: str) -> Path:
    "Copy a run, without some of its files, as one that was killed leaves it"
    folder.mkdir(exist_ok=True)
    again = shutil.copytree(run, folder / run.name)
    for path in ("results.json", "measured", *lost):
        (shutil.rmtree if (again / path).is_dir() else os.unlink)(again / path)
    record = json.loads((again / "run.json").read_text())
    (again / "run.json").write_text(json.dumps(record | {"state": "started"}))
    return again


def test_a_killed_split_run_goes_on_from_its_newest_whole_checkpoint_to_the_same_weights(
    both, tmp_path
):
    again = unfinished(
        both[1],
        tmp_path,
        "models/prefix-chaining",
        f"checkpoints/prefix-chaining/checkpoint-3/{LAST}",
    )
    TWO.close()  # what goes on is a new process
    done = started(tmp_path, "split", True, "--resume")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "checkpoint-3 is not whole" in done.stdout
    before, after = (list(logged(run, "prefix-chaining")) for run in (both[1], again))
    assert [row["step"] for row in after] == [row["step"] for row in before]
    assert [row["loss"] for row in after] == pytest.approx(
        [row["loss"] for row in before], abs=1e-6
    )
    weights = [
        load_file(run / "models" / "prefix-chaining" / "model.safetensors")
        for run in (both[1], again)
    ]
    for name in weights[0]:
        torch.testing.assert_close(weights[1][name], weights[0][name], atol=1e-6, rtol=1e-5)


@pytest.mark.long
def test_a_split_model_with_an_adapter_or_a_kl_term_learns_as_a_whole_one(tmp_path):
    for name, groups in (
        ("lora", {"model": {"lora_rank": 4}, "trainer": BRIEF["trainer"]}),
        ("kl", {"trainer": BRIEF["trainer"] | {"beta": 0.1}}),
    ):
        runs = [
            trained(
                tmp_path,
                f"{name}-{sharded}",
                sharded,
                run={"methods": ["prefix-chaining"]},
                sft=BRIEF["sft"],
                **groups,
            )
            for sharded in (False, True)
        ]
        weights = [
            load_file(next((run / "models" / "prefix-chaining").glob("*.safetensors")))
            for run in runs
        ]
        for part in weights[0]:
            torch.testing.assert_close(weights[1][part], weights[0][part], atol=5e-5, rtol=1e-3)


@pytest.mark.parametrize(
    "variables, said",
    [
        ({"FSDP_VERSION": "1"}, "FSDP of version 1 is not supported"),
        ({"FSDP_VERSION": "2", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}, "Set it to false"),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "DeepSpeed is not supported"),
        ({"FSDP_VERSION": "2"}, None),
    ],
)
def test_a_start_that_would_go_wrong_is_refused_before_anything_is_read(
    monkeypatch, variables, said
):
    for name, value in ({"WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true"} | variables).items():
        monkeypatch.setenv(name, value)
    with nullcontext() if said is None else pytest.raises(ConfigError, match=said):
        require_sharding()
