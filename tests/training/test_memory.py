"""The arithmetic of memory: shapes count what transformers makes, and published runs fit."""

import os
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from humanlm.models.config import ModelConfig
from humanlm.training.memory import SHAPES, GiB, Load, Shape, StagePlan, memory
from humanlm.training.run import _method_args, read_settings

QWEN, SMALL = SHAPES["Qwen/Qwen3-8B"], SHAPES["Qwen/Qwen3-4B"]
CONFIGS = Path(__file__).parents[2] / "configs"
PLANS = runpy.run_path(str(CONFIGS.parent / "bench" / "plans.py"))
LOAD = Load(StagePlan("s", 1, 128, 1024), 2, 16)
MODEL = ModelConfig(name="Qwen/Qwen3-8B", max_prompt_tokens=5120)


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_shape_counts_the_weights_that_transformers_and_peft_make(kind, tied, tmp_path):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        kind,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=96,
        vocab_size=300,
        tie_word_embeddings=tied,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.save_pretrained(tmp_path)
    shape = Shape.of(ModelConfig(name=str(tmp_path)))
    assert shape.weights == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.005)
    with torch.device("meta"):
        model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"))
    assert shape.adapter(8) == sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    "change, options, rank, moment, part, bytes",
    [
        ({}, {}, 32, "learns", "gradients", QWEN.adapter(32) / 2),
        ({}, {}, 32, "writes", "weights", (2 * QWEN.weights + 4 * QWEN.adapter(32)) / 8),
        ({}, {"beta": 0.1}, 0, "writes", "copies", QWEN.weights / 2),
        ({"shared": False}, {}, 0, "learns", "gradients", 8 * QWEN.weights),
        ({"written": 32}, {}, 0, "writes", "keys and values", 2 * 2 * 32 * 6144 * 36 * 8 * 128),
        ({"vllm": 0.5}, {}, 0, "writes", "vLLM", 39.5 * GiB),
        ({"others": ["Qwen/Qwen3-4B"]}, {}, 0, "learns", "other models", 2 * SMALL.weights),
    ],
)
def test_each_part_is_the_product_that_the_page_states(change, options, rank, moment, part, bytes):
    load = LOAD._replace(**{"gpus": 8, "shared": True} | change)
    model = replace(MODEL, lora_rank=rank, dtype="bfloat16")
    assert memory(model, options, load, 79 * GiB)[moment][part] == bytes


@pytest.mark.parametrize("file", PLANS["shipped"](), ids=lambda file: file.stem)
def test_every_shipped_file_fits_the_hardware_that_its_head_names(file, tmp_path):
    plan = PLANS["planned"](file)
    assert plan.hardware == (plan.gpus or "two CPU cores") and plan.fits
    assert plan.need <= 0.9 * plan.have
    if not plan.name.startswith("experiments"):
        settings = read_settings(["--config", str(file), *PLANS["NEEDS"].get(plan.name, [])])[1]
        _method_args(settings, tmp_path, 64, 100)  # TRL knows every option


def test_a_dry_run_says_what_a_gpu_holds_without_torch():
    code = (
        "import sys; from humanlm.train import main; code = main(sys.argv[1:]); "
        "print('torch' in sys.modules); sys.exit(code)"
    )
    flags = ["--model.name", "Qwen/Qwen3-8B", "--rollout.num_prompts", "8", "--plan.gpus", "8"]
    done = subprocess.run(
        [sys.executable, "-c", code, "--dry-run", *flags],
        env=os.environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "8 x h100 of 79 that share one model" in done.stdout
    assert "optimizer " in done.stdout and done.stdout.endswith("False\n")
