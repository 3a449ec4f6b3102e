"""The arithmetic of memory: shapes count the weights that transformers makes, and parts are the stated products."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from humanlm.core.basics import ConfigError
from humanlm.core.config import HARMLESS
from humanlm.hardware.memory import GPUS, SHAPES, GiB, Load, PlanConfig, Shape, memory, memory_lines
from humanlm.hardware.performance import SPEEDS, step_estimate
from humanlm.methods.shares import shares
from humanlm.models.config import ModelConfig
from humanlm.training.recipe import find_engine
from humanlm.training.run import check_settings, gpu_plan, read_settings, shares_of, updates

QWEN = SHAPES["Qwen/Qwen3-8B"]


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_shape_counts_the_weights_that_transformers_makes(kind, tied, tmp_path):
    import torch
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
    assert shape.weights == sum(p.numel() for p in model.parameters())
    assert shape.layer_weights == sum(p.numel() for p in model.model.layers[0].parameters())


def test_an_adapter_counts_the_weights_that_peft_makes():
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = Shape(64, 3, 4, 2, 16, 96, 300)
    with torch.device("meta"):
        model = Qwen3ForCausalLM(
            Qwen3Config(
                hidden_size=64,
                num_hidden_layers=3,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=16,
                intermediate_size=96,
                vocab_size=300,
                tie_word_embeddings=False,
            )
        )
        model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"))
    assert shape.adapter(8) == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_known_models_have_their_published_numbers_of_weights():
    published = {
        "Qwen/Qwen3-0.6B": 596_049_920,
        "Qwen/Qwen3-8B": 8_190_735_360,
        "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
        "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    }
    assert {name: SHAPES[name].weights for name in published} == published


def test_full_qwen3_8b_needs_more_than_a_gpu_alone_and_fits_eight_that_share_it():
    state = ("weights", "gradients", "optimiser")
    one, eight = (memory(QWEN, Load(n, n > 1, 2, 16, 5120, 1024)) for n in (1, 8))
    assert sum(one[part][0] for part in state) == 16 * QWEN.weights > GPUS["h100"] * GiB
    assert sum(eight[part][0] for part in state) == 2 * QWEN.weights
    assert sum(part[0] for part in eight.values()) < GPUS["h100"] * GiB


@pytest.mark.parametrize(
    "change, part, bytes",
    [
        ({"reference": True}, "KL reference", (QWEN.weights // 2,) * 2),
        ({"reference": True, "lora_rank": 32}, "KL reference", (QWEN.adapter(32) // 2,) * 2),
        ({"lora_rank": 32}, "gradients", (QWEN.adapter(32) // 2,) * 2),
        ({"lora_rank": 32}, "weights", ((2 * QWEN.weights + 4 * QWEN.adapter(32)) // 8,) * 2),
        ({"optimiser": "adamw_bnb_8bit"}, "optimiser", (QWEN.weights // 4,) * 2),
        ({"split": False}, "gradients", (8 * QWEN.weights,) * 2),
        ({"gpus": 1, "split": False}, "gradients", (4 * QWEN.weights,) * 2),
        ({"completion": 2048}, "logits", (4 * 2 * 2 * 2048 * 151936, 0)),
        ({"written": 32}, "keys and values", (0, 2 * 2 * 32 * 6144 * 36 * 8 * 128)),
        ({"vllm": 30 * GiB}, "keys and values", (0, 0)),
        (
            {"vllm": 30 * GiB, "reference": True},
            "gathered",
            (2 * (2 * QWEN.layer_weights + 2 * 151936 * 4096), 2 * QWEN.weights),
        ),
        (
            {"reference": True},
            "gathered",
            (2 * (2 * QWEN.layer_weights + 2 * 151936 * 4096), 4 * QWEN.weights),
        ),
    ],
)
def test_each_part_is_the_product_that_the_page_states(change, part, bytes):
    assert memory(QWEN, Load(8, True, 2, 16, 5120, 1024)._replace(**change))[part] == bytes


def test_settings_become_a_load():
    found = PlanConfig(8, "h100").load(
        ModelConfig(max_prompt_tokens=500, lora_rank=4),
        {"use_vllm": True, "vllm_gpu_memory_utilization": 0.5, "beta": 0.01, "optim": "sgd"},
        2,
        16,
    )
    assert found == Load(
        8, True, 2, 16, 500, 1024, 2, 4, True, "sgd", True, round(0.5 * 79 * GiB), base_bytes=4
    )
    assert PlanConfig(8).load(ModelConfig(dtype="bfloat16"), {}, 2, 16).base_bytes == 2
    assert (
        PlanConfig(8).load(ModelConfig(), {"use_vllm": True, "vllm_mode": "server"}, 2, 16).vllm
        == 0
    )


def test_the_lines_say_what_does_not_fit_and_what_helps():
    def lines(name, rows):
        return "\n".join(
            memory_lines(
                plan, ModelConfig(name=name), plan.load(ModelConfig(name=name), {}, rows, 16)
            )
        )

    plan = PlanConfig(1, "a100-40")
    said = lines("Qwen/Qwen3-8B", 4)
    assert (
        "does not fit" in said
        and "--model.lora_rank 32" in said
        and "per_device_train_batch_size" not in said
    )  # which saves 6 of the 109 GiB that are too much

    def helps(plan, rows):
        return memory_lines(
            plan, ModelConfig(name="Qwen/Qwen3-8B"), plan.load(ModelConfig(), {}, rows, 16)
        )[-1]

    assert "per_device_train_batch_size 1" in helps(
        PlanConfig(8, "h100", completion_tokens=4096), 16
    )  # where it is enough
    assert helps(PlanConfig(8, "rtx4090", completion_tokens=8000), 2).endswith(
        "take larger GPUs, or more of them"
    )
    assert "fits with" in lines("Qwen/Qwen3-0.6B", 2)


VERL = [
    "--config",
    "configs/classmate-mini.yaml",
    "--model.name",
    "Qwen/Qwen3-8B",
    "--model.dtype",
    "bfloat16",
    "--sft.muon_lr",
    "0",
    "--rollout.num_prompts",
    "16",
    "--sft.batch",
    "16",
    "--run.engine",
    "verl",
    "--verl.gpus",
    "8",
    "--plan.gpus",
    "8",
    "--plan.gpu",
    "h200",
    "--plan.completion_tokens",
    "1024",
]


def planned(*flags):
    "Lines of a plan for verl, part → (learns, writes)"
    said = "\n".join(gpu_plan(read_settings([*VERL, *flags])[1]))
    return said, {
        part.strip(): (float(learns), float(writes))
        for part, learns, writes in re.findall(r"^  (.{17}) +([\d.]+) +([\d.]+)", said, re.M)
    }


def test_a_plan_for_verl_counts_what_verl_keeps_and_puts_away():
    said, parts = planned("--verl.memory", "0.4")
    assert (
        parts["vLLM"] == (0.0, round(0.4 * 139, 1))
        and "critic" not in parts
        and "judge" not in said
    )
    _, gae = planned("--classmate.estimator", "gae")
    assert gae["critic"][0] == pytest.approx(
        sum(parts[name][0] for name in ("weights", "gradients", "optimiser")), abs=0.2
    )
    _, away = planned("--verl.offload", "[parameters,optimizer,activations]")
    assert (
        away["weights"] == (parts["weights"][0], 0.0)
        and away["optimiser"] == (parts["optimiser"][0], 0.0)
        and away["activations"][0] < parts["activations"][0]
    )
    with pytest.raises(
        ConfigError,
        match="gpus is 8, and verl would train on 1 x 4. Give --verl.nodes 2 --verl.gpus 4, "
        "or --plan.gpus 4",
    ):
        planned("--verl.gpus", "4")
    with pytest.raises(ConfigError, match="Give --verl.nodes 1 --verl.gpus 8, or --plan.gpus 1"):
        planned("--verl.gpus", "1")
    with pytest.raises(ConfigError, match="split false: verl shares"):
        planned("--plan.split", "false")
    said, _ = planned(
        "--classmate.models", "[live]", "--plan.gpu", "rtx4090", "--plan.completion_tokens", "8000"
    )
    assert (
        "does not fit" in said
        and "--verl.offload" in said
        and "--model.lora_rank 32" in said
        and "--trainer.optim adamw_bnb_8bit" in said
    )
    said, _ = planned(
        "--classmate.models",
        "[live]",
        "--plan.gpu",
        "rtx4090",
        "--plan.completion_tokens",
        "8000",
        "--classmate.estimator",
        "gae",
        "--trainer.optim",
        "adamw_bnb_8bit",
    )
    assert (
        "does not fit" in said and "lora_rank" not in said and "--trainer.optim" not in said
    )  # verl has no critic beside an adapter


def test_a_share_that_cannot_hold_the_model_is_no_plan_that_fits():
    said, parts = planned("--verl.memory", "0.1")
    assert (
        "vLLM cannot start: its share is 13.9 GiB, and it needs 17.5" in said
        and "--verl.memory 0.15" in said
        and "--verl.tensor_parallel 2" in said
    )
    assert re.search(r"^  classmate .*; vLLM cannot start", said, re.M)
    assert (
        "cannot start" not in planned("--verl.memory", "0.15")[0]
        and "cannot start" not in planned("--verl.memory", "0.1", "--verl.tensor_parallel", "2")[0]
    )
    assert parts["gathered"][1] == pytest.approx(
        (2 * GiB + 4 * 151936 * 4096) / GiB, abs=0.1
    )  # a bucket, and the largest tensor


def test_what_verl_computes_once_more_and_what_gpus_share_while_they_write():
    load = Load(8, True, 2, 16, 1024, 1024)

    def step(**change):
        return step_estimate(QWEN, load._replace(**change), PlanConfig(8), SPEEDS["h100"]).seconds

    assert step(engine="verl")["learns"] / step()["learns"] == pytest.approx(10 / 8, rel=0.01)
    assert step(writers=8, vllm=30 * GiB)["writes"] < 0.6 * step(vllm=30 * GiB)["writes"]


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_vllm_writes_sooner_than_transformers_which_start_each_layer_anew(mode):
    flags = [
        "--config",
        str(HERE / "humanlm-mini.yaml"),
        "--model.name",
        "Qwen/Qwen3-8B",
        "--plan.gpus",
        "8",
        "--plan.gpu",
        "h200",
    ]

    def writes(*more):
        s = read_settings([*flags, *more])[1]
        return step_estimate(
            QWEN, s.plan.load(s.model, s.trainer, 8, 8), s.plan, SPEEDS["h200"]
        ).seconds["writes"]

    slow, fast = writes(), writes("--trainer.use_vllm", "true", "--trainer.vllm_mode", mode)
    assert slow > 3 * fast and slow / 1024 == pytest.approx(
        0.03, rel=0.2
    )  # a token, as the door of the engines has it


def test_a_tiny_model_learns_no_faster_than_its_kernels_are_started():
    tiny, load = Shape(64, 2, 2, 2, 32, 128, 500, True), Load(1, False, 8, 8, 16, 16)

    def learns(shape, **change):
        return step_estimate(shape, load._replace(**change), PlanConfig(1), SPEEDS["h100"]).seconds[
            "learns"
        ]

    assert learns(tiny) == pytest.approx(2 * 4 * 6e-4) and learns(
        tiny._replace(layers=4), checkpoints=False
    ) == pytest.approx(4 * 3 * 6e-4)
    assert (
        learns(QWEN, rows=64, written=64, prompt=1024, completion=1024) > 2
    )  # where operations decide


def test_a_token_budget_ends_a_planned_run():
    said = planned("--run.token_budget", "100000")[0]
    tokens = 16 * 8 * 512  # of a step in the mean
    assert (
        f"  classmate         {-(-100000 // tokens)} steps of 128 completions (a budget "
        "of 100,000 tokens ends it before" in said
    )


def test_an_adapter_learns_with_fewer_operations_and_what_is_computed_twice_is_no_use(monkeypatch):
    load = Load(8, True, 2, 16, 1024, 1024)

    def step(**change):
        return step_estimate(QWEN, load._replace(**change), PlanConfig(8), SPEEDS["h100"])

    once, twice, lora = step(checkpoints=False), step(), step(lora_rank=32, checkpoints=False)
    assert once.flops == twice.flops and twice.seconds["learns"] == pytest.approx(
        4 / 3 * once.seconds["learns"]
    )
    assert 0.66 < lora.flops / once.flops < 0.75
    rows = 16 * (1024 + 512)
    assert step(critic=True).flops == pytest.approx(2 * once.flops) and once.flops == pytest.approx(
        8 * rows * (6 * QWEN.weights + 6 * 36 * 32 * 128 * 1536)
    )


HERE = Path(__file__).parents[2] / "configs"


def stages(file, *flags):
    "Stages of a plan, by name"
    recipe, s = read_settings(["--config", str(HERE / file), *flags])
    return {stage.name: stage for stage in recipe.stage_plans(s, False)}


def asked(stage):
    return [(q.count, q.rounds) for q in stage.questions if q.count]


def test_a_judge_that_compares_a_group_is_asked_once_for_it_and_others_once_for_each_completion():
    judge = (
        "--judge.model",
        "openai/gpt-5-mini",
        "--rollout.num_prompts",
        "8",
        "--rollout.group_size",
        "4",
        "--run.methods",
    )
    assert asked(stages("humanlm-mini.yaml")["response-only-think"]) == []  # the oracle asks nobody
    assert asked(stages("humanlm-mini.yaml", *judge, "[response-only]")["response-only"]) == [
        (8, 1)
    ]
    assert asked(
        stages(
            "humanlm-mini.yaml",
            *judge,
            "[response-only]",
            "--judge.protocol",
            "single",
            "--judge.repeats",
            "3",
        )["response-only"]
    ) == [(96, 1)]
    assert asked(stages("humanlm-mini.yaml", *judge, "[joint]")["joint"]) == [
        (56, 1)
    ]  # seven levels are scored in each answer
    assert (
        asked(stages("sdpo/helpsteer2.yaml")["online-1-no_emojis"]) == [(32, 1)]
        and asked(stages("sdpo/wildfeedback.yaml")["offline"]) == []
    )
    assert asked(stages("classmate/classmate.yaml")["classmate"]) == [
        (256, 1)
    ]  # of the answer and of the classmate's


def test_the_user_of_a_dialogue_is_asked_turn_by_turn():
    flags = (
        "--gyms.train",
        "[tau,function]",
        "--gyms.max_turns",
        "6",
        "--user.model",
        "openai/gpt-5-mini",
        "--rollout.num_prompts",
        "4",
        "--rollout.group_size",
        "2",
    )
    assert asked(stages("gyms-mini.yaml", *flags)["gyms"]) == [
        (4 * 2 * 3 / 2, 6)
    ]  # a function has no user
    found = step_estimate(
        QWEN,
        Load(8, True, 2, 16, 1024, 1024),
        PlanConfig(8, request_seconds=1.5),
        SPEEDS["h100"],
        questions=stages("gyms-mini.yaml", *flags)["gyms"].questions,
    )
    assert found.seconds["others"] == 9.0


def test_a_plan_names_what_it_assumes_of_those_who_answer():
    flags = [
        "--config",
        str(HERE / "humanlm-mini.yaml"),
        "--plan.gpus",
        "8",
        "--judge.model",
        "openai/gpt-5-mini",
        "--plan.request_seconds",
        "3",
    ]

    def said(*more):
        return "\n".join(gpu_plan(read_settings([*flags, *more])[1]))

    assert re.search(
        r"others answer .* \(\d+%; 16 at once, 3 s each by --plan.request_seconds\)", said()
    ) and "; 5 at once, 3 s" in said("--plan.at_once", "5")
    assert "request_seconds" not in said("--judge.model", "oracle")


def test_every_stage_of_a_recipe_is_planned_as_what_it_is():
    kinds = {
        name: {stage.name: stage.kind for stage in stages(name).values()}
        for name in (
            "humanlm-mini.yaml",
            "sdpo-mini.yaml",
            "sdpo/wildfeedback.yaml",
            "parser-tiny.yaml",
            "gyms-mini.yaml",
            "classmate-mini.yaml",
        )
    }
    assert kinds == {
        "humanlm-mini.yaml": {
            "cold-start": "lessons",
            "response-only-think": "rollouts",
            "humanlm-composed": "rollouts",
        },
        "sdpo-mini.yaml": {
            "cold-start": "lessons",
            "online-1-casual": "rollouts",
            "online-2-short": "rollouts",
        },
        "sdpo/wildfeedback.yaml": {"offline": "logs"},
        "parser-tiny.yaml": {"trained": "lessons"},
        "gyms-mini.yaml": {"cold-start": "lessons", "gyms": "rollouts"},
        "classmate-mini.yaml": {
            "reader": "lessons",
            "cold-start": "lessons",
            "classmate": "rollouts",
        },
    }
    for file in ("sdpo/wildfeedback.yaml", "parser-tiny.yaml"):
        said = "\n".join(
            gpu_plan(read_settings(["--config", str(HERE / file), "--plan.gpus", "8"])[1])
        )
        assert (
            "writes " not in said.partition("step, estimated")[2]
            and " written" not in said
            and "others answer" not in said
        )


@pytest.mark.parametrize(
    "file",
    [
        "humanlm-mini.yaml",
        "sdpo-mini.yaml",
        "gyms-mini.yaml",
        "classmate-mini.yaml",
        "parser-tiny.yaml",
    ],
)
def test_a_plan_names_the_stages_that_a_run_has(file):
    from humanlm.training.stages import planned_stages

    recipe, s = read_settings(["--config", str(HERE / file)])
    assert [stage.name for stage in recipe.stage_plans(s, True)] == planned_stages(recipe, s)


def test_a_plan_sums_up_all_stages():
    flags = [
        "--config",
        str(HERE / "humanlm-mini.yaml"),
        "--model.name",
        "Qwen/Qwen3-8B",
        "--plan.gpus",
        "8",
        "--plan.dollars_per_hour",
        "2",
        "--run.token_budget",
        "null",
    ]

    def lines(*more):
        return [
            line
            for line in gpu_plan(read_settings([*flags, *more])[1])
            if re.match(r"  (cold-start|response-only-think|humanlm-composed|all) ", line)
        ]

    *each, total = lines()
    seconds = {"ms": 0.001, "s": 1, "min": 60, "h": 3600}
    taken = [
        float(number) * seconds[unit]
        for line in [*each, total]
        for number, unit in [re.search(r"(?:each: |all +)([\d.]+) (ms|s|min|h)", line).groups()]
    ]
    assert (
        len(each) == 3
        and sum(taken[:-1]) == pytest.approx(taken[-1], rel=0.05)
        and "GPUs $" in total
    )
    assert "no steps" in lines("--sft.lesson_steps", "0", "--sft.polite_steps", "0")[0]


def test_completions_are_as_long_as_the_recipe_allows_unless_the_plan_says_otherwise():
    longest = {
        file: [stage.completion for stage in stages(file).values()][-1]
        for file in (
            "humanlm-mini.yaml",
            "sdpo/helpsteer2.yaml",
            "classmate/classmate.yaml",
            "gyms/userrl.yaml",
            "parser-tiny.yaml",
        )
    }
    assert longest == {
        "humanlm-mini.yaml": 128,
        "sdpo/helpsteer2.yaml": 2048,
        "classmate/classmate.yaml": 3072,
        "gyms/userrl.yaml": 8192,
        "parser-tiny.yaml": 1024,
    }

    def said(*flags):
        return gpu_plan(
            read_settings(
                ["--config", str(HERE / "sdpo/helpsteer2.yaml"), "--plan.gpus", "8", *flags]
            )[1]
        )[0]

    assert "1 row of 2,560 tokens" in said() and "1 row of 1,512 tokens" in said(
        "--plan.completion_tokens", "1000"
    )


def test_copies_of_the_model_are_whole_on_every_gpu_where_trl_trains_and_elsewhere_with_verl():
    copies = {
        ("sdpo-mini.yaml", ()): 1,
        ("sdpo/helpsteer2.yaml", ()): 0,
        (
            "sdpo/helpsteer2.yaml",
            ("--sdpo.teacher", "ema", "--sdpo.form", "full", "--sdpo.kl", "0.1"),
        ): 2,
        ("classmate/classmate.yaml", ("--classmate.models", "[initial,lagged,live]")): 2,
    }
    for (file, flags), count in copies.items():
        assert [*stages(file, *flags).values()][-1].frozen == count
    assert (
        memory(QWEN, Load(8, True, 2, 16, 512, 512, frozen=2))["frozen copies"]
        == (8 * QWEN.weights,) * 2
    )
    assert (
        memory(QWEN, Load(8, True, 2, 16, 512, 512, frozen=1, lora_rank=8))["frozen copies"]
        == (2 * QWEN.weights,) * 2
    )

    def held(*flags):
        return (
            planned(*flags)[1].get("leading process"),
            find_engine("verl").plan(read_settings([*VERL, *flags])[1])[0],
        )

    assert (
        held("--classmate.models", "[initial]")
        == ((30.5, 30.5), "host's memory       30.5 GiB for the weights a stage started from")
        and "frozen copies" not in planned("--classmate.models", "[initial]")[1]
    )
    read, said = held("--classmate.models", "[lagged]", "--classmate.lag", "1")
    assert (
        read == pytest.approx((45.8, 45.8), abs=0.11)
        and said
        == "host's memory       30.5 GiB for the weights a stage started from; in "
        "classmate on the first GPU, as summed up above"
    )


def test_what_the_leading_process_holds_on_the_first_gpu_counts_in_the_verdict():
    flags = [
        "--run.recipe",
        "sdpo",
        "--model.name",
        "Qwen/Qwen3-8B",
        "--model.dtype",
        "bfloat16",
        "--sft.muon_lr",
        "0",
        "--run.engine",
        "verl",
        "--rollout.num_prompts",
        "32",
        "--verl.gpus",
        "8",
        "--plan.gpus",
        "8",
    ]
    said = "\n".join(gpu_plan(read_settings(flags)[1]))
    assert re.search(
        r"^  leading process +45.8   45.8   on the first GPU alone$", said, re.M
    ) and re.search(r"^  sum .* does not fit: ", said, re.M)
    assert "leading process" not in "\n".join(
        gpu_plan(
            read_settings(
                [
                    *[flag for flag in flags if flag not in ("--run.engine", "verl")][:-4],
                    "--plan.gpus",
                    "8",
                ]
            )[1]
        )
    )


def test_lessons_by_trl_are_planned_for_the_one_gpu_that_takes_them():
    said, both = planned("--verl.lessons", "trl")[0], planned()[0]
    assert (
        "h200 of 139, one GPU, the leading process; reader: 16 rows" in said
        and "let all GPUs take the lessons (--verl.lessons verl)" in said
        and "does not fit" in said
    )
    assert (
        re.search(r"^  cold-start .* each on one GPU, the leading process: ", said, re.M)
        and "on one GPU" not in both
        and "a whole model on each" not in said
    )


def test_gpus_of_two_machines_talk_at_the_speed_between_them():
    def talks(*flags):
        number, unit = re.search(r"GPUs talk ([\d.]+) (ms|s)", planned(*flags)[0]).groups()
        return float(number) * {"ms": 0.001, "s": 1}[unit]

    assert talks("--verl.nodes", "2", "--plan.gpus", "16", "--sft.batch", "16") > 6 * talks()
    with pytest.raises(
        ConfigError, match="nodes is 3: it must be at least 1, and divide the 8 GPUs"
    ):
        PlanConfig(8, nodes=3)


def test_zero3_keeps_slices_in_bfloat16_too_and_is_called_by_its_name():
    whole = memory(QWEN, Load(8, True, 2, 16, 512, 512))["weights"]
    assert memory(QWEN, Load(8, True, 2, 16, 512, 512, zero=True))["weights"] == tuple(
        bytes + 2 * QWEN.weights // 8 for bytes in whole
    )
    said = {
        split: gpu_plan(
            read_settings(
                [
                    "--config",
                    str(HERE / "sdpo/helpsteer2.yaml"),
                    "--plan.gpus",
                    "8",
                    "--plan.split",
                    split,
                ]
            )[1]
        )[0]
        for split in ("true", "zero3", "false")
    }
    assert (
        "(FSDP2)" in said["true"]
        and "(ZeRO-3)" in said["zero3"]
        and "a whole model on each" in said["false"]
    )
    with pytest.raises(ConfigError, match="give true, zero3 or false"):
        PlanConfig(split="zero2")


def test_a_plan_shares_a_step_out_to_the_gpus_that_it_plans_for(capsys):
    from humanlm.train import main

    assert main(["--config", str(HERE / "gyms-mini.yaml"), "--dry-run", "--plan.gpus", "8"]) == 0
    said = capsys.readouterr().out
    assert "8 processes read 8 at a time each" in said and "one process" not in said


@pytest.mark.parametrize(
    "more, said",
    [
        ((), "sft.muon_lr is 0.025, and Muon needs whole matrices, which FSDP splits"),
        (("--plan.split", "zero3"), "which DeepSpeed splits"),
        (("--plan.split", "false"), None),
        (("--plan.gpus", "1"), None),
        (("--sft.muon_lr", "0"), None),
        (
            ("--sft.muon_lr", "0", "--trainer.optim", "adamw_bnb_8bit"),
            "trainer.optim is adamw_bnb_8bit, and an optimiser in 8 bits has not been "
            "tried over matrices that FSDP splits",
        ),
        (("--plan.split", "false", "--trainer.optim", "adamw_bnb_8bit"), None),
        (
            ("--plan.gpus", "4", "--plan.split", "false", "--sft.batch", "6"),
            "sft.batch (6) must be a multiple of the 4 processes",
        ),
    ],
)
def test_a_plan_says_what_a_start_on_its_gpus_would_refuse(more, said, capsys):
    from humanlm.train import main

    assert (
        main(["--config", str(HERE / "humanlm-mini.yaml"), "--dry-run", "--plan.gpus", "8", *more])
        == 0
    )
    found = re.findall("^refused at a start  (.*)$", capsys.readouterr().out, re.M)
    assert [said in line for line in found] == [True] * bool(said), found


@pytest.mark.parametrize(
    "options, said",
    [
        ({"steps_per_generation": 8}, "--rollout.num_prompts 42"),
        ({}, "--rollout.num_prompts 35"),
        ({"per_device_train_batch_size": 2, "steps_per_generation": 2}, "--rollout.num_prompts 7"),
        (
            {"generation_batch_size": 128},
            "--rollout.num_prompts 35 and leave generation_batch_size out",
        ),
    ],
)
def test_the_number_that_a_refused_plan_names_is_accepted(options, said):
    with pytest.raises(ConfigError, match=f"Give {said}, or start") as refused:
        shares(32, 4, options, 7)
    number = int(re.search(r"num_prompts (\d+)[, ]", str(refused.value).partition("Give ")[2])[1])
    assert shares(number, 4, {} if "leave" in said else options, 7).processes == 7


def test_a_plan_needs_no_ray_and_says_who_will(capsys):
    from importlib.util import find_spec

    from humanlm.train import main

    workers = ["--config", str(HERE / "humanlm-mini.yaml"), "--judge.workers", "ray/2"]
    assert (
        main([*workers, "--judge.model", "openai/gpt-5-mini", "--dry-run"]) == 0
        and "judge ray/2: the run needs Ray" in capsys.readouterr().out
    )
    assert (
        main([*workers, "--dry-run"]) == 0 and "Ray" not in capsys.readouterr().out
    )  # the oracle asks nobody
    check_settings(*read_settings(workers))
    if find_spec("ray") is None:
        with pytest.raises(ConfigError, match="judge.workers ray/N needs ray 2"):
            check_settings(*read_settings([*workers, "--judge.model", "openai/gpt-5-mini"]))


def test_a_run_goes_on_whatever_machine_is_planned_for():
    assert {f"plan.{f.name}" for f in fields(PlanConfig)} == {
        name for name in HARMLESS if name.startswith("plan.")
    }


def test_bad_plans_and_unknown_models_are_refused_with_what_is_known(tmp_path):
    for given, said in (
        ({"gpu": "h1000"}, "h100"),
        ({"gpus": -1}, "or more"),
        ({"completion_tokens": 0}, "at least 1"),
        ({"request_seconds": float("nan")}, "request_seconds is nan: give a number from 0 on"),
        ({"dollars_per_hour": float("inf")}, "dollars_per_hour is inf: give a number"),
    ):
        with pytest.raises(ConfigError, match=said):
            PlanConfig(**given)
    with pytest.raises(ConfigError, match="Qwen/Qwen3-8B"):
        Shape.of(ModelConfig(name="some/model"))
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 3}))
    with pytest.raises(ConfigError, match="does not describe a decoder"):
        Shape.of(ModelConfig(name=str(tmp_path)))


DENSE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 300,
}


@pytest.mark.parametrize(
    "found, said",
    [
        ([1], "hidden_size is None"),
        ("text", "hidden_size is None"),
        (DENSE | {"hidden_size": None}, "hidden_size is None"),
        (DENSE | {"num_hidden_layers": -2}, "num_hidden_layers is -2"),
        (DENSE | {"vocab_size": "300"}, "vocab_size is '300'"),
        (DENSE | {"num_attention_heads": 0}, "num_attention_heads is 0"),
        (DENSE | {"num_attention_heads": 100}, "head_dim is 0"),
        (DENSE | {"head_dim": 16.5}, "head_dim is 16.5"),
        (DENSE | {"intermediate_size": True}, "intermediate_size is True"),
        (DENSE | {"num_local_experts": 8}, r"mixture of experts \(num_local_experts 8\)"),
        (DENSE | {"num_experts": 128}, "mixture of experts"),
        (
            DENSE | {"n_routed_experts": 256},
            "Plan with a dense model of as many weights; or leave --plan.gpus out",
        ),
    ],
)
def test_a_config_by_which_no_plan_can_count_is_a_sentence(found, said, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(found))
    with pytest.raises(ConfigError, match=said):
        Shape.of(ModelConfig(name=str(tmp_path)))
    (tmp_path / "config.json").write_text(
        json.dumps(DENSE | {"num_key_value_heads": None, "head_dim": None, "num_experts": None})
    )
    assert Shape.of(ModelConfig(name=str(tmp_path)))[:7] == (64, 2, 4, 4, 16, 96, 300)


def test_frozen_weights_take_the_bytes_of_the_format_that_they_are_loaded_in():
    def weights(*flags):
        said = "\n".join(
            gpu_plan(
                read_settings(
                    [
                        "--config",
                        str(HERE / "humanlm-mini.yaml"),
                        "--model.name",
                        "Qwen/Qwen3-8B",
                        "--plan.gpus",
                        "1",
                        "--model.lora_rank",
                        "32",
                        *flags,
                    ]
                )[1]
            )
        )
        return float(re.search(r"^  weights +([\d.]+)", said, re.M)[1]), said

    four, two = weights("--model.dtype", "float32"), weights("--model.dtype", "bfloat16")
    assert (
        four[0] - two[0] == pytest.approx(2 * QWEN.weights / GiB, abs=0.11)
        and "dtype bfloat16" not in two[1]
    )
    load = Load(1, False, 1, 1, 64, 64, lora_rank=32, frozen=1)
    assert memory(QWEN, load._replace(base_bytes=4))["frozen copies"] == (4 * QWEN.weights,) * 2
    helps = memory_lines(
        PlanConfig(1, "rtx4090"),
        ModelConfig(name="Qwen/Qwen3-8B"),
        load._replace(frozen=0, base_bytes=4),
    )[-1]
    assert "hold the frozen weights in 2 bytes each (--model.dtype bfloat16)" in helps


def test_what_helps_is_said_of_every_stage_that_does_not_fit():
    flags = [
        "--model.name",
        "Qwen/Qwen3-8B",
        "--sft.muon_lr",
        "0",
        "--plan.gpus",
        "2",
        "--plan.gpu",
        "h100",
    ]

    def said(*more):
        return "\n".join(gpu_plan(read_settings([*flags, *more])[1]))

    assert re.search(
        r"^  what helps        in cold-start: .*--sft.batch 2.*; in response-only and "
        r"humanlm: .*--model.lora_rank 32 --model.dtype bfloat16",
        said(),
        re.M,
    )
    assert "does not fit" not in said(
        "--sft.batch", "2", "--model.lora_rank", "32", "--model.dtype", "bfloat16"
    ), "what it says is enough"


PAPER = Path(__file__).parents[2] / "configs" / "paper"


@pytest.mark.parametrize(
    "file",
    sorted(set(PAPER.glob("*.yaml")) - {PAPER / "shared.yaml", PAPER / "eval-only.yaml"}),
    ids=lambda file: file.stem,
)
def test_the_papers_runs_fit_eight_gpus_of_80_gb_and_with_an_adapter_also_without_splitting(
    file, monkeypatch
):
    whole, lora = (
        ["--config", str(file)],
        ["--config", str(file), "--config", str(PAPER.parent / "engines" / "lora.yaml")],
    )
    for words, split in ((whole, True), (lora, True), (lora, False)):
        recipe, s = read_settings(
            [*words, "--plan.gpus=8", "--plan.gpu=h100", f"--plan.split={str(split).lower()}"]
        )
        said, longest = "\n".join(gpu_plan(s)), recipe.stage_plans(s, False)[-1].completion
        assert (
            "fits with" in said
            and f"2 rows of {s.model.max_prompt_tokens + longest:,} tokens read at once, 16 written"
            in said
        )
        assert (
            s.trainer["save_total_limit"] == 2
            and s.trainer["beta"] == 0.001
            and s.rollout.num_prompts * s.rollout.group_size == 128
        )
        assert s.run.name == file.stem + ("-lora" if words is lora else "") and bool(
            s.model.lora_rank
        ) == (words is lora)
        monkeypatch.setenv("WORLD_SIZE", "8")
        assert updates(s) == 8 and shares_of(s).size == 2, (
            "the steps of the paper, whoever shares them"
        )
    assert "does not fit" in "\n".join(
        gpu_plan(read_settings([*whole, "--plan.gpus=8", "--plan.split=false"])[1])
    )


def test_settings_that_train_nothing_are_not_planned_for_gpus():
    assert gpu_plan(
        read_settings(["--config", str(PAPER / "eval-only.yaml"), "--plan.gpus=8"])[1]
    ) == [
        "memory              run.methods names none: nothing is trained, and what "
        "evaluation holds is not planned"
    ]
