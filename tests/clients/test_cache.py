"""The cache under real processes: two at once, one that is killed, one that is cancelled, and
files that are broken."""

import asyncio
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.clients.cache import DiskCache, request_key
from humanlm.clients.client import ScriptedClient
from humanlm.clients.limits import Limits
from humanlm.clients.names import client
from humanlm.clients.protocol import ChatReply, ChatRequest, LLMError, Usage, chat
from humanlm.clients.providers import OpenAIClient
from humanlm.core.basics import HumanLMError, run_sync

SECRET = "sk-cache-0123456789abcdef"
ANSWER = ChatReply("yes", Usage(1, 0, 20, 3, 0.001), texts=("yes", "no"), finish="length")

# a program that asks through a cache and writes a line to calls.txt for each call it makes
PROGRAM = """
import asyncio, os, sys
from humanlm.clients.cache import DiskCache
from humanlm.clients.protocol import ChatReply, Usage, chat

async def main(folder, first, last, step, seconds):
    cache, slots = DiskCache(folder), asyncio.Semaphore(16)
    async def ask(question):
        async def model():
            with open(folder + "/calls.txt", "a") as calls: calls.write(question + "\\n")
            await asyncio.sleep(seconds)
            return ChatReply(question.upper(), Usage(1, 0, 10, 2, 0.5))
        async with slots: reply = await cache(chat(question), "test/upper", model)
        assert reply.text == question.upper()
        return reply
    print("ready", flush=True)
    sys.stdin.readline()
    replies = await asyncio.gather(*(ask(f"question {i}") for i in range(first, last)[::step]))
    print(sum(r.cached for r in replies), flush=True)

asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5])))
"""


def program(folder, first, last, step=1, seconds=0.002):
    "Start the program and wait until it is ready; `go` lets it ask"
    arguments = [str(a) for a in (folder, first, last, step, seconds)]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def go(*programs):
    for p in programs:
        assert p.stdout.readline() == "ready\n"
    for p in programs:
        p.stdin.write("\n")
        p.stdin.flush()


def hits(p):
    out, _ = p.communicate(timeout=60)
    assert p.returncode == 0
    return int(out)


def calls(folder):
    return Counter((Path(folder) / "calls.txt").read_text().splitlines())


def asker(reply=ANSWER, seconds=0.0):
    "A model that counts its calls and answers, or raises, what it is given"

    async def ask():
        ask.calls += 1
        await asyncio.sleep(seconds)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    ask.calls = 0
    return ask


def once(cache, ask, request=chat("hello"), name="test/model"):
    return run_sync(cache(request, name, ask))


# ---- the key

texts = st.text(max_size=20) | st.sampled_from(["", "null", "1", "\ud800", "\x00", '"}', "é"])
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": texts}),
    max_size=3,
).map(tuple)
numbers = st.none() | st.sampled_from([0, 0.0, -0.0, 1, 1.0, 0.5])
contents = st.fixed_dictionaries(
    {
        "messages": messages,
        "temperature": numbers,
        "top_p": numbers,
        "max_tokens": st.integers(1, 3),
        "stop": st.lists(texts, max_size=2).map(tuple),
        "seed": st.none() | st.integers(0, 2),
        "n": st.integers(1, 2),
        "repeat": st.integers(0, 2),
        "schema": st.none() | st.fixed_dictionaries({"type": st.sampled_from(["object", "array"])}),
    }
)


@settings(max_examples=50, deadline=None)
@given(
    contents,
    contents,
    st.sampled_from(["x/a", "x/b", "y/a"]),
    st.sampled_from(["x/a", "x/b", "y/a"]),
    texts,
)
def test_keys_are_equal_exactly_if_questions_are(one, two, name, other, caller):
    same = (ChatRequest(**one), name) == (ChatRequest(**two), other)
    assert (
        request_key(ChatRequest(**one), name)
        == request_key(ChatRequest(**two, caller=caller), other)
    ) == same


# ---- one process


# ---- several processes


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_is_ended_has_stored_what_had_arrived(tmp_path, how):
    fast = program(tmp_path, 0, 5, seconds=0.0)
    go(fast)
    hits(fast)
    slow = program(tmp_path, 0, 8, seconds=600)
    go(slow)
    while calls(tmp_path).total() < 8:
        time.sleep(0.01)
    slow.send_signal(how)
    slow.communicate(timeout=60)
    heir = program(tmp_path, 0, 8)
    go(heir)
    assert hits(heir) == 5


