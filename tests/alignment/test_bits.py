"Bits of real replies: a world whose truth is known, a plain loop, a server, people, tables."

import math
import random
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.thought_bits import thought_bits
from humanlm.alignment.bits import (
    _measure_bits,
    model_bits,
    reply_span,
)
from humanlm.alignment.comparison import _settings_of_run
from humanlm.alignment.contract import contract, load_policy
from humanlm.clients.names import is_up
from humanlm.core.basics import HumanLMError
from humanlm.core.records import Example, Message, Persona
from humanlm.evaluation.measured import (
    BITS,
    score_table,
)
from humanlm.hierarchy.prompts import HierarchyConfig
from humanlm.models.bits import byte_count, span_logps
from humanlm.models.checkpoints import make_model, save_model
from humanlm.models.config import ModelConfig
from humanlm.models.generation import Completion
from humanlm.models.logps import token_logps
from humanlm.serving.vllm import vllm_command
from humanlm.training.policies import ModelPolicy

SETTINGS = _settings_of_run([])
WORDS = "otter walnut violin comet pepper harbour lantern meadow saddle velvet".split()
ASKED = HierarchyConfig(levels=["stance", "response"])
TAGS = [f"<{slash}{level}>" for level in ("stance", "response") for slash in ("", "/")]


def said(person, n):
    "A reply of a person, who always says one word"
    rng = random.Random(f"{person} {n}")
    return f"{rng.choice(('yes', 'no', 'well'))}, {WORDS[person]} {rng.choice(('first', 'again'))}"


def planted(n, split="test"):
    "Rows of ten people; nothing but the persona tells which word a reply holds"
    return [
        Example(
            f"{split}{i}",
            "chat",
            split,
            f"u{i % len(WORDS)}",
            f"c{i}",
            Persona(f"u{i % len(WORDS)}", f"says {WORDS[i % len(WORDS)]}"),
            (Message(f"m{i}", "user", "asker", "and you?"),),
            said(i % len(WORDS), f"{split} {i}"),
        )
        for i in range(n)
    ]


def untaught():
    "A tiny model with the words of the planted world"
    torch.manual_seed(0)
    texts = [f"{e.reply} {e.persona.text} {e.context[0].content}" for e in planted(200, "train")]
    config = ModelConfig(vocab=400, hidden=64, layers=2, heads=4, kv_heads=4, head_dim=16)
    return ModelPolicy(*make_model(config, texts, TAGS))


@pytest.fixture(scope="module")
def taught():
    "The same after it has learnt that world: with a persona, and for anybody"
    policy, rows = untaught(), planted(200, "train")
    learner = torch.optim.AdamW(policy.model.parameters(), lr=5e-3)
    nobody = [replace(e, persona=Persona(e.user_id)) for e in rows[:80]]
    spans = [reply_span(policy, e, ASKED) for e in rows + nobody]
    for step in range(150):
        some = random.Random(step).sample(spans, 32)
        out = token_logps(
            policy.model, [s.prompt for s in some], [s.before + s.reply for s in some]
        )
        loss = -out.logps.sum() / out.mask.sum()
        loss.backward()
        learner.step()
        learner.zero_grad()
        if step % 30 == 29:
            print(step, loss.item())
    policy.model.eval()
    return policy


def means(measured):
    return {
        name.removeprefix(BITS): float(np.nanmean(by["response"]))
        for name, by in score_table(measured).items()
    }


def test_the_planted_world_comes_out_right(taught):
    found = means(_measure_bits(taught, planted(40), ASKED))
    size = np.mean([byte_count(e.reply) for e in planted(40)])
    assert found["own"] < found["none"] < found["other"] - 0.2
    assert found["persona"] == pytest.approx(math.log2(len(WORDS)) / size, abs=0.06)
    assert found["who"] > 0.9 and found["chance"] == 1 / 8


def by_rows(policy, prompt, given, reply):
    "log p of a reply by one call of the model, without padding, in nats"
    ids = torch.tensor([prompt + given + reply])
    with torch.no_grad():
        table = policy.model(ids).logits[0].double().log_softmax(-1)
    at = range(ids.shape[1] - len(reply), ids.shape[1])
    return sum(table[i - 1, ids[0, i]].item() for i in at)


