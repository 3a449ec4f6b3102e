"""The bench for a GPU, rehearsed at tiny sizes: every line is written, and every ratio a number."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODELS = ("tiny", "LoRA 16"), ("tiny", "full"), ("larger", "LoRA 16")


@pytest.mark.long
def test_the_bench_for_a_gpu_measures_all_its_lines_without_one(tmp_path):
    command = [sys.executable, "bench/gpu.py", "--rehearse", "--out", tmp_path / "gpu.json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    head = json.loads((tmp_path / "gpu.json").read_text())
    lines = {
        tuple(row[k] for k in ("part", "model", "weights", "what", "arm")): row
        for row in head["lines"]
    }
    trained = {
        ("training", *model, what, arm)
        for model in MODELS
        for what in ("update", "step")
        for arm in ("shared", "rows", "trl")
    }
    assert lines.keys() == trained | {
        ("training", "larger", "full", None, None),
        *(("kernels", "tiny", None, "sdpa takes", arm) for arm in ("shared", "rows")),
        *(("sdpo", "tiny", "full", f"step, {form}", None) for form in ("sampled", "top 20")),
        *(
            ("bits", model, None, None, arm)
            for model in ("tiny", "larger")
            for arm in ("shared", "rows")
        ),
        *(("attention", "tiny", None, None, arm) for arm in ("rows", "mask", "FlexAttention")),
    }
    assert {key for key, row in lines.items() if "reason" in row} == {
        ("training", "larger", "full", None, None)
    }
    assert "the plan says" in lines["training", "larger", "full", None, None]["reason"]
    for key, row in lines.items():
        if row["against"]:
            assert row["seconds"] > 0 and 0 < row["ratio"] < math.inf, key
        if row["what"] == "update":
            assert row["mfu"] > 0 and row["rate"] > 0 and row["plan"] > 1, key
    for model in MODELS[::2]:  # in bfloat16, gradients of packed rows are those of rows
        assert lines["training", *model, "update", "shared"]["off"] < 0.03
        assert lines["training", *model, "update", "rows"]["off"] < 1e-3
