"""The real OpenAI and Anthropic clients against a real HTTP server on loopback."""

import asyncio
import contextlib
import gzip
import itertools
import json
import math
import os
import random
import socket
import threading
import time
import traceback
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from clock import until, virtual
from mangle import DEEP, odd_body

from humanlm import judges
from humanlm.clients import ledger as money
from humanlm.clients import names, protocol
from humanlm.clients.cache import DiskCache, request_key
from humanlm.clients.client import Client, ScriptedClient, chat_all
from humanlm.clients.ledger import Ledger, price, prices
from humanlm.clients.limits import Limits
from humanlm.clients.names import ask, asked_as, client, providers, vllm_client
from humanlm.clients.protocol import ChatReply, ChatRequest, LLMError, Usage, chat
from humanlm.clients.providers import (
    AnthropicClient,
    OpenAIClient,
    _anthropic_arguments,
    _openai_arguments,
    addresses,
)
from humanlm.core.basics import ConfigError, run_sync
from humanlm.models.settings import estimate
from humanlm.rewards.judge_settings import JudgeConfig

SECRET = "sk-loopback-0123456789abcdef"
FAST = Limits(concurrency=8, timeout=5.0, attempts=4, backoff=0.001, longest_wait=0.05)


def openai_body(text, n=1, finish="stop"):
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 0,
        "model": "tiny",
        "usage": {"prompt_tokens": 12, "completion_tokens": 3 * n, "total_tokens": 12 + 3 * n},
        "choices": [
            {"index": i, "finish_reason": finish, "message": {"role": "assistant", "content": text}}
            for i in range(n)
        ],
    }


def anthropic_body(text, n=1, finish="end_turn"):
    return {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "stop_reason": finish,
        "stop_sequence": None,
        "content": [{"type": "text", "text": text}],
        "usage": {"input_tokens": 12, "output_tokens": 3},
    }


