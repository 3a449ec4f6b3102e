"""A model's contract, and the simulated person that is made of a model: what they say, and what is refused."""
import asyncio

import pytest
import torch

from humanlm.alignment.contract import find_model, load_policy, run_settings
from humanlm.alignment.simulator import Reply, Simulator, as_context
from humanlm.core.basics import DataError, HumanLMError, atomic_write, run_sync
from humanlm.data.records import Message, Persona
from humanlm.hierarchy.levels import LEVELS, STATES
from humanlm.hierarchy.prompts import HierarchyConfig, closing, opening
from humanlm.models.weights import ModelConfig, save_model, tiny_model, train_tokenizer
from humanlm.training.rollout import RolloutError, Sampling, ScriptedPolicy
from humanlm.worlds.mini import WorldConfig, make_world


@pytest.fixture(scope="module")
def loaded():
    torch.set_num_threads(1)
    examples = make_world(WorldConfig()).examples[:3]
    tok = train_tokenizer([e.reply + e.persona.text for e in examples] * 3, 500, [tag(n) for n in LEVELS for tag in (opening, closing)])
    return tiny_model(ModelConfig(hidden=64, mlp=96), tok), tok


@pytest.fixture(scope="module")
def run(loaded, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "mini"
    for name in ("cold-start", "response-only"): save_model(*loaded, folder / "models" / name)
    atomic_write(folder / "config.yaml", "run: {methods: [response-only, humanlm]}\nmodel: {max_prompt_tokens: 200}\n"
                 "hierarchy: {levels: [goal, response], thinking: hetero, state_tokens: 6, response_tokens: 8, thought_tokens: 4}\nrollout: {eval_temperature: 0.5}\n")
    return folder


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
