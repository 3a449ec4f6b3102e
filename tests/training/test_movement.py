"""Small steps add up: weights in training are float32, whatever format a model computes in."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from humanlm.evaluation.measured import Measurement
from humanlm.training.method import Method, TextReward, ask_row, group_advantage
from humanlm.training.recipe import Recipe, Stage, Work
from humanlm.training.rollouts import sft_row, single_turn
from humanlm.training.run import fit, learn, lessons
from humanlm.training.sampling import SFTConfig

pytestmark = pytest.mark.numbers
ROWS = [ask_row(f"question {i}", str(i), 4) for i in range(4)]
TAUGHT = [
    sft_row(row["prompt"], [{"type": "text", "text": "some words to learn"}]) for row in ROWS
] * 2
SIZES = {"hidden": 32, "heads": 2, "kv_heads": 2, "mlp": 64, "vocab": 330}
SETTINGS = {
    "run": {"name": "r"},
    "sft": {"batch": 4, "muon_lr": 0.0, "adam_lr": 1e-6},
    "rollout": {"num_prompts": 2, "group_size": 4},
    "trainer": {
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "max_steps": 4,
        "save_steps": 2,
    },
}


class Used(NamedTuple):
    "Formats that a model was seen with"

    weights: set
    computed: set


class Mover(Recipe):
    "Teaches, then rewards every second completion, so that there is always something to learn"

    def __init__(self):
        self.used = {}

    def load(self, s, **given):
        return Work("mover")

    def vocabulary(self, run):
        return ["some words to learn from"] * 9, []

    def stages(self, run):
        return [Stage("taught", "base", self.teach), Stage("rewarded", "taught", self.train)]

    def evaluate(self, run, name):
        return [
            Measurement("u", "c", {"m": {"all": float(len(run.answers(name, ROWS[:1])[0].ids))}})
        ]

    def watch(self, stage, model):
        used = self.used[stage] = Used(
            {p.dtype for p in model.parameters() if p.requires_grad}, set()
        )
        net = model.get_base_model() if hasattr(model, "peft_config") else model
        net.model.layers[0].mlp.down_proj.register_forward_hook(
            lambda layer, inputs, output: used.computed.add(output.dtype)
        )

    def teach(self, run, stage, model, tokenizer):
        self.watch(stage, model)
        lessons(run, stage, model, tokenizer, TAUGHT)

    def train(self, run, stage, model, tokenizer):
        self.watch(stage, model)

        async def seen(rows, policy):
            done = await single_turn()(rows, policy)
            self.logps = policy.token_logps(
                [t.prompt_ids for t in done], [t.completion_ids for t in done]
            )
            return done

        reward = TextReward(lambda texts: [i % 2 for i in range(len(texts))])
        learn(run, stage, model, tokenizer, Method(seen, group_advantage([1.0]), reward), ROWS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    "name → (folder, recipe): trained in float32, with bfloat16, and with an adapter on bfloat16"

    def made(name, **model):
        recipe = Mover()
        run = SETTINGS["run"] | {"name": name, "out": str(out)}
        return Path(fit(SETTINGS | {"run": run, "model": SIZES | model}, recipe)), recipe

    out = tmp_path_factory.mktemp("moves")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SFTConfig, "warmup", 0)
        return {
            "float32": made("float32"),
            "bfloat16": made("bfloat16", dtype="bfloat16"),
            "adapter": made("adapter", dtype="bfloat16", lora_rank=4),
        }


def moved(folder, start, end):
    "How much every weight moved between two models of a run"
    before, after = (
        load_file(folder / "models" / name / "model.safetensors") for name in (start, end)
    )
    return torch.cat([(after[name].double() - before[name].double()).flatten() for name in after])


@pytest.mark.parametrize("start, end", [("base", "taught"), ("taught", "rewarded")])
def test_steps_of_a_millionth_move_bfloat16_models_as_far_as_float32_ones(runs, start, end):
    ours, plain = (moved(runs[dtype][0], start, end) for dtype in ("bfloat16", "float32"))
    assert (plain != 0).double().mean() > 0.95 and (ours != 0).double().mean() > 0.95
    assert ours.abs().mean() == pytest.approx(plain.abs().mean().item(), rel=0.1)


def test_weights_in_training_are_float32_and_computation_is_bfloat16(runs):
    for stage in ("taught", "rewarded"):
        for name in ("bfloat16", "adapter"):
            used = runs[name][1].used[stage]
            assert used.weights == {torch.float32} and used.computed == {torch.bfloat16}, (
                name,
                stage,
                "generation and log-probabilities too",
            )
        assert runs["float32"][1].used[stage] == Used({torch.float32}, {torch.float32})