class Server(ThreadingHTTPServer):
    """Plays a script of (status, body, headers) and answers politely when it is over; a body that is a text is what the model says.
    For load and for faults by chance there is server.py, in a process of its own."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.times: list[float] = []
        self.script, self.seen, self.lock, self.delay, self.busy, self.most = (
            [],
            [],
            threading.Lock(),
            0.0,
            0,
            0,
        )
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        pass  # a client that has given up closes its side


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        server = self.server
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with server.lock:
            server.seen.append((self.path, dict(self.headers), asked))
            server.times.append(time.monotonic())
            status, body, headers = server.script.pop(0) if server.script else (200, None, {})
            server.busy += 1
            server.most = max(server.most, server.busy)
        time.sleep(server.delay)
        with server.lock:
            server.busy -= 1
        if body is None:
            body = self.answer(f"you said: {asked['messages'][-1]['content']}", asked)
        elif isinstance(body, str):
            body = self.answer(body, asked)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {
            "content-type": "application/json",
            "content-length": str(len(data)),
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def answer(self, text, asked):
        return (
            anthropic_body(text)
            if self.path.endswith("/messages")
            else openai_body(text, asked.get("n", 1))
        )

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(params=["vllm", "openai", "anthropic"])
def make(request, server, monkeypatch, tmp_path):
    monkeypatch.setenv(
        "SSL_CERT_DIR", str(tmp_path)
    )  # an SDK reads all certificates for every client, and nobody here speaks TLS
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url + "/v1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    build = {
        "vllm": lambda **k: vllm_client("tiny", server.url + "/v1", **k),
        "openai": lambda **k: OpenAIClient("gpt-5-mini", **k),
        "anthropic": lambda **k: AnthropicClient("claude-haiku-4-5", **k),
    }[request.param]
    return lambda limits=FAST, **k: build(limits=limits, **k)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in (
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "VLLM_API_KEY",
        "VLLM_BASE_URL",
        "OPENAI_BASE_URL",
        "ANTHROPIC_BASE_URL",
        "TOGETHER_API_KEY",
        "HUMANLM_SERVERS",
        "HUMANLM_PRICES",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


ERROR = {"error": {"message": "not now", "type": "error", "code": None}}


def test_success(make, server):
    c = make()
    reply = run_sync(
        c(chat("hello", "be brief", temperature=0.5, max_tokens=9, stop=("x",), caller="test"))
    )
    assert reply.text == "you said: hello"
    assert (reply.usage.calls, reply.usage.tokens_in, reply.usage.tokens_out, reply.attempts) == (
        1,
        12,
        3,
        1,
    )
    assert c.ledger.entries["test", c.name].tokens_in == 12
    path, _headers, asked = server.seen[0]
    assert asked.get("temperature") == (
        None if c.name.startswith("openai") else 0.5
    )  # gpt-5 takes none
    assert len(reply.notes) == (2 if c.name.startswith("openai") else 0)
    assert asked["model"] == c.model
    if path.endswith("/messages"):
        assert (asked["system"], asked["max_tokens"], asked["stop_sequences"]) == (
            "be brief",
            9,
            ["x"],
        )
    else:
        assert asked.get("stop") == (None if c.name.startswith("openai") else ["x"])
        assert [m["role"] for m in asked["messages"]] == ["system", "user"]
        assert asked["max_tokens" if c.name.startswith("vllm") else "max_completion_tokens"] == 9


def test_cost_is_known_or_none(make):
    c = make()
    cost = run_sync(c(chat("hello"))).usage.cost
    assert cost is None if c.name.startswith("vllm") else cost > 0


def test_busy_then_success(make, server):
    server.script = [(429, ERROR, {"retry-after": "0.02"}), (503, ERROR, {}), (200, None, {})]
    reply = run_sync(make()(chat("hello")))
    assert (reply.text, reply.attempts, len(server.seen)) == ("you said: hello", 3, 3)


def test_server_down_ends_after_the_attempts(make, server):
    server.script = [(500, ERROR, {})] * 9
    with pytest.raises(LLMError) as e:
        run_sync(make()(chat("hello")))
    assert (e.value.kind, e.value.status, e.value.attempts, len(server.seen)) == (
        "server",
        500,
        4,
        4,
    )


@pytest.mark.parametrize(
    "body, kind",
    [
        (b"<html>bad gateway</html>", "text/html"),
        (b'{"choices": [', "application/json"),
        (b"", "application/json"),
        (b"[1, 2]", "application/json"),
        (b"null", "application/json"),
        (b'{"unexpected": 1}', "application/json"),
    ],
)
def test_garbage_body_is_malformed_and_asked_again(make, server, body, kind):
    server.script = [(200, body, {"content-type": kind})] * 2
    reply = run_sync(make()(chat("hello")))
    assert (reply.text, reply.attempts) == ("you said: hello", 3)
    server.script = [(200, body, {"content-type": kind})] * 9
    with pytest.raises(LLMError, match="malformed"):
        run_sync(make()(chat("hello")))


@pytest.mark.parametrize(
    "status, kind",
    [(401, "auth"), (403, "auth"), (400, "bad request"), (404, "bad request"), (402, "no credit")],
)
def test_hopeless_errors_are_not_repeated(make, server, status, kind):
    server.script = [
        (status, {"error": {"message": f"Incorrect API key provided: {SECRET}", "type": "e"}}, {})
    ] * 9
    with pytest.raises(LLMError) as e:
        run_sync(make()(chat("hello")))
    assert (e.value.kind, len(server.seen)) == (kind, 1)


def malformed_once(make, server, status, data, headers):
    "What one attempt says about a body; and what lay in memory at most, in bytes"
    run_sync(make()(chat("hello")))  # what an SDK takes for itself is not counted
    server.script = [(status, data, headers)]
    tracemalloc.start()
    try:
        with pytest.raises(LLMError) as e:
            run_sync(make(Limits(attempts=1, timeout=60.0))(chat("hello")))
        return e.value, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("kind", ["plain", "gzip bomb", "behind gzip"])
def test_no_more_than_8_mb_are_read_of_an_answer(make, server, status, kind):
    data = b"x" * 30_000_000
    data = (
        data
        if kind == "plain"
        else gzip.compress(data, 1)
        if kind == "gzip bomb"
        else gzip.compress(b"{}") + data
    )
    error, peak = malformed_once(
        make, server, status, data, {} if kind == "plain" else {"content-encoding": "gzip"}
    )
    assert (
        error.kind == "malformed"
        and "more than 8 MB" in str(error)
        and error.billed
        and peak < 25_000_000
    )


def test_packed_answers_are_read(make, server):
    c = make()
    body = anthropic_body("packed") if c.name.startswith("anthropic") else openai_body("packed")
    server.script = [(200, gzip.compress(json.dumps(body).encode()), {"content-encoding": "gzip"})]
    assert run_sync(c(chat("hello"))).text == "packed"
    assert {k.lower(): v for k, v in server.seen[-1][1].items()}["accept-encoding"] == "gzip"


@pytest.mark.parametrize(
    "packing, says",
    [
        ("br", "packed its answer as 'br'"),
        ("gzip, gzip", "packed its answer as 'gzip, gzip'"),
        ("gzip", "what is no gzip"),
    ],
)
def test_an_answer_that_is_packed_otherwise_is_malformed(make, server, packing, says):
    error, _ = malformed_once(make, server, 200, b"not packed", {"content-encoding": packing})
    assert error.kind == "malformed" and says in str(error)


def test_an_answer_of_too_many_characters_is_not_parsed(make, server):
    start = time.process_time()
    server.script = [(200, '{"a":1} ' * 600_000, {})]
    with pytest.raises(
        LLMError, match="malformed.*answered with 4,800,000 characters, and 400,000 are the most"
    ):
        run_sync(
            make(Limits(attempts=1, timeout=60.0))(
                chat("hello", schema={"type": "object", "required": ["b"]})
            )
        )
    assert time.process_time() - start < 5  # parsing took more than 20 s


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(make, server, status):
    thief = Server()
    threading.Thread(
        target=thief.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    ).start()
    server.script = [
        (status, b"", {"location": thief.url.replace("127.0.0.1", "localhost") + "/steal"})
    ]
    try:
        with pytest.raises(
            LLMError,
            match=f"bad request.*answered {status}, a redirect to "
            f"localhost:{thief.server_address[1]}, which is not followed",
        ):
            run_sync(make()(chat("SECRET PROMPT")))
    finally:
        thief.shutdown()
        thief.server_close()
    assert len(server.seen) == 1 and not thief.seen


def test_empty_account_is_not_repeated(make, server):
    server.script = [
        (
            429,
            {
                "error": {
                    "message": "quota",
                    "type": "insufficient_quota",
                    "code": "insufficient_quota",
                }
            },
            {},
        )
    ] * 9
    c = make()
    if c.name.startswith("anthropic"):
        pytest.skip("OpenAI's code")
    with pytest.raises(LLMError, match="no credit"):
        run_sync(c(chat("hello")))
    assert len(server.seen) == 1


def test_timeout(make, server):
    server.delay = 60.0
    with pytest.raises(
        LLMError, match="timeout"
    ):  # a client that waited the minute would have its answer
        run_sync(make(Limits(timeout=0.1, attempts=2, backoff=0.001))(chat("hello")))


def test_nobody_listens(make, server):
    c = make()
    server.shutdown()
    server.server_close()
    with pytest.raises(LLMError, match="connection"):
        run_sync(c(chat("hello")))


def test_key_never_shows(make, server, capsys):
    server.script = [
        (401, {"error": {"message": f"Incorrect API key provided: {SECRET}", "type": "e"}}, {})
    ]
    c = make()
    try:
        run_sync(c(chat("hello")))
    except LLMError as e:
        shown = "".join(traceback.format_exception(e)) + repr(e) + str(e.__cause__)
    assert SECRET not in shown and "sk-loopback" not in shown
    assert SECRET not in repr(c) + repr(c.ledger.to_dict()) + capsys.readouterr().err
    sent = {k.lower(): v for k, v in server.seen[0][1].items()}
    assert (SECRET in str(sent)) == (not c.name.startswith("vllm"))


def test_missing_keys_are_named(monkeypatch):
    for name, variable in (
        ("openai/gpt-5-mini", "OPENAI_API_KEY"),
        ("anthropic/claude-haiku-4-5", "ANTHROPIC_API_KEY"),
    ):
        monkeypatch.delenv(variable, raising=False)
        with pytest.raises(LLMError, match=variable):
            client(name)


def test_concurrency_is_bounded_and_order_kept(make, server):
    server.delay = 0.03
    c = make(Limits(concurrency=3, timeout=5, attempts=2, backoff=0.001))
    replies = run_sync(chat_all(c, [chat(str(i)) for i in range(12)]))
    assert [r.text for r in replies] == [f"you said: {i}" for i in range(12)]
    assert server.most <= 3


def test_one_client_over_many_event_loops(make):
    c = make()
    assert [asyncio.run(c(chat(w))).text for w in "abc"] == [f"you said: {w}" for w in "abc"]
    assert c.ledger.total.calls == 3


def test_batch_survives_its_unluckiest_member(make, server):
    server.script = [(400, ERROR, {})]
    replies = run_sync(chat_all(make(Limits(concurrency=1)), [chat("a"), chat("b")]))
    assert [type(r) for r in replies] == [LLMError, ChatReply]


def test_cancelling_leaves_nothing_behind(make, server):
    server.delay = 0.5

    async def hurried():
        task = asyncio.create_task(make()(chat("hello")))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return [t for t in asyncio.all_tasks() if t is not asyncio.current_task() and not t.done()]

    assert asyncio.run(hurried()) == []


def test_schema_reaches_the_provider(make, server):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    reply = run_sync(make()(chat('{"a": "b"}', schema=schema)))
    assert reply.parsed == {"a": "b"}
    assert schema in (
        server.seen[0][2].get("response_format", {}).get("json_schema", {}).get("schema"),
        server.seen[0][2].get("output_config", {}).get("format", {}).get("schema"),
    )


# ---- what can never succeed


@pytest.mark.parametrize(
    "request_, what",
    [
        (chat("half a character: \ud83d"), "surrogates not allowed"),
        (chat("hello", temperature=math.nan, top_p=math.nan), "JSON"),
        (chat(object()), "JSON"),
    ],
    ids=["surrogate", "nan", "object"],
)
def test_what_cannot_be_written_is_not_sent_and_not_repeated(make, server, request_, what):
    c = make(Limits(breaker=1, attempts=4, backoff=0.001))
    if c.name.startswith("openai"):
        request_ = replace(request_, temperature=None, top_p=None, seed=request_.temperature)
    with pytest.raises(LLMError, match=f"bad request: .*{what}") as e:
        run_sync(c(request_))
    assert (e.value.attempts, server.seen, c._breaker.outages, bool(c.ledger.total)) == (
        1,
        [],
        0,
        False,
    )
    assert run_sync(c(chat("hello"))).attempts == 1


@pytest.mark.parametrize(
    "url",
    [
        "notaurl",
        "127.0.0.1:8000/v1",
        "ftp://host/v1",
        "http://",
        "http://host:port/v1",
        "http://[::1/v1",
        "http://a b/v1",
        "http:///v1",
        "http://h/\n",
    ],
)
def test_an_address_that_is_none_is_refused_at_once(folder, monkeypatch, url):
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    for make in (
        lambda: client("vllm/tiny", base_url=url),
        lambda: client("anthropic/claude-haiku-4-5", base_url=url),
    ):
        with pytest.raises(
            LLMError, match="missing address: .* is no address of a server. Give one like http://"
        ):
            make()


@pytest.mark.parametrize("key", ["schlüssel-0123456789", "two words", "line\nbreak"])
def test_a_key_that_is_none_is_refused_at_once_and_not_shown(folder, monkeypatch, key):
    for name, variable in (
        ("openai/gpt-5-mini", "OPENAI_API_KEY"),
        ("anthropic/claude-haiku-4-5", "ANTHROPIC_API_KEY"),
        ("vllm/tiny", "VLLM_API_KEY"),
    ):
        monkeypatch.setenv(variable, key)
        with pytest.raises(LLMError, match=f"missing key: {variable} holds") as e:
            client(name, **({"base_url": "http://127.0.0.1:1/v1"} if name == "vllm/tiny" else {}))
        assert key not in str(e.value)


def test_a_connection_error_names_the_address_and_the_cause(make, server):
    c = make(Limits(attempts=1))
    server.shutdown()
    server.server_close()
    with pytest.raises(
        LLMError,
        match=rf"connection: {c.name} could not be asked at "
        rf"{server.url}/v1/(chat/completions|messages): .*[Cc]onnect.*\(",
    ):
        run_sync(c(chat("hello")))


def test_only_a_server_has_an_address(folder):
    for name in ("scripted/echo", "hf/model", "recorded/file.jsonl", "vllm-offline/model"):
        with pytest.raises(
            ConfigError,
            match=f"{name} answers in this process and has no address.*Leave base_url out",
        ):
            client(name, base_url="http://127.0.0.1:1/v1")


@pytest.mark.parametrize(
    "settings",
    [{"n": 0}, {"n": -1}, {"n": 1.5}, {"n": True}, {"max_tokens": 0}, {"n": "3"}],
    ids=str,
)
def test_a_request_for_nothing_is_refused(settings):
    with pytest.raises(
        ConfigError, match=f"request.{next(iter(settings))} must be a whole number, at least 1"
    ):
        chat("hello", **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"attempts": True},
        {"timeout": 0},
        {"timeout": math.nan},
        {"deadline": -1},
        {"backoff": -1},
        {"pause": -1},
        {"longest_wait": -2},
        {"breaker": -3},
        {"breaker": 2.5},
        {"requests_per_minute": 0},
        {"tokens_per_minute": "many"},
    ],
    ids=str,
)
def test_limits_are_checked(settings):
    with pytest.raises(ConfigError, match=f"limits.{next(iter(settings))} must be a"):
        Limits(**settings)
    assert Limits(backoff=0, pause=0, longest_wait=0, breaker=0, deadline=None, timeout=1)


@pytest.mark.parametrize("budget", [-1, math.nan, True, "5"])
def test_a_budget_is_checked(budget):
    with pytest.raises(ConfigError, match="ledger.budget must be a number, at least 0"):
        Ledger(budget=budget)
    assert Ledger(budget=0).budget == 0


# ---- patience: what a server asks for, and what the limits allow


def test_retry_after_may_be_a_date(make, server):
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)  # whole seconds
    server.script = [(429, ERROR, {"retry-after": date})]
    reply = run_sync(make(Limits(backoff=0.001, longest_wait=5.0))(chat("hello")))
    assert (reply.attempts, len(server.seen)) == (2, 2)
    assert 0.5 < server.times[1] - server.times[0] < 4


def test_one_refusal_pauses_the_whole_client(make, server):
    server.script = [(429, ERROR, {"retry-after": "0.5"})]
    c = make(Limits(concurrency=2, backoff=0.001))
    replies = run_sync(chat_all(c, [chat(str(i)) for i in range(12)]))
    assert [r.text for r in replies] == [f"you said: {i}" for i in range(12)]
    gaps = [b - a for a, b in zip(server.times, server.times[1:])]
    long = [i for i, gap in enumerate(gaps) if gap > 0.4]
    assert 0 < len(long) < 4  # one pause, not one for each question; a busy machine may add its own
    assert long[0] < 4  # at most what was under way came before it


class Timed(ScriptedClient):
    "Answers at once and notes when it was asked"

    def __init__(self, limits):
        super().__init__(lambda r: "twelve chars", limits=limits)
        self.times = []

    async def send(self, request):
        self.times.append(time.monotonic())
        return await super().send(request)


def test_requests_per_minute_are_spread(monkeypatch):
    c = Timed(Limits(concurrency=8, requests_per_minute=1200))
    virtual(chat_all(c, [chat(str(i)) for i in range(21)]), monkeypatch)
    assert 1.0 <= c.times[-1] - c.times[0] < 1.1
    assert max(sum(t <= other < t + 0.5 for other in c.times) for t in c.times) == 10


def test_tokens_per_minute_are_kept_and_what_is_not_used_is_given_back(monkeypatch):
    """Each question may take 302 tokens and takes 5: booked in full, ten would need 3 s after the first, instead of 0.05 s."""
    c = Timed(Limits(concurrency=1, tokens_per_minute=60_000))
    virtual(chat_all(c, [chat("hello", max_tokens=300)] * 11), monkeypatch)
    assert 0.05 <= c.times[-1] - c.times[0] < 0.1


def test_deadline_covers_retries_and_waits(make, server):
    c = make(Limits(deadline=2.1, attempts=99, backoff=0.001, breaker=0))
    run_sync(c(chat("import the SDK")))
    server.script = [(503, ERROR, {"retry-after": "0.2"})] * 99
    before = len(server.seen)
    with pytest.raises(LLMError, match="deadline of 2.1 s"):
        run_sync(c(chat("hello")))
    assert 1 < len(server.seen) - before < 20


def test_breaker_opens_and_closes(make, server):
    c = make(Limits(concurrency=4, attempts=3, backoff=0.001, breaker=5, pause=1.0))
    server.script = [(503, ERROR, {})] * 9
    replies = run_sync(chat_all(c, [chat(str(i)) for i in range(40)]))
    assert {r.kind for r in replies} <= {"server", "unavailable"} and replies[
        -1
    ].kind == "unavailable"
    assert (
        len(server.seen) <= 9
    )  # 5 to open it, 3 that were under way, 1 probe; without a breaker 120
    assert "has not answered since" in str(replies[-1]) and "tries again" in str(replies[-1])
    server.script, c._breaker.probe_at = [], 0.0  # as if the pause were over
    again = run_sync(chat_all(c, [chat(str(i)) for i in range(12)]))
    assert [r.text for r in again] == [f"you said: {i}" for i in range(12)]


def test_a_refusal_is_no_outage(make, server):
    server.script = [(400, ERROR, {}), (429, ERROR, {})] * 20
    c = make(Limits(concurrency=1, attempts=1, breaker=2))
    assert {r.kind for r in run_sync(chat_all(c, [chat("x")] * 40))} == {
        "bad request",
        "rate limit",
    }


def test_a_cancelled_probe_lets_the_next_one_through():
    async def scene():
        model = ScriptedClient(
            [LLMError("server", "down")],
            limits=Limits(attempts=1, breaker=1, pause=0.01, timeout=9),
        )
        with pytest.raises(LLMError):
            await model(chat("hello"))
        gate, sent = asyncio.Event(), []

        async def send(request):
            sent.append(request.messages[0]["content"])
            await gate.wait()
            return ChatReply("back", Usage(1))

        model.send = send
        tasks = {name: asyncio.create_task(model(chat(name))) for name in "ab"}
        await until(lambda: sent)
        probe, waiting = tasks.pop(sent[0]), tasks.popitem()[1]
        assert model._breaker.probing and not waiting.done()
        probe.cancel()
        gate.set()
        return (
            (await asyncio.wait_for(waiting, 5)).text,
            model._breaker.since,
            len(asyncio.all_tasks()),
        )

    assert asyncio.run(scene()) == ("back", None, 1)


# ---- money

PRICED = {"vllm/tiny": (1000.0, 10_000.0)}  # per million: 12 read and 3 written cost 0.042


def test_a_budget_is_never_exceeded_under_concurrency(make, server, monkeypatch):
    for name in ("vllm/tiny", "openai/gpt-5-mini", "anthropic/claude-haiku-4-5"):
        monkeypatch.setitem(prices, name, PRICED["vllm/tiny"])
    server.delay, purse = 0.01, Ledger(budget=1.0)
    c = make(Limits(concurrency=32), ledger=purse)
    replies = run_sync(chat_all(c, [chat("hello", max_tokens=10)] * 60))
    answered = [r for r in replies if isinstance(r, ChatReply)]
    refused = [r for r in replies if isinstance(r, LLMError)]
    assert (
        purse.spent == pytest.approx(0.042 * len(answered))
        and purse.spent <= 1.0
        and purse.reserved == 0.0
    )
    assert (
        len(server.seen) == len(answered) >= 18
    )  # all that certainly fit: the next might have cost 0.14
    assert (
        {r.kind for r in refused} == {"over budget"}
        and "of 1.0000" in str(refused[-1])
        and "Raise the budget" in str(refused[-1])
    )


def test_a_budget_shared_by_threads_holds(monkeypatch):
    monkeypatch.setitem(prices, "vllm/tiny", (0.0, 1e6))  # a dollar for each token written
    purse = Ledger(budget=100.0)

    def work():
        model = ScriptedClient(
            lambda r: "four", "vllm/tiny", ledger=purse, limits=Limits(concurrency=8)
        )
        asyncio.run(chat_all(model, [chat("hello", max_tokens=5)] * 40))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert not any(t.is_alive() for t in threads)
    assert 96.0 <= purse.spent <= 100.0 and purse.reserved == 0.0


def test_a_budget_needs_a_price(make, server):
    c = make(ledger=Ledger(budget=1.0))
    if not c.name.startswith("vllm"):
        pytest.skip("priced")
    with pytest.raises(LLMError, match=r"prices\['vllm/tiny'\]") as e:
        run_sync(c(chat("hello")))
    assert (e.value.kind, server.seen) == ("unknown price", [])


def test_an_answer_without_counts_is_charged_at_its_worst(make, server, monkeypatch):
    c = make(ledger=Ledger(budget=100.0))
    monkeypatch.setitem(prices, c.name, (0.0, 1e6))
    body = openai_body("yes") | {"usage": None}
    if c.name.startswith("anthropic"):
        body = anthropic_body("yes") | {"usage": {"input_tokens": 0, "output_tokens": 0}}
    server.script = [(200, body, {})]
    assert run_sync(c(chat("hello", max_tokens=7))).usage.cost == 7.0 == c.ledger.spent


def test_failed_answers_are_paid_for(make, server):
    server.script = [(200, "no", {}), (200, "no", {})]
    c = make()
    with pytest.raises(LLMError, match="bad answer"):
        run_sync(c(chat("hello", schema=SCHEMA)))
    assert (c.ledger.total.calls, c.ledger.total.tokens_in) == (2, 24)


def faulty(server, kind):
    """Let the server break every answer after it was made; give what the client needs for it."""
    server.script = (
        [(200, b'{"choices": [', {})] * 99
        if kind == "half a body"
        else [(200, None, {"content-length": "99999"})] * 99
    )
    server.delay = 1.5 if kind == "silence" else 0.0
    return Limits(
        concurrency=4,
        timeout=2.0 if kind == "half a body" else 0.6,
        attempts=4,
        backoff=0.001,
        breaker=0,
    )


@pytest.mark.parametrize("kind", ["half a body", "half an answer", "silence"])
def test_a_budget_holds_where_every_attempt_is_billed_and_none_is_answered(
    make, server, monkeypatch, kind
):
    for name in ("vllm/tiny", "openai/gpt-5-mini", "anthropic/claude-haiku-4-5"):
        monkeypatch.setitem(prices, name, (0.0, 100.0))  # ten cents for a thousand tokens written
    c = make(ledger=Ledger(budget=1.0))
    asyncio.run(c(chat("import the SDK", max_tokens=3)))  # with a loop and limits of its own
    c.limits = faulty(server, kind)
    replies = run_sync(
        chat_all(c, [chat(str(i), max_tokens=1000, caller="test") for i in range(30)])
    )
    assert (
        len(server.seen) == 10
    )  # one that was answered; the next might have been the eleventh dime
    assert c.ledger.entries["test", c.name].calls == 9 and c.ledger.spent == pytest.approx(
        0.9003, abs=1e-4
    )
    assert c.ledger.reserved == 0.0 and "over budget" in {r.kind for r in replies} <= {
        "over budget",
        "malformed",
        "connection",
        "timeout",
    }


@pytest.mark.parametrize("kind", ["half a body", "half an answer", "silence"])
def test_what_may_be_billed_is_counted_without_a_budget_too(make, server, kind):
    c = make()
    run_sync(c(chat("import the SDK")))
    c.limits = faulty(server, kind)
    with pytest.raises(LLMError):
        run_sync(c(chat("hello", max_tokens=100, caller="test")))
    entry = c.ledger.entries["test", c.name]
    assert (entry.calls, entry.tokens_in, len(server.seen)) == (4, 0, 5)
    assert entry.cost is None if c.name.startswith("vllm") else entry.cost > 4 * 100 * 1e-6


def test_refusals_and_a_server_that_is_not_there_cost_nothing(make, server):
    c = make()
    for status in (400, 401, 429, 500, 503):
        server.script = [(status, ERROR, {})] * 4
        with pytest.raises(LLMError):
            run_sync(c(chat("hello")))
    server.shutdown()
    server.server_close()
    with pytest.raises(LLMError, match="connection"):
        asyncio.run(
            c(chat("hello"))
        )  # another loop: the connections of the first one are still open
    assert not c.ledger.total


def test_a_connection_that_is_never_made_costs_nothing(make, monkeypatch):
    with socket.socket() as deaf, contextlib.ExitStack() as callers:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(9):  # its queue is full: who comes now hears nothing
            caller = callers.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(deaf.getsockname())
        c = vllm_client(
            "tiny",
            "http://127.0.0.1:%d/v1" % deaf.getsockname()[1],
            limits=Limits(timeout=0.5, attempts=1),
        )
        with pytest.raises(LLMError, match="timeout"):
            run_sync(c(chat("hello")))
    assert not c.ledger.total


def test_a_cancelled_attempt_and_a_deadline_are_on_the_bill(make, server, monkeypatch):
    c = make(Limits(deadline=60, concurrency=1))
    monkeypatch.setitem(prices, c.name, (0.0, 100.0))
    run_sync(c(chat("import the SDK", max_tokens=3)))
    before, server.delay = c.ledger.total, 60.0
    c.limits = replace(c.limits, deadline=1.0)
    with pytest.raises(LLMError, match="deadline"):
        run_sync(c(chat("hello", max_tokens=1000)))
    c.limits = replace(c.limits, deadline=60)

    async def hurried():
        tasks = [
            asyncio.create_task(c(chat("hello", max_tokens=1000))) for _ in range(5)
        ]  # four wait for their turn
        await until(lambda: len(server.seen) == 3)
        for t in tasks:
            t.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(hurried())
    assert c.ledger.total.calls - before.calls == 2 and c.ledger.spent == pytest.approx(
        0.2, abs=1e-3
    )


# ---- odd answers and odd counts


def polite(c, text="yes", **more):
    """A good answer in the provider's own form."""
    return (anthropic_body if c.name.startswith("anthropic") else openai_body)(text) | more


