"""Rollouts with a real (tiny, untrained) model, and what a rollout promises for any policy."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.core.basics import run_sync
from humanlm.hierarchy.levels import LEVELS
from humanlm.hierarchy.prompts import HierarchyConfig, closing, make_rows, opening
from humanlm.models.config import ModelConfig, tiny_model, train_tokenizer
from humanlm.training.policies import ModelPolicy, ScriptedPolicy, row_seeds
from humanlm.training.rollouts import single_turn
from humanlm.training.sampling import Sampling, group_index, repeat_rows
from humanlm.training.shares import at_step, token_counts
from humanlm.worlds.mini import WorldConfig, make_world


@pytest.fixture(scope="module")
def examples():
    return make_world(WorldConfig()).examples[:6]


@pytest.fixture(scope="module")
def loaded(examples):
    torch.set_num_threads(1)
    tok = train_tokenizer(
        [e.reply + e.persona.text for e in examples] * 3,
        500,
        [tag(n) for n in LEVELS for tag in (opening, closing)],
    )
    return tiny_model(ModelConfig(hidden=64, mlp=96), tok), tok


# ---- any policy


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.text("ab<>/ \n", max_size=12)
            | st.sampled_from(["<goal>x</goal>", "<goal>x</goal> y", ""]),
        ),
        max_size=12,
    ),
    st.integers(1, 5),
)
def test_every_row_gets_its_record(pairs, cap):
    rows = [
        {
            "row_id": f"r{i}",
            "level": "goal",
            "prompt": [],
            "max_tokens": cap,
            "stop": ["</goal>"],
            "thinking": False,
            "example_id": "e",
            "context_id": "c",
            "user_id": "u",
        }
        for i, _ in pairs
    ]
    texts = iter([t for _, t in pairs])
    done = run_sync(single_turn()(rows, ScriptedPolicy(lambda row, copy: next(texts))))
    assert [t.row_id for t in done] == [r["row_id"] for r in rows]
    assert [t.group for t in done] == group_index(rows) and len({t.id for t in done}) == len(rows)
    for t in done:
        assert len(t.completion_ids) == len(t.mask) <= cap and all(t.mask)
        assert t.turns[0].span == (0, len(t.mask))
    assert token_counts(done)["tokens/generated"] == sum(len(t.mask) for t in done)
    assert len({t.id for step in (1, 2) for t in at_step(done, step)}) == 2 * len(done)


# ---- a real model


def test_a_model_is_a_policy(loaded, examples):
    rows = repeat_rows(
        make_rows(
            examples, HierarchyConfig(state_tokens=7, response_tokens=9), ["goal", "response"]
        ),
        2,
    )
    policy = ModelPolicy(*loaded)
    done = run_sync(single_turn(sampling=Sampling(1.0, seed=1))(rows, policy))
    assert [t.level for t in done] == [r["level"] for r in rows]
    assert all(1 <= len(t.completion_ids) <= r["max_tokens"] for t, r in zip(done, rows))
    logps = policy.token_logps([t.prompt_ids for t in done], [t.completion_ids for t in done])
    assert (
        logps.shape == (len(rows), max(len(t.completion_ids) for t in done))
        and not logps.requires_grad
    )
    again = run_sync(single_turn(sampling=Sampling(1.0, seed=1))(rows, policy))
    assert [t.completion_ids for t in again] == [t.completion_ids for t in done]
    for t, row in zip(done, logps):
        assert torch.allclose(torch.tensor(t.logps), row[: len(t.logps)], atol=1e-3)


# ---- completions that are given


# ---- what goes on meanwhile


def test_seeds_differ_by_run_step_row_and_copy_and_by_nothing_else():
    rows = [{"row_id": "a"}, {"row_id": "a"}, {"row_id": "b"}]

    def at(seed, step):
        return row_seeds(rows, SimpleNamespace(seed=seed, step=step))

    assert len({s for seed in (0, 1) for step in (0, 1) for s in at(seed, step)}) == 12
    assert (
        at(0, 1) == at(0, 1)
        and row_seeds(rows[2:], SimpleNamespace(seed=0, step=1)) == at(0, 1)[2:]
    )


# ---- forms and limits
