"""Rollouts with a real (tiny, untrained) model, and what a rollout promises for any policy."""

import asyncio
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.clients.ledger import Ledger
from humanlm.core.basics import ConfigError, run_sync
from humanlm.hierarchy.levels import LEVELS
from humanlm.hierarchy.prompts import HierarchyConfig, closing, make_rows, opening
from humanlm.methods import policies
from humanlm.methods.advantages import estimators
from humanlm.methods.method import ESTIMATORS, Batch
from humanlm.methods.policies import ModelPolicy, RolloutError, ScriptedPolicy, row_seeds
from humanlm.methods.rollouts import single_turn
from humanlm.methods.sampling import RolloutConfig, Sampling, copy_index, group_index, repeat_rows
from humanlm.methods.shares import at_step, generated_tokens
from humanlm.models.config import ModelConfig, tiny_model, train_tokenizer
from humanlm.models.prompts import end_id
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


@settings(max_examples=60, deadline=None)
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
    done = run_sync(single_turn()(rows, policy := ScriptedPolicy(lambda row, copy: next(texts))))
    assert [t.row_id for t in done] == [r["row_id"] for r in rows]
    assert [t.group for t in done] == group_index(rows) and len({t.id for t in done}) == len(rows)
    for t in done:
        assert (
            len(t.completion_ids) == len(t.mask) <= cap
            and all(t.mask)
            and policy.decode(t.completion_ids) == t.text
        )
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
    assert tuple(estimators) == ESTIMATORS


@pytest.mark.parametrize(
    "change",
    [
        dict(num_prompts=0),
        dict(group_size=0),
        dict(temperature=-1),
        dict(top_p=1.5),
        dict(top_k=-1),
        dict(eval_temperature=-0.1),
    ],
)
def test_bad_settings_are_named(change):
    with pytest.raises(ConfigError, match=f"rollout.{next(iter(change))}"):
        RolloutConfig(**change)


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


def test_a_prompt_that_does_not_fit_names_its_row(loaded, examples):
    rows = make_rows(examples[:1], None, ["goal"])
    with pytest.raises(
        RolloutError, match=f"Row {examples[0].id}:goal: .*Raise model.max_prompt_tokens"
    ):
        run_sync(single_turn()(rows, ModelPolicy(*loaded, max_prompt_tokens=5)))


# ---- prompts


def test_a_prompt_is_known_by_its_content_and_not_by_the_name_of_its_row(loaded, examples):
    policy, row = ModelPolicy(*loaded), make_rows(examples[:1], None, ["goal"])[0]
    later = row | {
        "prompt": [*row["prompt"], {"role": "user", "name": "bo", "content": "and in hindsight?"}]
    }
    thought = row | {"thinking": True}
    found = [
        policy.prompt_ids(r)
        for r in (row, later, thought, row, row | {"prefix": [{"type": "text", "text": "so"}]})
    ]
    assert found[0] == found[3] and len({tuple(ids) for ids in found}) == 4
    assert "and in hindsight?" in loaded[1].decode(found[1])
    said = run_sync(
        policy.generate([row | {"max_tokens": 2}, later | {"max_tokens": 2}], Sampling(seed=0))
    )
    assert [list(c.prompt_ids) for c in said] == found[:2], "also inside one batch"


def test_ids_that_a_row_brings_take_the_place_of_its_prompt(loaded, examples):
    policy, row = ModelPolicy(*loaded), make_rows(examples[:1], None, ["goal"])[0]
    own = row | {"prompt_ids": [5, 6, 7], "max_tokens": 3}
    assert policy.prompt_ids(own) == [5, 6, 7] and list(
        run_sync(policy.generate([own]))[0].prompt_ids
    ) == [5, 6, 7]


def test_prompts_are_rendered_once_and_not_kept_for_ever(loaded, examples, monkeypatch):
    made, rendered = [], policies._prompt_ids
    monkeypatch.setattr(policies, "_prompt_ids", lambda *given: made.append(1) or rendered(*given))
    monkeypatch.setattr(policies, "_RENDERED", 3)
    policy, rows = ModelPolicy(*loaded), make_rows(examples[:5], None, ["goal"])
    policy.prompt_ids(rows[0]).append(99)
    for row in rows[:1] * 4 + rows:
        policy.prompt_ids(row)
    assert len(made) == 5 and len(policy.rendered) == 3 and 99 not in policy.prompt_ids(rows[0])