def with_content(c, content):
    """An answer whose text is something else."""
    body = polite(c)
    if "content" in body:
        body["content"][0]["text"] = content
    else:
        body["choices"][0]["message"]["content"] = content
    return json.dumps(body).encode().replace(b'"DEEP"', DEEP)


def with_counts(c, read, written):
    names = (
        ("input_tokens", "output_tokens")
        if c.name.startswith("anthropic")
        else ("prompt_tokens", "completion_tokens")
    )
    return polite(c, usage=dict(zip(names, (read, written))))


def odd_answers(c):
    """Answers with status 200 that are none: what each of them would have done to a whole batch before stands in the changelog."""
    logprobs = {
        "choices": [
            {
                "message": ["hi"],
                "logprobs": {"content": [{"token": 5, "logprob": "no", "top_logprobs": {}}]},
            }
        ]
    }
    yield from (
        with_content(c, odd)
        for odd in ([{"type": "text", "text": "hi"}], ["hi"], {"text": "hi"}, 5, True, "DEEP")
    )
    yield from (with_counts(c, odd, 3) for odd in ("lots", [], {"all": 5}))
    yield from (
        polite(c, usage="DEEP"),
        polite(c, usage="lots"),
        polite(c, usage=[1]),
        logprobs,
        {"error": {"message": "later", "code": {}}},
    )
    yield from (
        polite(c, **{key: odd})
        for key in ("choices", "content")
        for odd in ({"0": 1}, "abc", [None], ["hi"], 5, None)
        if key in polite(c)
    )


