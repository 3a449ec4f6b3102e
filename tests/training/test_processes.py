"""Two processes ask what one asks, leave every record once, and, to rounding, learn the same."""

import os
from pathlib import Path

import pytest
import torch
import warm
import yaml
from safetensors.torch import load_file

from humanlm.core.basics import read_jsonl
from humanlm.evaluation.index import load_trajectories

CONFIG = {
    "run": {
        "recipe": "experiments.prefixes:recipe",
        "methods": ["humanlm", "prefix-chaining", "humanlm-composed"],
    },
    "data": {"max_train": 4, "max_test": 2},
    "world": {"users": 24, "replies_per_user": 8},
    "model": {"vocab": 700, "hidden": 48, "heads": 3, "kv_heads": 3, "mlp": 96},
    "hierarchy": {
        "levels": ["stance", "emotion", "response"],
        "path": str(Path(__file__).with_name("lowest.json")),
        "state_tokens": 16,
        "response_tokens": 16,
        "thought_tokens": 20,
    },
    "sft": {"lesson_steps": 60, "polite_steps": 2, "batch": 8, "muon_lr": 0.0},
    "rollout": {"num_prompts": 4, "group_size": 4},
    "judge": {"model": "rule"},
    "test_judge": {"model": "rule"},
    "reward": {"extra": "own:even"},
    "trainer": {
        "optim": "sgd",
        "learning_rate": 0.5,
        "max_steps": 4,
        "save_steps": 2,
        "per_device_train_batch_size": 4,
    },
}
EVEN = """
from humanlm.training.policies import row_seeds
from humanlm.models.generation import Prefixes
from humanlm.training.trainer import _TrainerPolicy

def even(trajectories):
    found = [t.completion_ids for t in trajectories]
    return [sum(i % 2 for i in ids) / len(ids) for ids in found]

wrote = _TrainerPolicy.write
def write(self, rows, sampling=None, prefixes=None):
    "Draw by seeds of rows, so that any number of processes draws the same"
    rows = [row | {"seed": seed} for row, seed in zip(rows, row_seeds(rows, self))]
    return wrote(self, rows, sampling, Prefixes())
_TrainerPolicy.write = write
"""
METHODS = CONFIG["run"]["methods"]


def started(folder: Path, processes: int, *words) -> str:
    "Train in one process or in several; what they have printed"
    words = ["-m", "humanlm.train", *words]
    done = (
        warm.together(processes, *words, cwd=folder)
        if processes > 1
        else [warm.run(*words, cwd=folder, env=os.environ | {"ACCELERATE_USE_CPU": "true"})]
    )
    assert [one.returncode for one in done] == [0] * processes, [one.stderr[-3000:] for one in done]
    return "".join(one.stdout for one in done)


def trained(folder: Path, name: str, processes: int) -> Path:
    groups = CONFIG | {"run": CONFIG["run"] | {"name": name, "out": str(folder)}}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(groups), "utf-8")
    (folder / "own.py").write_text(EVEN)
    assert (
        started(folder, processes, "--config", folder / f"{name}.yaml").count("response_alignment")
        == 1
    ), "one process evaluates and shows the result"
    return folder / name


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    return [trained(folder, name, count) for name, count in (("one", 1), ("two", 2))]


def said(run, method):
    return sorted(
        load_trajectories(run / "trajectories" / method), key=lambda t: (t.step, t.group, t.id)
    )


def logged(run, stage):
    return [
        row for row in read_jsonl(run / "metrics.jsonl") if row["stage"] == stage and "loss" in row
    ]


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_ask_the_same_rows_and_levels(both, method):
    one, two = (said(run, method) for run in both)
    assert len(one) == len(two) == 4 * 16, "num_prompts x group_size, not that times the processes"
    for name in ("id", "step", "group", "row_id", "level", "prompt_ids", "completion_ids"):
        assert [getattr(t, name) for t in one] == [getattr(t, name) for t in two], name


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_score_and_push_as_one(both, method):
    one, two = (said(run, method) for run in both)
    assert [(t.rewards, t.turns[0].text) for t in one] == [
        (t.rewards, t.turns[0].text) for t in two
    ] and any(t.advantage for t in one)
    assert [t.advantage for t in one] == pytest.approx([t.advantage for t in two], abs=1e-5)


@pytest.mark.parametrize("stage", ["cold-start", *METHODS])
def test_two_processes_log_once_what_one_does_and_end_with_its_weights(both, stage):
    one, two = (logged(run, stage) for run in both)
    assert [row["step"] for row in one] == [row["step"] for row in two], "no line is written twice"
    for name in [
        name
        for name in one[0]
        if name.startswith(
            ("loss", "reward", "tokens", "judge", "parse", "score", "text", "grad_norm", "prefixes")
        )
    ]:
        assert [row.get(name) for row in one] == pytest.approx(
            [row.get(name) for row in two], abs=2e-4, nan_ok=True
        ), name
    weights = [load_file(run / "models" / stage / "model.safetensors") for run in both]
    for name in weights[0]:
        torch.testing.assert_close(weights[1][name], weights[0][name], atol=5e-4, rtol=1e-3)
