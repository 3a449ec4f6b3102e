"""A run whose model is split over two processes (FSDP2, gloo, CPUs) is that of one process: completions, advantages and, to rounding, losses and weights."""
import os
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file

import warm
from humanlm.core.basics import read_jsonl
from humanlm.data.trajectory import load_trajectories

ROOT = Path(__file__).parents[2]
ACCELERATE = ROOT / "configs" / "engines" / "accelerate-2.yaml"
METHODS = ["humanlm", "prefix-chaining"]
CONFIG = {
    "run": {"methods": METHODS, "report": False}, "data": {"max_train": 5, "max_test": 2}, "world": {"users": 24, "replies_per_user": 8},
    "model": {"vocab": 700, "hidden": 48, "heads": 3, "kv_heads": 3, "mlp": 96},
    "hierarchy": {"levels": ["stance", "response"], "state_tokens": 16, "response_tokens": 16, "thought_tokens": 20},
    "sft": {"lesson_steps": 10, "polite_steps": 2, "batch": 8, "muon_lr": 0.0}, "rollout": {"num_prompts": 4, "group_size": 4}, "judge": {"model": "rule"},
    "test_judge": {"model": "rule"}, "reward": {"extra": "own:even"}, "prefixes": {"threshold": 0.0}, "eval": {"bootstrap": 20},
    "trainer": {"optim": "sgd", "learning_rate": 0.5, "max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 4},
}
EVEN = "def even(trajectories): return [sum(i % 2 for i in t.completion_ids) / len(t.completion_ids) for t in trajectories]"


def started(folder: Path, name: str, sharded: bool, *flags: str, **groups):
    "Start a run in one process, or in two that `accelerate launch` starts by the file for two GPUs"
    own = {group: CONFIG.get(group, {}) | groups.get(group, {}) for group in CONFIG.keys() | groups.keys()}
    own["run"] |= {"name": name, "out": str(folder)}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(own), "utf-8")
    (folder / "own.py").write_text(EVEN)
    words = ["-m", "humanlm.train", "--config", str(folder / f"{name}.yaml"), *flags]
    launch = ["-m", "accelerate.commands.launch", "--config_file", str(ACCELERATE), "--main_process_port", "0"] if sharded else []
    return warm.run(*launch, *words, cwd=folder, env=os.environ | {"ACCELERATE_USE_CPU": "true"})  # gloo


def trained(folder: Path, name: str, sharded: bool, **groups) -> Path:
    done = started(folder, name, sharded, **groups)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("response_alignment") == 1, "one process evaluates and shows the result"
    return folder / name


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    return [trained(folder, name, sharded) for name, sharded in (("one", False), ("split", True))]


def said(run, method): return sorted(load_trajectories(run / "trajectories" / method), key=lambda t: (t.step, t.group, t.id))
def logged(run, stage): return [row for row in read_jsonl(run / "metrics.jsonl") if row["stage"] == stage and "loss" in row]


@pytest.mark.parametrize("method", METHODS)
def test_a_split_model_writes_and_is_pushed_as_one_in_one_process(both, method):
    one, split = (said(run, method) for run in both)
    assert len(one) == len(split) == 4 * 16
    for name in ("id", "step", "group", "level", "prompt_ids", "completion_ids", "rewards"):
        assert [getattr(t, name) for t in one] == [getattr(t, name) for t in split], name
    assert any(t.advantage for t in one) and [t.advantage for t in one] == pytest.approx([t.advantage for t in split], abs=1e-5)


@pytest.mark.parametrize("stage", ["cold-start", *METHODS])
def test_a_split_model_loses_what_a_whole_one_does_and_is_saved_whole_as_float32(both, stage):
    one, split = (logged(run, stage) for run in both)
    assert [row["step"] for row in one] == [row["step"] for row in split]
    for name in [name for name in one[0] if name.startswith(("loss", "reward", "tokens", "grad_norm"))]:
        assert [row.get(name) for row in one] == pytest.approx([row.get(name) for row in split], abs=2e-4, nan_ok=True), name
    weights = [load_file(run / "models" / stage / "model.safetensors") for run in both]
    assert weights[0].keys() == weights[1].keys() and {x.dtype for x in weights[1].values()} == {torch.float32}
    for name in weights[0]: torch.testing.assert_close(weights[1][name], weights[0][name], atol=5e-4, rtol=1e-3)
    assert (both[1] / "models" / stage / "config.json").read_text() == (both[0] / "models" / stage / "config.json").read_text()


def test_the_model_was_split(both):
    checkpoint = both[1] / "checkpoints" / "humanlm" / "checkpoint-4"
    assert (checkpoint / "pytorch_model_fsdp_0" / ".metadata").is_file() and not list(checkpoint.glob("*.safetensors"))
    assert len(list((checkpoint / "pytorch_model_fsdp_0").glob("*.distcp"))) == 2, "each process wrote its slices"