def test_an_odd_answer_is_malformed_and_asked_again_and_charged(make, server, monkeypatch):
    c = make(replace(FAST, breaker=0))
    monkeypatch.setitem(prices, c.name, (0.0, 100.0))
    for body in odd_answers(c):
        body = (
            body if isinstance(body, bytes) else json.dumps(body).encode().replace(b'"DEEP"', DEEP)
        )
        server.script, before = [(200, body, {})] * 2, c.ledger.total
        reply = run_sync(c(chat("hello", max_tokens=1000)))
        assert (reply.text, reply.attempts, c.ledger.total.calls - before.calls) == (
            "you said: hello",
            3,
            3,
        ), body[:200]
        assert c.ledger.spent - (before.cost or 0) == pytest.approx(2 * 0.1 + 3e-4), body[:200]
    server.script = [(200, with_content(c, "DEEP"), {})] * 9
    with pytest.raises(LLMError, match="malformed") as e:
        run_sync(c(chat("hello")))
    assert (e.value.kind, e.value.attempts, len(server.script)) == ("malformed", 4, 5)


@pytest.mark.filterwarnings("ignore:.*tokens that cannot be")
@pytest.mark.parametrize("seed", range(3))
def test_no_answer_however_odd_breaks_a_batch_or_lowers_the_ledger(make, server, monkeypatch, seed):
    rng, count = random.Random(seed), 60
    c = make(Limits(concurrency=4, timeout=20.0, attempts=1, breaker=0))
    monkeypatch.setitem(prices, c.name, (1.0, 100.0))
    body = with_counts(c, 12, 3) | {"humanlm": {"thoughts": ["hm"]}}
    server.script = [(200, odd_body(rng, body), {}) for _ in range(count)]
    question, spent = chat("hello", max_tokens=9), []
    record = c.ledger.record
    monkeypatch.setattr(
        c.ledger, "record", lambda *given: (record(*given), spent.append(c.ledger.spent))
    )
    replies = run_sync(chat_all(c, [question] * count))
    assert {r.kind for r in replies if isinstance(r, LLMError)} == {"malformed"}
    answered = [r for r in replies if isinstance(r, ChatReply)]
    assert len(answered) > 8 and all(
        isinstance(r.text, str) and r.text.encode() is not None for r in answered
    )
    assert c.ledger.total.calls == len(spent) == count and spent == sorted(spent)
    assert spent[0] > 0 and spent[-1] <= count * money.worst_cost(question, c.name) + 1e-9
    assert all(
        type(n) is int and n >= 0 for r in answered for n in (r.usage.tokens_in, r.usage.tokens_out)
    )


