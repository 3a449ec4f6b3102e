"""The real OpenAI and Anthropic clients against a real HTTP server on loopback."""

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
import traceback
import tracemalloc
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from clock import until
from mangle import DEEP

from humanlm import judges
from humanlm.clients import names
from humanlm.clients.cache import DiskCache, cache_size
from humanlm.clients.client import ScriptedClient, chat_all
from humanlm.clients.ledger import Ledger, price, prices
from humanlm.clients.limits import Limits
from humanlm.clients.names import ask, asked_as, client, vllm_client
from humanlm.clients.protocol import KINDS, ChatReply, ChatRequest, LLMError, chat
from humanlm.clients.providers import (
    AnthropicClient,
    OpenAIClient,
    _anthropic_arguments,
    _openai_arguments,
    _openai_reply,
    addresses,
)
from humanlm.core.basics import ConfigError, run_sync

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
    """Plays a script of (status, body, headers) and answers politely when it is over.

    A body that is a text is what the model says.
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

    def do_GET(self):
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.end_headers()

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
def test_no_more_than_8_mb_are_read_of_an_answer(make, server, status):
    error, peak = malformed_once(make, server, status, b"x" * 30_000_000, {})
    assert (
        error.kind == "malformed"
        and "more than 8 MB" in str(error)
        and error.billed
        and peak < 25_000_000
    )


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
            match=f"bad request.*answered {status}",
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


# ---- patience: what a server asks for, and what the limits allow


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


def test_breaker_opens_and_closes(make, server):
    c = make(Limits(concurrency=4, attempts=3, backoff=0.001, breaker=5, pause=1.0))
    server.script = [(503, ERROR, {})] * 12
    replies = run_sync(chat_all(c, [chat(str(i)) for i in range(40)]))
    assert {r.kind for r in replies} <= {"server", "unavailable"} and replies[
        -1
    ].kind == "unavailable"
    assert len(server.seen) <= 12  # 5 to open it, 3 under way, 4 after the pause; else 120
    server.script, c._breaker.again = [], 0.0  # as if the pause were over
    again = run_sync(chat_all(c, [chat(str(i)) for i in range(12)]))
    assert [r.text for r in again] == [f"you said: {i}" for i in range(12)]


def test_a_refusal_is_no_outage(make, server):
    server.script = [(400, ERROR, {}), (429, ERROR, {})] * 20
    c = make(Limits(concurrency=1, attempts=1, breaker=2))
    assert {r.kind for r in run_sync(chat_all(c, [chat("x")] * 40))} == {
        "bad request",
        "rate limit",
    }


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


def test_the_published_default_models_have_a_price():
    for name, both in (
        ("gpt-4o-mini", 0.15 + 0.60),
        ("gpt-4o", 2.5 + 10),
        ("gpt-4o-2024-11-20", 2.5 + 10),
        ("o1-2024-12-17", 15 + 60),
    ):
        assert price(f"openai/{name}", 10**6, 10**6) == pytest.approx(both)
    for name in ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"):
        assert price(f"anthropic/{name}", 10**6, 10**6) == pytest.approx(3 + 15)


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
            f"http://127.0.0.1:{deaf.getsockname()[1]}/v1",
            limits=Limits(timeout=0.5, attempts=1),
        )
        with pytest.raises(LLMError, match="timeout"):
            run_sync(c(chat("hello")))
    assert not c.ledger.total


def test_a_cancelled_attempt_is_on_the_bill(make, server, monkeypatch):
    c = make(Limits(concurrency=1))
    monkeypatch.setitem(prices, c.name, (0.0, 100.0))
    run_sync(c(chat("import the SDK", max_tokens=3)))
    before, server.delay = c.ledger.total, 60.0

    async def hurried():
        tasks = [
            asyncio.create_task(c(chat("hello", max_tokens=1000))) for _ in range(5)
        ]  # four wait for their turn
        await until(lambda: len(server.seen) == 2)
        for t in tasks:
            t.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(hurried())
    assert c.ledger.total.calls - before.calls == 1
    assert c.ledger.spent == pytest.approx(0.1, abs=1e-3)


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
    """Answers with status 200 that are none: what each of them would have done to a whole batch
    before stands in the changelog."""
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
        for odd in (
            [["hi"]],
            [{"type": "text"}],
            [{"type": "text", "text": ["hi"]}],
            {},
            5,
            True,
            "DEEP",
        )
    )
    yield from (with_counts(c, odd, 3) for odd in ("lots", [], {"all": 5}))
    yield from (
        polite(c, usage="DEEP"),
        polite(c, usage="lots"),
        polite(c, usage=[1]),
        logprobs,
    )
    yield from (
        polite(c, **{key: odd})
        for key in ("choices", "content")
        for odd in ({"0": 1}, [5], 5, None)
        if key in polite(c)
    )
    yield from (polite(c, choices=odd) for odd in ([], "abc", ["hi"]) if "choices" in polite(c))


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


def ended(word, text="half an ans"):
    return openai_body(text, finish=word) | anthropic_body(text, finish=word)


FAILURES = [  # with status 200
    (ended("error"), "server"),
    ({"error": {"code": 502, "message": "Provider returned error"}}, "server"),
    ({"error": "Loading model"}, "server"),
    ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "server"),
    ({"error": {"message": "later", "code": {}}}, "server"),
    (ended("stop") | {"error": {"code": "503", "message": "upstream"}}, "server"),
    ({"choices": [{"error": {"code": 502}, "message": {"content": "hal"}}]}, "server"),
    ({"error": {"code": 429, "message": "Rate limit exceeded"}, "choices": None}, "rate limit"),
    ({"error": {"code": 402, "message": "Insufficient credits"}}, "no credit"),
    ({"error": {"code": "429", "type": "insufficient_quota", "message": "quota"}}, "no credit"),
    ({"error": {"type": "billing_error", "message": "pay"}}, "no credit"),
    (
        {"error": {"type": "invalid_request_error", "message": "Your credit balance is too low"}},
        "no credit",
    ),
    ({"object": "error", "message": "too long", "code": 400}, "bad request"),
]


@pytest.mark.parametrize("body, kind", FAILURES)
def test_a_failure_inside_a_200_is_one(make, server, tmp_path, body, kind):
    c = make(replace(FAST, attempts=2), cache=DiskCache(tmp_path / "replies"))
    server.script = [(200, json.dumps(body).encode(), {})]
    try:
        reply = run_sync(c(chat("hello")))
        again = KINDS[kind] and (reply.text, reply.attempts) == ("you said: hello", 2)
        assert again and c.ledger.total.calls == 1  # the failure is not on the bill
    except LLMError as e:
        assert (e.kind, e.attempts) == (kind, 1) and not KINDS[kind]
        assert c.ledger.total.calls == 0 and cache_size(c.cache) == 0


@pytest.mark.parametrize(
    "message, text, finish",
    [
        ([{"type": "text", "text": "hi"}], "hi", "stop"),
        (
            [
                {"type": "thinking", "thinking": [{"type": "text", "text": "h"}]},
                {"type": "text", "text": "hi"},
            ],
            "hi",
            "stop",
        ),
        ([{"type": "text", "text": "h"}, {"type": "text", "text": "i"}], "hi", "stop"),
        (
            [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "hi"}],
            "hi",
            "stop",
        ),
        ([], "", "stop"),
        ({"content": None, "reasoning_content": "h"}, "", "stop"),
        ({"content": "hi", "reasoning": "h", "refusal": None}, "hi", "stop"),
        ({"content": None, "refusal": "I cannot."}, "I cannot.", "refusal"),
    ],
)
def test_content_in_parts_is_its_text(message, text, finish):
    message = message if isinstance(message, dict) else {"content": message}
    body = {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": "stop"}]}
    reply = _openai_reply(body, "vllm/m")
    assert (reply.text, reply.finish) == (text, finish)


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


# ---- answers: several, noted, read, repaired

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "enum": ["x", "y"]}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [-1, -0.1, float("nan")])
def test_a_temperature_that_is_none_is_refused_before_anybody_is_asked(temperature):
    with pytest.raises(ConfigError, match="temperature"):
        chat("hello", temperature=temperature)


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


def test_a_stored_answer_passes_the_check_too(make, server):
    def never(parsed):
        raise ValueError("Not this one.")

    c = make(cache=Memory())
    server.script = [(200, '{"a": "y"}', {})]
    for question in (chat("hello", schema=SCHEMA), chat("hello")):
        run_sync(c(question))
        with pytest.raises(LLMError, match="stored answer.*Not this one"):
            run_sync(c(question, check=never))


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


def test_an_address_is_looked_up_in_order(folder, monkeypatch):
    with pytest.raises(LLMError, match="VLLM_BASE_URL"):
        client("vllm/tiny")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:4/v1")
    assert client("vllm/tiny").base_url.endswith(":4/v1")
    monkeypatch.setenv("VLLM_BASE_URL", "http://127.0.0.1:3/v1")
    assert client("vllm/tiny").base_url.endswith(":3/v1")
    assert client("vllm/tiny", base_url="http://127.0.0.1:1/v1").base_url.endswith(":1/v1")


def test_vllm_finds_its_server_or_runs_in_this_process_and_says_which(server, monkeypatch):
    for name in ("VLLM_BASE_URL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(names, "USUAL", f"{server.url}/v1")
    with pytest.warns(UserWarning, match="where a server answers"):
        assert client("vllm/org/tiny", limits=FAST).base_url == f"{server.url}/v1"
    monkeypatch.setattr(names, "USUAL", "http://127.0.0.1:9/v1")
    with pytest.raises(LLMError, match="vllm serve org/tiny"):
        client("vllm/org/tiny")


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


def test_ask_works_in_a_script_and_where_a_loop_is_running():
    model = ScriptedClient(lambda r: "yes")

    async def notebook_cell():
        return ask(model, "hello").text

    assert ask(model, "hello", caller="me").text == asyncio.run(notebook_cell()) == "yes"
    assert model.ledger.entries["me", model.name].calls == 1


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