def compare_with_rows(policy, examples, asked, draws=2):
    "Score replies with and without persona and after several thoughts, at once and row by row"
    thoughts = [{}, *({"stance": f"thought {n}, a longer one" * n} for n in range(draws))]
    people = [p for e in examples for p in (e, replace(e, persona=Persona(e.user_id)))]
    spans = [reply_span(policy, e, asked, z) for e in people for z in thoughts]
    assert len({tuple(s.prompt) for s in spans}) < len(spans)  # thoughts share their prompt
    rows = np.array([by_rows(policy, *s) for s in spans])
    assert np.abs(span_logps(policy.token_logps, spans) / rows - 1).max() < 1e-6


def test_bits_agree_with_a_plain_loop_over_rows():
    compare_with_rows(untaught(), planted(6), replace(ASKED, thinking="hetero"))


class Knows(ModelPolicy):
    "Answers states with the word of the person, and finds a reply likely that holds that word"

    async def generate(self, rows, sampling=None, prefixes=None):
        texts = [next(w for w in WORDS if w in str(r["prompt"])) for r in rows]
        if rows[0]["level"] == "thought":
            ids = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
            return [Completion(i, f"{text}</think>", "stop") for i, text in zip(ids, texts)]
        return [Completion([], f"<stance>{text}</stance>", "stop") for text in texts]

    def token_logps(self, prompt_ids, completion_ids, temperature=None):
        def cost(ids):
            thought, text = self.tokenizer.decode(ids).split("<response>")
            return math.log(2) if any(w in thought and w in text for w in WORDS) else math.log(20)

        return [[-cost(ids)] * len(ids) for ids in completion_ids]


def saved(*asked):
    measured = thought_bits(*asked)
    return {name: float(np.mean([values[name] for values in measured])) for name in measured[0]}


def test_states_are_worth_what_they_tell_and_those_of_another_row_nothing():
    policy, rows = untaught(), planted(20)
    policy = Knows(policy.model, policy.tokenizer)
    asked = replace(ASKED, thinking="hetero")
    found = saved(policy, rows, asked, "states")
    spans = [reply_span(policy, e, asked) for e in rows]
    lengths = [len(s.reply) / byte_count(e.reply) for s, e in zip(spans, rows)]
    assert found["state_1"] == pytest.approx(np.mean(lengths) * math.log2(10))
    assert found["state_8"] == pytest.approx(found["state_1"])  # all draws are the same here
    assert abs(found["state_1_other"]) + abs(found["state_8_other"]) < 1e-9
    thoughts = saved(policy, rows, asked, "thoughts")
    assert thoughts["state_1"] == pytest.approx(found["state_1"])
    assert abs(thoughts["state_1_other"]) < 1e-9


def why_not(place, settings):
    "Say why a model cannot be measured"
    with pytest.raises(HumanLMError) as e:
        model_bits(place, planted(2), settings)
    return str(e.value)


@pytest.fixture
def served(tmp_path):
    "A server as vLLM answers, with a small model behind it (the real one: test_vllm.py)"
    policy = untaught()
    asked = contract(ModelConfig(), ASKED)
    folder = save_model(policy.model, policy.tokenizer, tmp_path / "tiny", asked)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    stub = Path(__file__).parents[1] / "vllm_stub.py"
    command = vllm_command(folder, "tiny", port, "float32")[1:]
    process = subprocess.Popen([sys.executable, stub, *command])
    try:
        end = time.monotonic() + 120
        while not is_up(f"http://127.0.0.1:{port}/health") and time.monotonic() < end:
            time.sleep(0.1)
        yield folder, f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def test_a_server_that_tells_log_probabilities_agrees_with_the_model_here(served, monkeypatch):
    folder, url = served
    monkeypatch.setenv("VLLM_BASE_URL", url)
    s = SETTINGS.changed(eval={"bits": 8})
    there, here = model_bits("vllm/tiny", planted(4), s), load_policy(folder)
    ours = _measure_bits(here.policy, planted(4), here.hierarchy)
    for a, b in zip(there, ours, strict=True):
        for metric, by in a.values.items():
            assert by["response"] == pytest.approx(b.values[metric]["response"], abs=1e-2)
    assert "other" in why_not("vllm/other", s)