def test_a_refusal_with_an_odd_body_keeps_its_kind(make, server):
    c = make(Limits(attempts=1))
    for status, kind in ((400, "bad request"), (401, "auth"), (429, "rate limit"), (500, "server")):
        for body in (
            DEEP,
            b'{"error": ' + DEEP + b"}",
            b'{"error": {"code": {"a": []}, "message": 5}}',
            b"[1]",
            b"\xff",
        ):
            server.script = [(status, body, {"retry-after": "nan"})]
            with pytest.raises(LLMError) as e:
                run_sync(c(chat("hello")))
            assert e.value.kind == kind


@pytest.mark.filterwarnings("ignore:.*tokens that cannot be")
@pytest.mark.parametrize("odd", [-1_000_000, 1.5, True, math.nan, math.inf, 10**30, None], ids=str)
def test_a_count_that_cannot_be_is_the_most_that_it_can_be_with_a_note(
    make, server, monkeypatch, odd
):
    c, question = make(), chat("hello", max_tokens=7, caller="test")
    monkeypatch.setitem(prices, c.name, (1.0, 100.0))
    most = money._most_tokens(question)
    for counts, expected in (
        ((odd, 3), (most[0], 3)),
        ((12, odd), (12, most[1])),
        ((odd, odd), most),
    ):
        server.script = [(200, with_counts(c, *counts), {})]
        reply = run_sync(c(question))
        silent = counts == (odd, odd) and (
            odd is None or not math.isfinite(odd)
        )  # no number at all: nothing was counted
        assert (reply.usage.tokens_in, reply.usage.tokens_out) == ((0, 0) if silent else expected)
        assert (
            reply.usage.cost == pytest.approx(price(c.name, *expected))
            and (reply.notes == ()) == silent
        )
    if odd == -1_000_000:
        assert (
            reply.notes[0]
            == f"tokens read: {c.name} said -1000000, counted as {most[0]}, the most that "
            "the request allows"
        )
        assert "said -1000000" in reply._repr_html_()


@pytest.mark.filterwarnings("ignore:.*tokens that cannot be")
def test_counts_below_zero_do_not_make_a_budget_endless(make, server, monkeypatch):
    c = make(Limits(concurrency=4, breaker=0), ledger=Ledger(budget=0.5))
    monkeypatch.setitem(prices, c.name, (0.0, 1000.0))
    server.script = [(200, with_counts(c, -1_000_000, -1_000_000), {})] * 99
    replies = run_sync(chat_all(c, [chat("hello", max_tokens=100)] * 30))
    assert len(server.seen) == 5 and c.ledger.spent == pytest.approx(0.5)
    assert {r.kind for r in replies if isinstance(r, LLMError)} == {"over budget"}


@pytest.mark.filterwarnings("ignore:.*tokens that cannot be")
def test_a_note_about_a_count_survives_repair_several_answers_and_the_cache(make, server, tmp_path):
    c = make(cache=DiskCache(tmp_path))
    server.script = [(200, with_counts(c, -1, 3), {})]
    assert len(run_sync(c(chat("hello"))).notes) == 1
    again = run_sync(c(chat("hello")))
    assert again.cached and "said -1" in again.notes[0]
    server.script = [(200, with_counts(c, -1, 3), {}), (200, '{"a": "y"}', {})]
    assert "said -1" in run_sync(c(chat("hello", schema=SCHEMA))).notes[0]
    server.script = [(200, with_counts(c, -1, 3), {})]
    assert "said -1" in run_sync(c(chat("hello", n=2))).notes[0]


def test_nothing_can_be_taken_out_of_a_ledger():
    purse = Ledger({("a", "vllm/tiny"): Usage(1, 0, 5, 5, 0.5)})
    for odd in (
        Usage(1, cost=-0.1),
        Usage(1, cost=math.nan),
        Usage(1, 0, -5),
        Usage(-1),
        Usage(1, 0, 0, 1.5),
    ):
        with pytest.raises(ConfigError, match="ledger"):
            purse.record("a", "vllm/tiny", odd)
    assert purse.total == Usage(1, 0, 5, 5, 0.5)


def test_counts_of_what_answers_in_this_process_have_no_upper_bound():
    long = ScriptedClient(["a long answer"] * 2, "scripted/list")
    assert (
        run_sync(long(chat("hello", max_tokens=1))).usage.tokens_out == 4
        and long.ledger.total.tokens_out == 4
    )


# ---- prices of one's own


