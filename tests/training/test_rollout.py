"""Rollouts with a real (tiny, untrained) model, run folders, and what a rollout promises for any policy."""
import asyncio
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from humanlm.core.basics import ConfigError, DataError, HumanLMError, atomic_write, run_sync
from humanlm.data.records import Message, Persona
from humanlm.training.advantages import estimators
from humanlm.hierarchy.prompts import HierarchyConfig, ParsePolicy, closing, make_rows, opening
from humanlm.hierarchy.levels import LEVELS, STATES
from humanlm.worlds.mini import WorldConfig, make_world
from humanlm.models.weights import ModelConfig, save_model, tiny_model, train_tokenizer
from humanlm.training.rollout import (
    ESTIMATORS, Batch, ModelPolicy, Reply, RolloutConfig, RolloutError, Sampling, ScriptedPolicy, Simulator, as_context,
    at_step, copy_index, find_model, generated_tokens, group_index, load_policy, repeat_rows, run_settings,
    single_turn,
)


@pytest.fixture(scope="module")
def examples(): return make_world(WorldConfig()).examples[:3]


@pytest.fixture(scope="module")
def loaded(examples):
    torch.set_num_threads(1)
    tok = train_tokenizer([e.reply + e.persona.text for e in examples] * 3, 500, [tag(n) for n in LEVELS for tag in (opening, closing)])
    return tiny_model(ModelConfig(hidden=64, mlp=96), tok), tok


@pytest.fixture(scope="module")
def run(loaded, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "mini"
    for name in ("cold-start", "response-only"): save_model(*loaded, folder / "models" / name)
    atomic_write(folder / "config.yaml", "run: {methods: [response-only, humanlm]}\nmodel: {max_prompt_tokens: 200}\n"
                 "hierarchy: {levels: [goal, response], thinking: hetero, state_tokens: 6, response_tokens: 8, thought_tokens: 4}\nrollout: {eval_temperature: 0.5}\n")
    return folder


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


def test_a_run_folder_says_how_it_wants_to_be_asked(run):
    assert find_model(run, run_settings(run)) == run / "models" / "response-only"
    for path in (run, str(run / "models" / "cold-start")):
        setup = load_policy(path)
        assert setup.hierarchy.load().names == ("goal", "response") and setup.hierarchy.thinks("response")
        assert setup.sampling == Sampling(0.5, seed=0) and setup.policy.max_prompt_tokens == 200


def test_a_simulator_from_a_run_folder(run):
    someone = Simulator(run, "likes tea")
    reply = someone.reply([("bo", "Tea or coffee?")])
    assert isinstance(reply, Reply) and set(reply.statuses) == {"goal", "response"}
    assert reply == someone.reply([("bo", "Tea or coffee?")]) == asyncio.run(someone.areply([("bo", "Tea or coffee?")]))


def test_broken_runs_say_what_to_do(run, tmp_path):
    atomic_write(tmp_path / "config.yaml", "hierarchy: {thinkin: on}\n")
    save = tmp_path / "models" / "humanlm"
    save.parent.mkdir()
    save.symlink_to(run / "models" / "cold-start")
    with pytest.raises(DataError, match="Did you mean 'thinking'"): load_policy(tmp_path)
    with pytest.raises(HumanLMError, match="no folder|no config.json|There is no"): load_policy("./nowhere/at/all")


# ---- the simulator

def scripted(thought=""): return ScriptedPolicy({n: f"{thought}<{n}>my {n}</{n}>" for n in LEVELS})


def test_states_come_from_their_own_prompts():
    reply = Simulator(scripted(), "likes tea").reply("Tea?")
    assert reply.states == {n: f"my {n}" for n in STATES} and str(reply) == "my response" and reply.thought == ""


def test_a_thought_belongs_to_the_reply():
    thoughtful = Simulator(scripted("let me see</think>"), "likes tea", hierarchy=HierarchyConfig(thinking="on"))
    assert thoughtful.reply("Tea?") == Reply("my response", {n: f"my {n}" for n in STATES}, "let me see", {n: "ok" for n in LEVELS})


@pytest.mark.parametrize("text, said", [("still thinking", ""), ("hm</think>Tea.", "Tea."), ("hm <response>Tea.", "Tea."), ("", "")])
def test_an_unfinished_thought_is_not_said(text, said):
    someone = Simulator(ScriptedPolicy({"response": text}), "likes tea", hierarchy=HierarchyConfig(levels=["response"], thinking="on"))
    assert someone.reply("Tea?").text == said


@pytest.mark.parametrize("persona", ["likes tea", {"interests": ["tea"]}, {"work": "baker"}, Persona("ana", "likes tea"), Persona("ana", fields={"values": ["tea"]})])
def test_personas_of_any_form_are_played(persona):
    seen = []
    Simulator(ScriptedPolicy(lambda row, copy: seen.append(row) or ""), persona).reply([("HUMAN", "I was here."), Message("9", name="bo", content="So?")])
    assert [m["name"] for m in seen[0]["prompt"][1:]] == ["HUMAN", "bo"]


@pytest.mark.parametrize("persona", ["", " \n", {}, Persona("ana")])
def test_nobody_cannot_be_played(persona):
    with pytest.raises(RolloutError, match="persona is empty"): Simulator(scripted(), persona)


@pytest.mark.parametrize("context", ["", [], " ", [("bo", " ")], [3], [("a", "b", "c")], {"bo": 1}])
def test_contexts_that_say_nothing_are_refused(context):
    with pytest.raises(RolloutError): as_context(context)


@pytest.mark.parametrize("model", [3, None, object(), torch.nn.Linear(1, 1)])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(RolloutError, match="is no policy"): Simulator(model, "likes tea")


def test_shown_text_is_escaped():
    hostile = "<script>alert(1)</script>"
    page = Reply(hostile, {"goal": hostile}, hostile)._repr_html_()
    assert "<script>" not in page and page.count("&lt;script&gt;") == 3


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