def test_a_row_says_who_writes(loaded, examples):
    policy, row = ModelPolicy(*loaded), make_rows(examples[:1], None, ["goal"])[0]
    names = {
        speaker: loaded[1]
        .decode(policy.prompt_ids(row | {"speaker": speaker}))
        .split("<|im_start|>user")[-1]
        for speaker in ("HUMAN", "bo", "")
    }
    assert (
        names["HUMAN"].startswith("\n<name>HUMAN</name>")
        and names["bo"].startswith("\n<name>bo</name>")
        and "<name>" not in names[""]
    )


# ---- completions that are given


@pytest.mark.parametrize("text, finish", [("<goal>to win</goal>", "stop"), ("<goal>to win", "eos")])
def test_what_is_given_ends_as_the_model_would_end_it(loaded, examples, text, finish):
    policy, row = ModelPolicy(*loaded), make_rows(examples[:1], None, ["goal"])[0]
    given = run_sync(policy.generate([row | {"given": [{"type": "text", "text": text}]}]))[0]
    assert (given.text, given.finish, given.ids[-1] == end_id(loaded[1])) == (
        text,
        finish,
        finish == "eos",
    )
    assert loaded[1].decode(given.ids).removesuffix("<|im_end|>") == text


def test_nothing_to_write_is_no_fault(loaded, examples):
    policy, row = (
        ModelPolicy(*loaded),
        make_rows(examples[:1], None, ["goal"])[0] | {"given": [{"type": "text", "text": "so"}]},
    )
    assert run_sync(policy.generate([])) == [] and [
        c.text for c in run_sync(policy.generate([row, row]))
    ] == ["so", "so"]


# ---- what goes on meanwhile


class Slow:
    "A model that takes its time before each forward pass"

    def __init__(self, model):
        self.model = model

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __call__(self, *args, **kw):
        time.sleep(0.05)
        return self.model(*args, **kw)


def test_other_work_goes_on_while_a_model_writes(loaded, examples):
    policy, row = (
        ModelPolicy(Slow(loaded[0]), loaded[1]),
        make_rows(examples[:1], None, ["goal"])[0] | {"max_tokens": 8},
    )

    async def work():
        writing, beats = asyncio.create_task(policy.generate([row], Sampling(0))), 0
        while not writing.done():
            await asyncio.sleep(0.01)
            beats += 1
        return beats

    assert asyncio.run(work()) >= 4


def test_one_model_writes_for_one_at_a_time(loaded, examples):
    policy, rows = (
        ModelPolicy(*loaded),
        make_rows(examples[:4], HierarchyConfig(state_tokens=8), ["goal"]),
    )

    async def both():
        return await asyncio.gather(*(policy.generate(rows, Sampling(seed=s)) for s in range(6)))

    together = asyncio.run(both())
    assert together == [run_sync(policy.generate(rows, Sampling(seed=s))) for s in range(6)]


def test_a_second_model_stands_in_the_ledger(loaded, examples):
    ledger = Ledger()
    policy, rows = (
        ModelPolicy(*loaded, ledger=ledger, name="local/classmate"),
        make_rows(examples[:3], HierarchyConfig(state_tokens=8), ["goal"]),
    )
    said = run_sync(
        policy.generate([*rows, rows[0] | {"given": [{"type": "text", "text": "not written"}]}])
    )
    spent = ledger.entries["rollout", "local/classmate"]
    assert (spent.calls, spent.tokens_in, spent.tokens_out) == (
        3,
        sum(len(c.prompt_ids) for c in said[:3]),
        sum(len(c.ids) for c in said[:3]),
    )