def test_prices_come_from_a_file(folder, monkeypatch):
    (folder / "prices.yaml").write_text("vllm/tiny: [0.25, 2]\nopenai/gpt-5-mini: [0, 0]\n")
    assert price("vllm/tiny", 1, 1) is None
    with pytest.raises(LLMError, match=r"'vllm/tiny: \[0.25, 2.0\]'.*HUMANLM_PRICES") as e:
        ask(ScriptedClient(["yes"], "vllm/tiny", ledger=Ledger(budget=1.0)), "hello")
    assert e.value.kind == "unknown price"
    monkeypatch.setenv("HUMANLM_PRICES", str(folder / "prices.yaml"))
    assert (
        price("vllm/tiny", 4e6, 1e6),
        price("openai/gpt-5-mini", 1, 1),
        price("scripted/x", 1, 1),
    ) == (3.0, 0.0, 0.0)
    reply = ask(ScriptedClient(["yes"], "vllm/tiny", ledger=Ledger(budget=1.0)), "hello")
    assert reply.usage.cost == pytest.approx((2 * 0.25 + 1 * 2) / 1e6)


def test_the_file_of_prices_may_be_named_beside_the_keys(folder):
    (folder / ".env").write_text("HUMANLM_PRICES=prices.yaml\n")
    (folder / "prices.yaml").write_text("vllm/tiny: [1, 2]\n")
    money._listed_prices.cache_clear()
    try:
        assert price("vllm/tiny", 1e6, 1e6) == 3.0
    finally:
        money._listed_prices.cache_clear()


@pytest.mark.parametrize(
    "text",
    [
        "vllm/tiny: 3",
        "vllm/tiny: [1, 2, 3]",
        "vllm/tiny: [1, -2]",
        "vllm/tiny: [.nan, 1]",
        "- a",
        "a: [",
        "vllm/tiny: [yes, 1]",
    ],
)
def test_a_bad_list_of_prices_is_named(folder, monkeypatch, text):
    (folder / "prices.yaml").write_text(text)
    monkeypatch.setenv("HUMANLM_PRICES", str(folder / "prices.yaml"))
    with pytest.raises(LLMError, match="prices.yaml"):
        price("vllm/tiny", 1, 1)


# ---- answers: several, noted, read, repaired

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "enum": ["x", "y"]}},
    "required": ["a"],
    "additionalProperties": False,
}


def test_several_answers(make, server):
    c = make()
    reply = run_sync(c(chat("hello", n=3, seed=5)))
    assert reply.texts == ("you said: hello",) * 3 and reply.text == reply.texts[0]
    alone = c.name.startswith("anthropic")
    assert (len(server.seen), reply.usage.calls, reply.usage.tokens_out) == (
        3 if alone else 1,
        3 if alone else 1,
        9,
    )
    assert (server.seen[0][2].get("n"), server.seen[0][2].get("seed")) == (
        (None, None) if alone else (3, 5)
    )
    assert len(reply.notes) == alone and c.ledger.total == reply.usage


def test_a_server_that_gives_fewer_answers_is_asked_for_the_rest(server):
    server.script = [(200, openai_body("one"), {}), (200, openai_body("two"), {})]
    reply = run_sync(
        vllm_client("tiny", server.url + "/v1", limits=FAST)(chat("hello", n=4, seed=5))
    )
    assert reply.texts == ("one", "two", "you said: hello", "you said: hello")
    assert [(asked["n"], asked["seed"]) for _, _, asked in server.seen] == [(4, 5), (3, 6), (2, 7)]


def test_several_answers_are_read_one_by_one_and_repaired_alone(make, server):
    c = make(Limits(concurrency=1))
    if c.name.startswith("anthropic"):
        server.script = [(200, text, {}) for text in ('{"a": "x"}', "no", '{"a": "y"}')]
    else:
        both = openai_body('{"a": "x"}', 2)
        both["choices"][1]["message"]["content"] = "no"
        server.script = [(200, both, {}), (200, '{"a": "y"}', {})]
    reply = run_sync(c(chat("hello", n=2, schema=SCHEMA)))
    assert reply.parsed == ({"a": "x"}, {"a": "y"}) and reply.texts == ('{"a": "x"}', '{"a": "y"}')


def test_a_bad_answer_is_repaired_once(make, server):
    server.script = [
        (200, '<think>{"a": "x"}</think> I like {"a": "z"}', {}),
        (200, '{"a": "y"}', {}),
    ]
    c = make()
    reply = run_sync(c(chat("hello", "be brief", schema=SCHEMA)))
    assert (reply.parsed, reply.attempts, reply.usage.calls, c.ledger.total.calls) == (
        {"a": "y"},
        2,
        2,
        2,
    )
    turns = [m for m in server.seen[1][2]["messages"] if m["role"] != "system"]
    assert [m["role"] for m in turns] == ["user", "assistant", "user"]
    assert turns[1]["content"] == 'I like {"a": "z"}' and "cannot be used" in turns[2]["content"]


def test_a_bad_answer_keeps_its_text(make, server):
    server.script = [(200, "no", {}), (200, '{"a": 1}', {})]
    with pytest.raises(LLMError) as e:
        run_sync(make()(chat("hello", schema=SCHEMA)))
    assert (e.value.kind, e.value.raw, e.value.attempts, e.value.retryable) == (
        "bad answer",
        '{"a": 1}',
        2,
        False,
    )


def test_a_cut_answer_says_so(make, server):
    body = (
        anthropic_body('{"a":', finish="max_tokens")
        if "anthropic" in make().name
        else openai_body('{"a":', finish="length")
    )
    server.script = [(200, body, {})] * 2
    with pytest.raises(LLMError, match="cut off at the token limit"):
        run_sync(make()(chat("hello", schema=SCHEMA)))
    assert "cut off" in server.seen[1][2]["messages"][-1]["content"]


def test_a_failure_while_repairing_keeps_the_first_answer(make, server):
    server.script = [(200, "no", {}), (400, ERROR, {})]
    with pytest.raises(LLMError, match="bad request") as e:
        run_sync(make()(chat("hello", schema=SCHEMA)))
    assert e.value.raw == "no"


def test_the_check_of_the_caller_is_the_last_word(make, server):
    def only_y(parsed):
        if parsed["a"] != "y":
            raise ValueError("Say y.")

    server.script = [(200, '{"a": "x"}', {}), (200, '{"a": "y"}', {})]
    assert run_sync(make()(chat("hello", schema=SCHEMA), check=only_y)).parsed == {"a": "y"}
    assert "Say y." in server.seen[1][2]["messages"][-1]["content"]


# ---- the cache hook


class Memory:
    """The smallest cache: exact, in this process."""

    def __init__(self):
        self.known, self.asked = {}, 0

    async def __call__(self, request, name, ask):
        key = (name, repr(replace(request, caller="")))
        if key in self.known:
            return replace(self.known[key], cached=True)
        self.asked += 1
        self.known[key] = await ask()
        return self.known[key]


def test_a_hit_needs_no_slot_and_no_budget(make, server, monkeypatch):
    c = make(Limits(concurrency=1, timeout=30), cache=Memory())
    monkeypatch.setitem(prices, c.name, PRICED["vllm/tiny"])

    async def scene():
        first = await c(chat("hello", caller="a"))
        c.ledger.budget = c.ledger.spent  # not a cent left
        async with c._slots.get():  # and no place in the queue
            return first, await c(chat("hello", caller="b"))

    first, second = asyncio.run(scene())
    assert (second.cached, second.text, len(server.seen)) == (True, first.text, 1)
    mine = c.ledger.entries["b", c.name]
    assert (mine.calls, mine.hits, mine.cost, mine.saved, mine.tokens_saved) == (
        0,
        1,
        0.0,
        first.usage.cost,
        15,
    )
    assert c.ledger.total.cold == pytest.approx(2 * first.usage.cost)


