"A chat that learns: what is learned from, and what is written."

import itertools

import pytest
import torch
import warm

from humanlm.models.checkpoints import load_model
from humanlm.sdpo.hindsight import read_interactions
from humanlm.sdpo.live import RECORD, SAVED, ChatModel, _LiveChat, _LiveSignal
from humanlm.training.run import quiet_libraries

quiet_libraries()
TEXTS = [
    "Hello there, what do you want to know?",
    "Shorter, please. Tell me more about tea and bread.",
    "user",
    "assistant",
    "system",
]
SMALL = ChatModel(vocab=340, hidden=32, layers=1, heads=2, kv_heads=2, mlp=64)
SAID = ["Hello there", "Shorter, please", "Tell me more", "Tea and bread"]


@pytest.fixture
def new_chat(tmp_path):
    def make(sdpo=_LiveSignal()):
        return _LiveChat(SMALL.load(TEXTS, trained=True), tmp_path, 1e-3, 10, sdpo)

    return make


@pytest.fixture
def chat(new_chat):
    return new_chat()


def weights(chat):
    return [p.detach().clone() for p in chat.loaded.model.parameters()]


def same(a, b):
    return len(a) == len(b) and all(map(torch.equal, a, b))


def test_the_message_after_an_answer_teaches_and_not_the_one_before(chat, new_chat):
    for text in SAID[:3]:
        chat.say(text)
    rows = read_interactions(chat.folder / RECORD)
    assert [(r.messages[-1]["content"], r.followup.text, r.followup.source) for r in rows] == [
        (a, b, "live") for a, b in itertools.pairwise(SAID[:3])
    ]
    assert [r.completion.text for r in rows] == [
        m["content"] for m in chat.pending.messages if m["role"] == "assistant"
    ][:2]

    def after(followup):
        other = new_chat()
        other.say(SAID[0])
        assert other.pending.completion.token_ids == rows[0].completion.token_ids
        other.learn(followup)
        return weights(other)

    first = new_chat()
    first.say(SAID[0])
    first.say(SAID[1])
    assert same(weights(first), after(SAID[1])) and not same(weights(first), after(SAID[0]))


def test_what_teaches_nothing_changes_nothing_and_says_why(chat):
    chat.say(SAID[0])
    before = weights(chat)
    lesson, _ = chat.say("no " * 300)
    assert str(lesson) == "nothing learned: follow-up too long" and same(weights(chat), before)


def test_a_session_learns_and_is_kept(tmp_path):
    sizes = "--model.name tiny --model.hidden 32 --model.layers 1 --model.heads 2"
    own = "--model.kv_heads 2 --live.learning_rate 1e-3 --live.max_tokens 10"
    said = "Hello\nShorter, please\nTell me more\n/quit\nnever said\n"
    args = ("-m", "humanlm", "talk", "live", *sizes.split(), *own.split())
    with warm.Process(*args, "--live.out", tmp_path / "chat", stdin=said) as process:
        assert process.wait() == 0, process.stderr
        shown = process.stdout
    assert shown.count("learned from") == 2 and shown.count("model> ") == 3
    rows = read_interactions(tmp_path / "chat" / RECORD)
    assert all(r.learned["tokens"] == len(r.completion.token_ids) for r in rows) and len(rows) == 2
    load_model(tmp_path / "chat" / SAVED, "own")
    with warm.Process(*args, "--live.out", tmp_path / "chat", stdin="Hello\n") as process:
        assert process.wait() == 2 and "is not empty" in process.stderr