def test_many_processes_may_make_the_file_at_once(tmp_path):
    many = [program(tmp_path, i, i + 3) for i in range(8)]
    go(*many)
    for p in many:
        hits(p)
    assert set(calls(tmp_path)) == {f"question {i}" for i in range(10)}
    assert len(DiskCache(tmp_path)) == 10


# ---- files


@pytest.mark.parametrize(
    "harm, problem",
    [
        (lambda f: f.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000), "failed: "),
        (lambda f: f.write_text("hello"), "not a database"),
        (lambda f: f.mkdir(), "unable to open"),
    ],
    ids=["header only", "text", "folder"],
)
def test_a_broken_file_is_named_with_the_next_step(tmp_path, harm, problem):
    harm(tmp_path / "replies.sqlite")
    with pytest.raises(HumanLMError, match=problem) as caught:
        DiskCache(tmp_path)
    assert str(tmp_path / "replies.sqlite") in str(caught.value)


def test_no_key_reaches_the_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_API_KEY", "plainlookingsecret")
    monkeypatch.setenv("OTHER_TOKEN", SECRET)
    leaky = replace(ANSWER, text=f"say {SECRET}", texts=("plainlookingsecret",))
    cache = DiskCache(tmp_path)
    reply = once(cache, asker(leaky), chat(f"my key is {SECRET}"))
    assert reply.text == f"say {SECRET}", "the asker gets what was said"
    cache.replies.db.close()
    for path in tmp_path.iterdir():
        assert (
            SECRET.encode() not in path.read_bytes()
            and b"plainlookingsecret" not in path.read_bytes()
        ), path.name


# ---- with a client


def test_an_answer_that_cannot_be_used_is_paid_for_once_where_the_cache_keeps_it(tmp_path):
    def check(answer):
        raise ValueError("never good enough")

    question = chat("Give a.", schema={"type": "object"}, caller="persona")
    for keep, asked in ((False, 4), (True, 2)):
        model = ScriptedClient(
            lambda r: '{"a": 2}',
            limits=Limits(attempts=1),
            cache=DiskCache(tmp_path / str(keep), keep_unusable=keep),
        )
        for _ in range(2):
            with pytest.raises(LLMError, match="bad answer") as e:
                run_sync(model(question, check))
        assert len(model.requests) == asked and e.value.raw == '{"a": 2}'
        assert e.value.usage.calls == (0 if keep else 2)  # a kept answer cost nothing now


def test_servers_that_call_two_models_the_same_share_no_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")

    def made(name, url=None):
        return client(name, cache=DiskCache(tmp_path), **{"base_url": url} if url else {})

    async def answer(self, request):
        return ChatReply(self.base_url, Usage(1, 0, 1, 1))

    monkeypatch.setattr(OpenAIClient, "send", answer)
    monkeypatch.setattr(OpenAIClient, "open", lambda self: None)
    one, two, team = (
        "http://one:8000/v1",
        "http://ann:secret@two:8000/v1",
        "http://one:8000/team/v1",
    )
    for _ in range(2):
        assert [run_sync(made("vllm/m", url)(chat("hi"))).text for url in (one, two, team)] == [
            one,
            two,
            team,
        ]
    monkeypatch.setenv("VLLM_BASE_URL", two)
    assert (
        made("vllm/m").server == "http://two:8000/v1"
        and run_sync(made("vllm/m")(chat("hi"))).cached
    )
    run_sync(made("openai/gpt-5-mini")(chat("hi")))
    own = DiskCache(tmp_path).replies.find(request_key(chat("hi"), "openai/gpt-5-mini"))
    assert own and own.text == "https://api.openai.com/v1", (
        "what a provider answered is found by the key that it always had"
    )
    monkeypatch.setenv("OPENAI_BASE_URL", "http://gateway/v1")
    assert (
        made("openai/gpt-5-mini").server == "http://gateway/v1"
        and not run_sync(made("openai/gpt-5-mini")(chat("hi"))).cached
    )
