"""The arithmetic of memory: shapes count what transformers makes, and published runs fit."""

import os
import re
import runpy
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from humanlm.core.basics import ConfigError
from humanlm.core.config import HARMLESS
from humanlm.models.config import ModelConfig
from humanlm.train import main as train
from humanlm.training.memory import GPUS, SHAPES, GiB, Load, PlanConfig, Shape, StagePlan, memory
from humanlm.training.run import gpu_plan, method_args, read_settings, shares_of, updates

QWEN, SMALL = SHAPES["Qwen/Qwen3-8B"], SHAPES["Qwen/Qwen3-4B"]
CONFIGS = Path(__file__).parents[2] / "configs"
PLANS = runpy.run_path(str(CONFIGS.parent / "bench" / "plans.py"))
PAPER = CONFIGS / "paper"
LOAD = Load(StagePlan("s", 1, 128, 1024), 2, 16)
MODEL = ModelConfig(name="Qwen/Qwen3-8B", max_prompt_tokens=5120)


def planned(*argv):
    return "\n".join(gpu_plan(read_settings(argv)[1]))


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


def test_full_qwen3_8b_needs_more_than_a_gpu_alone_and_fits_eight_that_share_it():
    room, state = GPUS["h100"] * GiB, ("weights", "gradients", "optimizer")
    one = memory(MODEL, {}, LOAD, room)["learns"]
    eight = memory(MODEL, {}, LOAD._replace(gpus=8, shared=True), room)
    assert sum(one[part] for part in state) == 16 * QWEN.weights > room
    assert sum(eight["learns"][part] for part in state) == 2 * QWEN.weights
    assert max(sum(parts.values()) for parts in eight.values()) < room


@pytest.mark.parametrize(
    "change, options, rank, moment, part, bytes",
    [
        ({}, {}, 32, "learns", "gradients", QWEN.adapter(32) / 2),
        ({}, {}, 0, "writes", "gradients", 0),
        ({}, {}, 32, "writes", "weights", (2 * QWEN.weights + 4 * QWEN.adapter(32)) / 8),
        ({}, {"beta": 0.1}, 0, "writes", "copies", QWEN.weights / 2),
        ({}, {"optim": "adamw_bnb_8bit"}, 0, "writes", "optimizer", QWEN.weights / 4),
        ({"shared": False}, {}, 0, "learns", "gradients", 8 * QWEN.weights),
        ({"shared": False}, {}, 0, "writes", "gradients", 4 * QWEN.weights),
        ({"critic": True}, {}, 0, "writes", "weights", QWEN.weights),
        ({"written": 32}, {}, 0, "writes", "keys and values", 2 * 2 * 32 * 6144 * 36 * 8 * 128),
        ({"vllm": 0.5, "asleep": True}, {}, 0, "writes", "vLLM", 39.5 * GiB),
        ({"guests": [("hf/Qwen/Qwen3-4B", 9)]}, {}, 0, "learns", "other models", 2 * SMALL.weights),
        ({"guests": [("", 9)]}, {}, 0, "asks", "keys and values", 16 * 6153 * QWEN.cached),
        ({}, {}, 0, "learns", "logits", GiB + 4 * 151936 * 4096),
        ({"pieces": False}, {}, 0, "learns", "logits", 8 * 2 * 1024 * 151936),
    ],
)
def test_each_part_is_the_product_that_the_page_states(change, options, rank, moment, part, bytes):
    load = LOAD._replace(**{"gpus": 8, "shared": True} | change)
    model = replace(MODEL, lora_rank=rank, dtype="bfloat16")
    assert memory(model, options, load, 79 * GiB)[moment][part] == bytes


def test_a_user_in_this_process_takes_its_weights_and_a_service_takes_nothing():
    def need(user):
        lines = planned("--config", str(CONFIGS / "sdpo" / "tldr-readme.yaml"), *user)
        return float(re.findall(r"([\d.]+) while it", lines)[0])

    service = need(["--user.model", "anthropic/claude-haiku-4-5"])
    assert need([]) - service == pytest.approx(2 * QWEN.weights / GiB, abs=0.11)
    frozen = need(["--user.model", "rule/casual", "--sdpo.teacher", "frozen"])
    assert frozen - service == pytest.approx(4 * QWEN.weights / GiB, abs=0.11)