def test_only_good_answers_reach_the_cache(make, server):
    memory = Memory()
    c = make(cache=memory)
    server.script = [(200, "no", {}), (200, "no", {}), (200, "no", {}), (200, '{"a": "y"}', {})]
    question = chat("hello", schema=SCHEMA)
    with pytest.raises(LLMError, match="bad answer"):
        run_sync(c(question))
    assert memory.known == {}
    replies = [run_sync(c(question)) for _ in range(3)]
    assert [r.parsed for r in replies] == [{"a": "y"}] * 3 and [r.cached for r in replies] == [
        False,
        True,
        True,
    ]
    assert (len(server.seen), len(memory.known)) == (4, 1)


def test_a_stored_answer_passes_the_check_too(make, server):
    def never(parsed):
        raise ValueError("Not this one.")

    c = make(cache=Memory())
    server.script = [(200, '{"a": "y"}', {})]
    for question in (chat("hello", schema=SCHEMA), chat("hello")):
        run_sync(c(question))
        with pytest.raises(LLMError, match="stored answer.*Not this one.*refresh"):
            run_sync(c(question, check=never))


# ---- nothing is left behind


def left_over():
    return [t for t in asyncio.all_tasks() if t is not asyncio.current_task() and not t.done()]


def test_an_error_elsewhere_ends_a_batch_cleanly(make, server):
    server.delay = 0.3
    memory = Memory()
    c = make(Limits(concurrency=4), cache=memory)

    def check(text):
        if text.endswith("5"):
            raise ZeroDivisionError("a bug in the caller's check")

    async def scene():
        with pytest.raises(ExceptionGroup) as e:
            await chat_all(c, (chat(str(i)) for i in range(1000)), check)
        assert e.value.subgroup(ZeroDivisionError)
        return left_over()

    assert asyncio.run(scene()) == []
    assert (
        4 <= len(memory.known) < 12 and len(server.seen) < 20
    )  # what was finished is kept, the other 980 were never asked
    server.delay = 0
    assert isinstance(run_sync(c(chat("next"))), ChatReply)  # no slot was lost


def test_cancelling_a_waiting_call_gives_back_its_budget_and_slot(make, server, monkeypatch):
    server.delay = 1.0
    c = make(Limits(concurrency=2), ledger=Ledger(budget=1.0))
    monkeypatch.setitem(prices, c.name, PRICED["vllm/tiny"])

    async def scene():
        tasks = [asyncio.create_task(c(chat("hello", max_tokens=10))) for _ in range(6)]
        await until(lambda: len(server.seen) == 2)
        held = c.ledger.reserved
        for t in tasks:
            t.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return held, c.ledger.reserved, left_over(), c._slots.get()._value

    held, after, tasks, slots = asyncio.run(scene())
    assert held > 0 and (after, tasks, slots) == (0.0, [], 2)


def test_one_request_at_a_time_may_be_taken_from_an_endless_source():
    def endless():
        for i in itertools.count():
            if i == 100:
                raise KeyError("the source broke")
            yield chat(str(i))

    with pytest.raises(ExceptionGroup):
        run_sync(chat_all(ScriptedClient(lambda r: "ok"), endless()))


# ---- keys, addresses, names


def test_keys_from_a_file_are_used_and_never_shown(folder, server, capsys):
    odd = "plain-secret-without-prefix"
    (folder / ".env").write_text(f'OPENAI_API_KEY="{odd}"\nOPENAI_BASE_URL={server.url}/v1\n')
    (folder / "deeper").mkdir()
    os.chdir(folder / "deeper")
    c = OpenAIClient("gpt-5-mini", limits=FAST)
    server.script = [(401, {"error": {"message": f"Wrong key {odd}", "type": "e"}}, {})]
    try:
        run_sync(c(chat("hello")))
    except LLMError as e:
        shown = "".join(traceback.format_exception(e)) + repr(e)
    assert odd in str(server.seen[0][1]) and "OPENAI_API_KEY" not in os.environ
    assert odd not in shown + repr(c) + repr(c.ledger.to_dict()) + "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "data",
    [
        b"# keys\nOPENAI_API_KEY=plain-secret-\xff\n",
        "OPENAI_API_KEY=plain-secret\n".encode("utf-16"),
    ],
    ids=["byte", "utf-16"],
)
def test_a_file_of_keys_that_cannot_be_read_is_named_and_not_shown(folder, data):
    (folder / ".env").write_bytes(data)
    with pytest.raises(ConfigError, match=r"\.env, line \d: not UTF-8. Save") as e:
        protocol.setting("OPENAI_API_KEY")
    shown = "".join(traceback.format_exception(e.value)) + repr(
        (e.value, e.value.__cause__, e.value.__context__)
    )
    assert "plain-secret" not in shown and "p\\x00l" not in shown


def test_a_file_of_keys_may_begin_with_a_byte_order_mark(folder):
    (folder / ".env").write_bytes("OPENAI_API_KEY=plain-secret\n".encode("utf-8-sig"))
    assert protocol.setting("OPENAI_API_KEY") == "plain-secret"


def test_every_key_of_the_file_is_a_secret(folder):
    (folder / ".env").write_text(
        "VLLM_BASE_URL=http://127.0.0.1:1/v1\nOTHER_TOKEN=plain-other-token\n"
    )
    protocol.setting("VLLM_BASE_URL")
    assert protocol.without_keys("it is plain-other-token") == "it is [key]"


@pytest.mark.parametrize(
    "text, kept",
    [
        ("The Bearer certificate sk-estimator", True),
        ("sk-learn-compatible-estimators-in-general", True),
        ("Bearer 12345", True),
        ("sk-proj-0123456789abcdef", False),
        ("Bearer abcdefghij.klmnop-qrs0", False),
        ("sk-abc***********wxyz", False),
    ],
)
def test_what_looks_like_a_key_is_long_and_has_digits(folder, text, kept):
    assert (protocol.redact(text) == text) == kept
    assert protocol.without_keys(text) == text


def test_hiding_keys_takes_linear_time():
    start = time.process_time()
    protocol.redact("sk-" * 300_000)
    protocol.redact("Bearer " * 300_000)
    protocol.redact("Bearer" + " " * 300_000)
    assert time.process_time() - start < 2


def test_no_file_elsewhere_is_read(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "dotenv.main.find_dotenv", lambda *a, **k: asked.append(k.get("usecwd")) or ""
    )
    monkeypatch.setattr("dotenv.find_dotenv", lambda *a, **k: asked.append(k.get("usecwd")) or "")
    assert protocol.setting("OPENAI_API_KEY") is None and asked == [True]


def test_the_environment_comes_before_the_file(folder, monkeypatch):
    (folder / ".env").write_text("VLLM_BASE_URL=http://127.0.0.1:1/v1\n")
    assert client("vllm/tiny").base_url == "http://127.0.0.1:1/v1"
    monkeypatch.setenv("VLLM_BASE_URL", "http://127.0.0.1:2/v1")
    assert client("vllm/tiny").base_url == "http://127.0.0.1:2/v1"


def test_an_address_is_looked_up_in_order(folder, monkeypatch):
    with pytest.raises(LLMError, match="VLLM_BASE_URL"):
        client("vllm/tiny")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:4/v1")
    assert client("vllm/tiny").base_url.endswith(":4/v1")
    monkeypatch.setenv("VLLM_BASE_URL", "http://127.0.0.1:3/v1")
    assert client("vllm/tiny").base_url.endswith(":3/v1")
    (folder / "servers.yaml").write_text("tiny: http://127.0.0.1:2/v1\n")
    monkeypatch.setenv("HUMANLM_SERVERS", "servers.yaml")
    assert client("vllm/tiny").base_url.endswith(":2/v1") and client(
        "vllm/other"
    ).base_url.endswith(":3/v1")
    assert client("vllm/tiny", base_url="http://127.0.0.1:1/v1").base_url.endswith(":1/v1")


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "tiny: 8000", "\x00", "a: {b: c}"])
def test_a_bad_list_of_servers_is_named(folder, monkeypatch, text):
    (folder / "servers.yaml").write_text(text)
    monkeypatch.setenv("HUMANLM_SERVERS", "servers.yaml")
    with pytest.raises(LLMError, match="missing address.*servers.yaml"):
        client("vllm/tiny")
    monkeypatch.setenv("HUMANLM_SERVERS", "absent.yaml")
    with pytest.raises(LLMError, match="missing address.*absent.yaml"):
        client("vllm/tiny")


