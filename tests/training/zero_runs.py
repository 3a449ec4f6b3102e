"""What `test_sharded.py` says of FSDP2, said of DeepSpeed's ZeRO-3.

Minutes, in an environment with `humanlm[deepspeed]`; the first start compiles.

python -m pytest tests/training/zero_runs.py
"""

import subprocess
import sys

import pytest
import torch

pytest.importorskip("deepspeed")
import test_sharded
from pair import Pair
from test_sharded import ROOT

test_sharded.TWO = Pair(
    "accelerate-8-zero3.yaml", env={"PYTHONHASHSEED": "0"}
)  # or DeepSpeed orders the words of its compiler anew, and compiles for minutes
test_sharded.LAST = "latest"
for name in vars(test_sharded).copy():
    if name in ("both", "two") or (name.startswith("test_") and "bfloat16" not in name):
        globals()[name] = getattr(test_sharded, name)


def test_the_model_was_split(both):
    slices = both[1] / "checkpoints" / "humanlm" / "checkpoint-3" / "global_step3"
    states = [
        torch.load(file, weights_only=False)["optimizer_state_dict"]["fp32_flat_groups"]
        for file in sorted(slices.glob("*optim_states.pt"))
    ]
    kept = [sum(part.numel() for part in own) for own in states]
    whole = sum(
        w.numel()
        for w in test_sharded.load_file(
            both[1] / "models" / "humanlm" / "model.safetensors"
        ).values()
    )
    assert len(kept) == 2 and kept[0] == kept[1] and whole / 2 <= kept[0] <= whole / 2 + 1000, (
        "each process keeps half"
    )


def test_weights_that_bfloat16_would_round_are_kept_and_move_by_less_than_it_can_hold(tmp_path):
    "DeepSpeed is asked without transformers"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            ROOT / "tests" / "training" / "zero_bfloat16.py",
        ],
        env=test_sharded.os.environ | {"ACCELERATE_USE_DEEPSPEED": "true"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