@pytest.mark.parametrize("file", PLANS["shipped"](), ids=lambda file: file.stem)
def test_every_shipped_file_fits_the_hardware_that_its_head_names(file, tmp_path):
    plan = PLANS["planned"](file)
    assert plan.hardware == (plan.gpus or "two CPU cores") and plan.fits
    assert plan.need <= 0.9 * plan.have
    if not plan.name.startswith("experiments"):
        settings = read_settings(["--config", str(file), *PLANS["NEEDS"].get(plan.name, [])])[1]
        method_args(settings, tmp_path, 64, 100)  # TRL knows every option


def test_every_stage_of_a_recipe_is_planned_as_what_it_is():
    def stages(file):
        recipe, s = read_settings(["--config", str(CONFIGS / file)])
        return {stage.name: (stage.kind, stage.frozen) for stage in recipe.stage_plans(s)}

    lessons, rollouts = ("lessons", 0), ("rollouts", 0)
    assert stages("humanlm-mini.yaml") == {
        "cold-start": lessons,
        "response-only-think": rollouts,
        "humanlm-composed": rollouts,
    }
    assert stages("sdpo-mini.yaml")["online-1-casual"] == ("rollouts", 1)
    assert stages("sdpo/wildfeedback.yaml")["offline"][0] == "logs"
    assert stages("parser-tiny.yaml") == {"trained": lessons}
    assert stages("gyms-mini.yaml") == {"cold-start": lessons, "gyms": rollouts}
    assert stages("classmate-mini.yaml")["classmate"][0] == "rollouts"


@pytest.mark.parametrize(
    "file",
    sorted(set(PAPER.glob("*.yaml")) - {PAPER / "shared.yaml", PAPER / "eval-only.yaml"}),
    ids=lambda file: file.stem,
)
def test_the_papers_runs_fit_eight_gpus_of_80_gb_and_take_the_papers_steps(file, monkeypatch):
    lora = ("--config", str(CONFIGS / "engines" / "lora.yaml"))
    for more in ((), lora, (*lora, "--plan.split=false")):
        argv = ["--config", str(file), *more, "--plan.gpus=8", "--plan.gpu=h100"]
        assert "does not fit" not in planned(*argv) and ": fits; " in planned(*argv)
    assert "does not fit" in planned("--config", str(file), "--plan.gpus=8", "--plan.split=false")
    s = read_settings(["--config", str(file)])[1]
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert s.rollout.num_prompts * s.rollout.group_size == 128
    assert updates(s) == 8 and shares_of(s).size == 2


@pytest.mark.parametrize(
    "more, said",
    [
        ((), "sft.muon_lr is 0.025, and Muon needs whole matrices, which FSDP splits"),
        (("--plan.split", "false"), None),
        (("--sft.muon_lr", "0", "--trainer.optim", "adamw_bnb_8bit"), "trainer.optim is adamw_bnb"),
        (("--plan.gpus", "4", "--plan.split", "false", "--sft.batch", "6"), "sft.batch (6) must"),
    ],
)
def test_a_plan_says_what_a_start_on_its_gpus_would_refuse(more, said):
    lines = planned("--config", str(CONFIGS / "humanlm-mini.yaml"), "--plan.gpus", "8", *more)
    found = re.findall("^refused at a start  (.*)$", lines, re.M)
    assert [said in line for line in found] == [True] * bool(said), found
    assert (": fits;" in lines) != bool(said)


def test_a_plan_changes_no_run_and_bad_ones_are_refused():
    assert {f"plan.{f.name}" for f in fields(PlanConfig)} <= set(HARMLESS)
    for given, said in (({"gpu": "h1000"}, "h100"), ({"gpus": -1}, "or more")):
        with pytest.raises(ConfigError, match=said):
            PlanConfig(**given)
    with pytest.raises(ConfigError, match="Qwen/Qwen3-8B"):
        Shape.of(ModelConfig(name="some/model"))


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


UNMADE = [
    file
    for file in PLANS["shipped"]()
    if file.parent.name in ("paper", "sdpo") and file.stem != "eval-only"
]


@pytest.mark.parametrize("file", UNMADE, ids=lambda file: file.stem)
def test_a_plan_goes_on_where_prepared_data_are_not_there(file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert train(["--config", str(file), "--dry-run"]) == 0
    lines = capsys.readouterr().out
    made = r"not made yet      python -m humanlm data .*(data|humanual)/\w+"
    assert re.search(made, lines) and ": fits;" in lines and " steps of " in lines
    assert not list(tmp_path.iterdir())
