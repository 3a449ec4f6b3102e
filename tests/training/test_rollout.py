"""Rollouts with a real (tiny, untrained) model, and what a rollout promises for any policy."""
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from humanlm.core.basics import ConfigError, run_sync
from humanlm.training.advantages import estimators
from humanlm.hierarchy.prompts import HierarchyConfig, ParsePolicy, closing, make_rows, opening
from humanlm.hierarchy.levels import LEVELS
from humanlm.worlds.mini import WorldConfig, make_world
from humanlm.models.weights import ModelConfig, tiny_model, train_tokenizer
from humanlm.training.rollout import (
    ESTIMATORS, Batch, ModelPolicy, RolloutConfig, RolloutError, Sampling, ScriptedPolicy, at_step, copy_index,
    generated_tokens, group_index, repeat_rows, single_turn,
)


@pytest.fixture(scope="module")
def examples(): return make_world(WorldConfig()).examples[:3]


@pytest.fixture(scope="module")
def loaded(examples):
    torch.set_num_threads(1)
    tok = train_tokenizer([e.reply + e.persona.text for e in examples] * 3, 500, [tag(n) for n in LEVELS for tag in (opening, closing)])
    return tiny_model(ModelConfig(hidden=64, mlp=96), tok), tok


# ---- any policy

@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.text("ab<>/ \n", max_size=12) | st.sampled_from(["<goal>x</goal>", "<goal>x</goal> y", ""])), max_size=12), st.integers(1, 5))
def test_every_row_gets_its_record(pairs, cap):
    rows = [{"row_id": f"r{i}", "level": "goal", "prompt": [], "max_tokens": cap, "stop": ["</goal>"], "thinking": False, "example_id": "e",
             "context_id": "c", "user_id": "u"} for i, _ in pairs]
    texts = iter([t for _, t in pairs])
    done = run_sync(single_turn()(rows, policy := ScriptedPolicy(lambda row, copy: next(texts))))
    assert [t.row_id for t in done] == [r["row_id"] for r in rows]
    assert [t.group for t in done] == group_index(rows) and len({t.id for t in done}) == len(rows)
    for t in done:
        assert len(t.completion_ids) == len(t.mask) <= cap and all(t.mask) and policy.decode(t.completion_ids) == t.text
        assert t.turns[0].span == (0, len(t.mask))
    assert generated_tokens(done) == sum(len(t.mask) for t in done)
    assert len({t.id for step in (1, 2) for t in at_step(done, step)}) == 2 * len(done)


@given(st.lists(st.integers(0, 4)))
def test_groups_and_copies_name_each_row_once(numbers):
    rows = [{"row_id": str(n)} for n in numbers]
    groups = group_index(rows)
    assert len(set(zip(groups, copy_index(rows)))) == len(rows)
    assert [groups.index(g) for g in groups] == [numbers.index(n) for n in numbers]


def test_estimators_have_the_names_of_the_functions():
    assert ESTIMATORS == tuple(estimators)


@pytest.mark.parametrize("change", [dict(num_prompts=0), dict(group_size=1), dict(temperature=-1), dict(top_p=1.5), dict(top_k=-1), dict(eval_temperature=-0.1)])
def test_bad_settings_are_named(change):
    with pytest.raises(ConfigError, match=f"rollout.{next(iter(change))}"): RolloutConfig(**change)


# ---- a real model

def test_a_model_is_a_policy(loaded, examples):
    rows = repeat_rows(make_rows(examples, HierarchyConfig(state_tokens=7, response_tokens=9), ["goal", "response"]), 2)
    policy = ModelPolicy(*loaded)
    done = run_sync(single_turn(sampling=Sampling(1.0, seed=1))(rows, policy))
    assert [t.level for t in done] == [r["level"] for r in rows]
    assert all(1 <= len(t.completion_ids) <= r["max_tokens"] for t, r in zip(done, rows))
    logps = policy.token_logps([t.prompt_ids for t in done], [t.completion_ids for t in done])
    assert logps.shape == (len(rows), max(len(t.completion_ids) for t in done)) and not logps.requires_grad
    again = run_sync(single_turn(sampling=Sampling(1.0, seed=1))(rows, policy))
    assert [t.completion_ids for t in again] == [t.completion_ids for t in done]
    for t, row in zip(done, logps): assert torch.allclose(torch.tensor(t.logps), row[:len(t.logps)], atol=1e-3)