def test_seeds_differ_by_run_step_row_and_copy_and_by_nothing_else():
    rows = [{"row_id": "a"}, {"row_id": "a"}, {"row_id": "b"}]

    def at(seed, step):
        return row_seeds(rows, SimpleNamespace(seed=seed, step=step))

    assert len({s for seed in (0, 1) for step in (0, 1) for s in at(seed, step)}) == 12
    assert (
        at(0, 1) == at(0, 1)
        and row_seeds(rows[2:], SimpleNamespace(seed=0, step=1)) == at(0, 1)[2:]
    )


def test_importing_is_light():
    code = (
        "import sys, humanlm.methods.rollouts, humanlm.methods.shares, "
        "humanlm.methods.method; print(sorted({'torch', 'transformers', 'numpy', 'pandas'} "
        "& set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


# ---- forms and limits


@pytest.mark.parametrize(
    "variant, level, text, read, errors",
    [
        (
            "main",
            "goal",
            "<goal>" + "word " * 16 + "</goal>",
            "word " * 16,
            ("text: goal is too long",),
        ),
        ("main", "goal", "<goal>short</goal>", "short", ()),
        (
            "labels-ssr",
            "stance",
            "<stance>quite so</stance>",
            "quite so",
            ("text: stance is no label",),
        ),
        ("labels-ssr", "stance", "<stance>Strongly Agree</stance>", "Strongly Agree", ()),
        ("response-bare", "response", "Hi </response> there", "Hi </response> there", ()),
        ("hetero", "goal", "to win</think> and more", "to win", ()),
        ("hetero", "response", "hm</think><response>Hi</response>", "Hi", ()),
    ],
)
def test_each_form_is_read_and_limits_are_noted_but_change_nothing(
    examples, variant, level, text, read, errors
):
    rows = make_rows(examples[:1], HierarchyConfig(variant=variant), [level])
    done = run_sync(single_turn()(rows, ScriptedPolicy({level: text})))[0]
    assert (done.fields, done.parse_status, done.errors) == ({level: read}, "ok", errors)


def test_logs_say_how_often_a_limit_was_broken(examples):
    from humanlm.alignment.grpo import _batch_metrics

    rows = make_rows(examples[:2], HierarchyConfig(levels=["goal"]))
    done = run_sync(
        single_turn()(
            rows,
            ScriptedPolicy(
                lambda row, copy: "<goal>" + "so " * (3 if row is rows[0] else 30) + "</goal>"
            ),
        )
    )
    found = _batch_metrics(Batch(torch.ones(2, 1).numpy(), None, None, done), [1.0])
    assert (found["text/too long"], found["text/no label"], found["parse/ok"]) == (0.5, 0.0, 1.0)


def test_a_level_with_a_thought_of_its_own_is_generated_up_to_its_end(examples, loaded):
    rows = make_rows(examples[:1], HierarchyConfig(variant="hetero", state_tokens=8), ["goal"])
    policy = ModelPolicy(*loaded, 1024)
    assert loaded[1].decode(policy.prompt_ids(rows[0])).endswith("<think>") and rows[0]["stop"] == [
        "</think>"
    ]
    done = run_sync(single_turn()(rows * 4, policy))
    assert all(
        len(t.completion_ids) <= 8 and t.parse_status in ("ok", "empty", "unterminated", "missing")
        for t in done
    )


@pytest.mark.parametrize(
    "stop, text",
    [
        ("any", "<stance>against</response>"),
        ("own", "<stance>against</response> and more</stance>"),
    ],
)
def test_any_closing_tag_ends_a_text_where_the_settings_say_so(stop, text):
    from humanlm.core.basics import run_sync
    from humanlm.data.records import sample_examples
    from humanlm.hierarchy.prompts import HierarchyConfig, make_rows
    from humanlm.methods.policies import ScriptedPolicy
    from humanlm.methods.rollouts import single_turn

    rows = make_rows(
        sample_examples()[:1], HierarchyConfig(levels=["stance", "response"], stop=stop), ["stance"]
    )
    (said,) = run_sync(
        single_turn()(
            rows, ScriptedPolicy({"stance": "<stance>against</response> and more</stance> Bye"})
        )
    )
    assert said.text == text and (said.parse_status == "ok") == (stop == "own")