def test_a_key_goes_to_its_provider_or_where_the_users_variable_says(folder, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)

    async def where(name):
        return str(client(name)._sdk.get().base_url)

    assert run_sync(where("openai/gpt-5-mini")) == "https://api.openai.com/v1/"
    for name, variable, own in (
        ("openai/gpt-5-mini", "OPENAI_BASE_URL", "https://api.openai.com/v1"),
        ("anthropic/claude-haiku-4-5", "ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
    ):
        for other in (
            "http://127.0.0.1:1/v1",
            own.replace("https", "http"),
            own.replace("://", "://api@evil.example/"),
            own.replace(".com", ".com.evil.example"),
        ):
            with pytest.raises(
                LLMError,
                match=f"{name.split('/')[0].upper()}_API_KEY belongs to .*Set {variable} to "
                "send it there",
            ):
                client(name, base_url=other)
        monkeypatch.setenv(variable, "http://127.0.0.1:1/v1")
        assert (
            run_sync(where(name)) == "http://127.0.0.1:1/v1/"
            and asked_as(name) == "at http://127.0.0.1:1"
        )
        assert client(name, base_url=own).base_url == own and client(
            name, base_url="http://127.0.0.1:1/v1"
        ).base_url.endswith(":1/v1")
    assert client("vllm/tiny")._key == "none"


def test_a_plan_shows_where_the_questions_go(folder, monkeypatch, capsys):
    line = ["audit", "--judge.model", "gpt-5-mini", "--dry-run"]
    assert judges.main(line) == 0 and capsys.readouterr().out.rstrip().endswith(
        ", as openai/gpt-5-mini"
    )
    (folder / ".env").write_text("OPENAI_BASE_URL=https://gateway.example/v1\n")
    assert (
        judges.main(line) == 0
        and ", as openai/gpt-5-mini at https://gateway.example" in capsys.readouterr().out
    )
    assert (
        judges.main([*line[:2], "rule", *line[3:]]) == 0
        and "gateway" not in capsys.readouterr().out
    )


def test_providers_of_the_table_are_asked_by_name(folder, server, monkeypatch):
    monkeypatch.setenv("TOGETHER_API_KEY", SECRET)
    assert client("together_ai/meta/some-model").base_url == "https://api.together.xyz/v1"
    monkeypatch.setitem(addresses, "mine", (server.url + "/v1", "MINE_API_KEY"))
    with pytest.raises(LLMError, match="Set MINE_API_KEY"):
        client("mine/tiny")
    monkeypatch.setenv("MINE_API_KEY", "key-of-mine")
    wanted = {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}
    server.script = [(200, '{"a": 1}', {})] * 2
    reply = ask(client("mine/tiny", limits=FAST), "how many?", schema=wanted, n=2, max_tokens=9)
    assert (
        reply.parsed == ({"a": 1}, {"a": 1})
        and reply.model == "mine/tiny"
        and len(server.seen) == 2
    )
    _path, headers, asked = server.seen[0]
    assert (
        {k.lower(): v for k, v in headers.items()}["authorization"] == "Bearer key-of-mine"
        and asked["max_tokens"] == 9
        and "response_format" not in asked
    )
    with pytest.raises(LLMError, match="Did you mean 'together_ai'"):
        client("together/meta/some-model")
    with pytest.raises(LLMError, match="cannot go on with a text"):
        ask(client("mine/tiny"), BEGUN)


@pytest.mark.parametrize(
    "name, full",
    [
        ("gpt-5-mini", "openai/gpt-5-mini"),
        ("o1-mini", "openai/o1-mini"),
        ("o3", "openai/o3"),
        ("claude-haiku-4-5", "anthropic/claude-haiku-4-5"),
    ],
)
def test_a_model_that_only_one_provider_has_needs_no_provider(folder, monkeypatch, name, full):
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(variable, SECRET)
    with pytest.warns(UserWarning, match=f"{name} is asked as {full}"):
        assert client(name).name == full
    assert asked_as(name) == f"as {full}" and JudgeConfig(model=name).model == name
    assert str(estimate(name, 3, 10, 10)).partition("~$")[2] == str(
        estimate(full, 3, 10, 10)
    ).partition("~$")[2] + f", as {full}" * (price(full, 1, 1) is not None)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gpt4", "gemini-2.5", "o", "opus"])
def test_other_names_are_left_as_they_are(name):
    with pytest.raises(LLMError, match="Expected provider/model"):
        client(name)


def test_clients_of_other_packages_are_found_by_name(monkeypatch):
    class Entry:
        name = "mine"

        def load(self):
            return lambda model, **options: ScriptedClient(["hi"], f"mine/{model}", **options)

    monkeypatch.setattr(
        "importlib.metadata.entry_points",
        lambda group: [Entry()] if group == "humanlm.clients" else [],
    )
    names._plugins.cache_clear()
    try:
        assert "mine" in providers() and "mine" not in names.clients
        assert ask(client("mine/model"), "hello").text == "hi"
        with pytest.raises(LLMError, match="Did you mean 'mine'"):
            client("mime/model")
    finally:
        names._plugins.cache_clear()
        names.clients.pop("mine", None)


def test_ask_works_in_a_script_and_where_a_loop_is_running():
    model = ScriptedClient(lambda r: "yes")

    async def notebook_cell():
        return ask(model, "hello").text

    assert ask(model, "hello", caller="me").text == asyncio.run(notebook_cell()) == "yes"
    assert model.ledger.entries["me", model.name].calls == 1


def test_own_time_per_request_is_small():
    """Without a cache and without a network: about 0.04 ms; the bound leaves room for a slow machine."""

    class Instant(Client):
        async def send(self, request):
            return ChatReply("ok", Usage(1, 0, 10, 2, 0.0))

    best = []
    for _ in range(3):
        model, start = Instant("scripted/instant"), time.process_time()
        run_sync(chat_all(model, [chat(str(i)) for i in range(2000)]))
        best.append((time.process_time() - start) / 2000)
    assert min(best) < 0.0003


# ---- an answer that has been begun

BEGUN = ChatRequest(({"role": "user", "content": "what is 2 + 2?"},), prefill="2 + 2 is")


def test_a_server_is_told_to_go_on_with_what_was_begun():
    args = _openai_arguments(BEGUN, official=False)
    assert (
        args["messages"][-1] == {"role": "assistant", "content": "2 + 2 is"}
        and args["continue_final_message"]
        and args["add_generation_prompt"] is False
    )
    assert _anthropic_arguments(BEGUN)["messages"][-1] == {
        "role": "assistant",
        "content": "2 + 2 is",
    }
    plain = replace(BEGUN, prefill="")
    assert (
        "continue_final_message" not in _openai_arguments(plain, False)
        and len(_anthropic_arguments(plain)["messages"]) == 1
    )


def test_a_provider_that_cannot_go_on_with_a_text_refuses_before_it_is_asked(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(
        LLMError,
        match="openai/gpt-5-mini cannot go on with a text that has been begun.*Ask vllm/NAME",
    ):
        run_sync(OpenAIClient("gpt-5-mini")(BEGUN))
    with pytest.raises(LLMError, match="Leave out prefill or schema"):
        run_sync(ScriptedClient(["four"])(replace(BEGUN, schema={"type": "object"})))


def test_an_answer_that_was_begun_is_another_question_to_a_cache_and_none_is_the_same_as_before():
    assert request_key(BEGUN, "vllm/x") != request_key(replace(BEGUN, prefill=""), "vllm/x")
    assert request_key(replace(BEGUN, prefill=""), "vllm/x") == request_key(
        ChatRequest(BEGUN.messages), "vllm/x"
    )
