"""Advantages hold their promises on any input, and equal those of TRL's own trainer where the
definitions meet."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.training.advantages import (
    group_advantages,
)

G, N = 4, 6
SCORE = st.just(math.nan) | st.integers(0, 20).map(lambda i: i / 20)
ROWS = st.lists(st.tuples(SCORE, st.integers(-3, 5)), max_size=30)


def columns(rows):
    return torch.tensor([r for r, _ in rows], dtype=torch.float64), torch.tensor(
        [g for _, g in rows], dtype=torch.long
    )


@settings(deadline=None)
@given(ROWS)
def test_equals_the_standard_library(rows):
    rewards, groups = columns(rows)
    known = {g: [r for r, h in rows if h == g and not math.isnan(r)] for _, g in rows}
    for a, (r, g) in zip(group_advantages(rewards, groups).tolist(), rows):
        comparable = not math.isnan(r) and len(set(known[g])) > 1
        assert a == pytest.approx(
            (r - statistics.mean(known[g])) / (statistics.stdev(known[g]) + 1e-6)
            if comparable
            else 0,
            abs=1e-9,
        )


@pytest.fixture(scope="module")
def trl_advantages(tmp_path_factory):
    "A function that runs one batch through TRL's GRPOTrainer with given rewards"
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    words = {w: i for i, w in enumerate(["<pad>", "<eos>", "a", "b"])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, "<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=4,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=8,
        )
    )

    class Canned(GRPOTrainer):
        def _generate(self, prompts):
            B = len(prompts)
            return [[2]] * B, [[3, 1]] * B, None, ["b"] * B, None, {}, None, None

        def _calculate_rewards(self, *args):
            return self.given

    def run(rewards, weights, **options):
        config = GRPOConfig(
            str(tmp_path_factory.mktemp("trl")),
            num_generations=G,
            per_device_train_batch_size=len(rewards),
            use_cpu=True,
            bf16=False,
            report_to="none",
            reward_weights=weights,
            **options,
        )
        data = Dataset.from_list([{"prompt": "a"}])
        trainer = Canned(
            model,
            [lambda completions, **_: [0.0] * len(completions)] * len(weights),
            args=config,
            train_dataset=data,
            processing_class=tokenizer,
        )
        trainer.given = rewards.float()
        return trainer._generate_and_score_completions([{"prompt": "a"}] * len(rewards))[
            "advantages"
        ]

    return run


@pytest.fixture
def rewards():
    torch.manual_seed(1)
    return torch.rand(N * G, 3)


IN_ORDER = torch.arange(N * G) // G


def test_trl_trainer_agrees_for_one_reward(trl_advantages, rewards):
    rewards = rewards[:, :1]
    rewards[5], rewards[G * 2 : G * 3] = math.nan, 0.5
    for options, scale in [({}, True), ({"scale_rewards": "none"}, False)]:
        mine = group_advantages(rewards[:, 0], IN_ORDER, scale=scale, eps=1e-4, floor=0)
        assert (mine - trl_advantages(rewards, [1.0], **options)).abs().max() < 1e-6


def test_trl_trainer_agrees_for_components(trl_advantages, rewards):
    weights = [1.0, 0.5, 2.0]
    theirs = trl_advantages(rewards, weights)
    assert (
        group_advantages(rewards @ torch.tensor(weights), IN_ORDER, eps=1e-4, floor=0) - theirs
    ).abs().max() < 1e-6