def test_a_prompt_that_does_not_fit_names_its_row(loaded, examples):
    rows = make_rows(examples[:1], None, ["goal"])
    with pytest.raises(RolloutError, match=f"Row {examples[0].id}:goal: .*Raise model.max_prompt_tokens"):
        run_sync(single_turn()(rows, ModelPolicy(*loaded, max_prompt_tokens=5)))


def test_importing_is_light():
    code = "import sys, humanlm.training.rollout; print(sorted({'torch', 'transformers', 'numpy', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


# ---- forms and limits

@pytest.mark.parametrize("variant, level, text, read, errors", [
    ("main", "goal", "<goal>" + "word " * 16 + "</goal>", "word " * 16, ("text: goal is too long",)),
    ("main", "goal", "<goal>short</goal>", "short", ()),
    ("labels-ssr", "stance", "<stance>quite so</stance>", "quite so", ("text: stance is no label",)),
    ("labels-ssr", "stance", "<stance>Strongly Agree</stance>", "Strongly Agree", ()),
    ("response-bare", "response", "Hi </response> there", "Hi </response> there", ()),
    ("hetero", "goal", "to win</think> and more", "to win", ()),
    ("hetero", "response", "hm</think><response>Hi</response>", "Hi", ()),
])
def test_each_form_is_read_and_limits_are_noted_but_change_nothing(examples, variant, level, text, read, errors):
    rows = make_rows(examples[:1], HierarchyConfig(variant=variant), [level])
    done = run_sync(single_turn()(rows, ScriptedPolicy({level: text})))[0]
    assert (done.fields, done.parse_status, done.errors) == ({level: read}, "ok", errors)


def test_logs_say_how_often_a_limit_was_broken(examples):
    from humanlm.alignment.grpo import batch_metrics
    rows = make_rows(examples[:2], HierarchyConfig(levels=["goal"]))
    done = run_sync(single_turn()(rows, ScriptedPolicy(lambda row, copy: "<goal>" + "so " * (3 if row is rows[0] else 30) + "</goal>")))
    found = batch_metrics(Batch(torch.ones(2, 1).numpy(), None, None, done), [1.0])
    assert (found["text/too long"], found["text/no label"], found["parse/ok"]) == (0.5, 0.0, 1.0)


def test_a_level_with_a_thought_of_its_own_is_generated_up_to_its_end(examples, loaded):
    rows = make_rows(examples[:1], HierarchyConfig(variant="hetero", state_tokens=8), ["goal"])
    policy = ModelPolicy(*loaded, 1024)
    assert loaded[1].decode(policy.prompt_ids(rows[0])).endswith("<think>") and rows[0]["stop"] == ["</think>"]
    done = run_sync(single_turn()(rows * 4, policy))
    assert all(len(t.completion_ids) <= 8 and t.parse_status in ("ok", "empty", "unterminated", "missing") for t in done)


@pytest.mark.parametrize("stop, text", [("any", "<stance>against</response>"), ("own", "<stance>against</response> and more</stance>")])
def test_any_closing_tag_ends_a_text_where_the_settings_say_so(stop, text):
    from humanlm.core.basics import run_sync
    from humanlm.data.records import sample_examples
    from humanlm.hierarchy.prompts import HierarchyConfig, make_rows
    from humanlm.training.rollout import ScriptedPolicy, single_turn
    rows = make_rows(sample_examples()[:1], HierarchyConfig(levels=["stance", "response"], stop=stop), ["stance"])
    said, = run_sync(single_turn()(rows, ScriptedPolicy({"stance": "<stance>against</response> and more</stance> Bye"})))
    assert said.text == text and (said.parse_status == "ok") == (stop == "own")
