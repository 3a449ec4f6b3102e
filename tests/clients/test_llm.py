"""The real OpenAI and Anthropic clients against a real HTTP server on loopback."""

import asyncio
import json
import os
import threading
import time
import traceback
import tracemalloc
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from clock import until

from humanlm.clients.cache import DiskCache
from humanlm.clients.client import ScriptedClient, chat_all
from humanlm.clients.ledger import Ledger, prices
from humanlm.clients.limits import Limits
from humanlm.clients.names import ask, asked_at, client, vllm_client
from humanlm.clients.protocol import KINDS, ChatReply, ChatRequest, LLMError, Usage, chat
from humanlm.clients.providers import (
    AnthropicClient,
    OpenAIClient,
    _anthropic_arguments,
    _openai_arguments,
    addresses,
)
from humanlm.core.basics import run_sync

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
    assert (reply.usage.calls, reply.usage.tokens_in, reply.usage.tokens_out) == (1, 12, 3)
    assert c.ledger.entries["test", c.name].tokens_in == 12
    path, _headers, asked = server.seen[0]
    assert asked.get("temperature") == (
        None if c.name.startswith("openai") else 0.5
    )  # gpt-5 takes none
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
    assert (reply.text, len(server.seen)) == ("you said: hello", 3)


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
    assert (reply.text, len(server.seen)) == ("you said: hello", 3)
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


def test_timeout(make, server):
    server.delay = 60.0
    with pytest.raises(
        LLMError, match="timeout"
    ):  # a client that waited the minute would have its answer
        run_sync(make(Limits(timeout=0.1, attempts=2, backoff=0.001))(chat("hello")))


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


def test_one_client_over_many_event_loops(make):
    c = make()
    assert [asyncio.run(c(chat(w))).text for w in "abc"] == [f"you said: {w}" for w in "abc"]
    assert c.ledger.total.calls == 3


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
        "http://host:port/v1",
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


def test_an_answer_without_counts_is_charged_at_its_worst(make, server, monkeypatch):
    c = make(ledger=Ledger(budget=100.0))
    monkeypatch.setitem(prices, c.name, (0.0, 1e6))
    body = openai_body("yes") | {"usage": None}
    if c.name.startswith("anthropic"):
        body = anthropic_body("yes") | {"usage": {"input_tokens": 0, "output_tokens": 0}}
    server.script = [(200, body, {})]
    assert run_sync(c(chat("hello", max_tokens=7))).usage.cost == 7.0 == c.ledger.spent


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


def ended(word, text="half an ans"):
    return openai_body(text, finish=word) | anthropic_body(text, finish=word)


FAILURES = [  # with status 200
    (ended("error"), "server"),
    ({"error": {"code": 502, "message": "Provider returned error"}}, "server"),
    ({"choices": [{"error": {"code": 502}, "message": {"content": "hal"}}]}, "server"),
    ({"error": {"code": 429, "message": "Rate limit exceeded"}, "choices": None}, "rate limit"),
    ({"error": {"code": 402, "message": "Insufficient credits"}}, "no credit"),
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
        again = "again" in KINDS[kind] and (reply.text, len(server.seen)) == ("you said: hello", 2)
        assert again and c.ledger.total.calls == 1  # the failure is not on the bill
    except LLMError as e:
        assert (e.kind, len(server.seen)) == (kind, 1) and "again" not in KINDS[kind]
        assert c.ledger.total.calls == 0 and len(c.cache) == 0


# ---- prices of one's own


# ---- answers: several, noted, read, repaired


# ---- the cache hook


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
        for other in ("http://127.0.0.1:1/v1", own.replace("://", "://api@evil.example/")):
            with pytest.raises(LLMError, match="_API_KEY belongs to "):
                client(name, base_url=other)
        monkeypatch.setenv(variable, "http://127.0.0.1:1/v1")
        assert (
            run_sync(where(name)) == "http://127.0.0.1:1/v1/"
            and asked_at(name) == "at http://127.0.0.1:1"
        )
        assert client(name, base_url=own).base_url == own and client(
            name, base_url="http://127.0.0.1:1/v1"
        ).base_url.endswith(":1/v1")
    assert client("vllm/tiny")._key == "none"


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
    assert reply.parsed == ({"a": 1}, {"a": 1}) and len(server.seen) == 2
    _path, headers, asked = server.seen[0]
    assert (
        {k.lower(): v for k, v in headers.items()}["authorization"] == "Bearer key-of-mine"
        and asked["max_tokens"] == 9
        and "response_format" not in asked
    )


def test_answers_of_a_client_without_n_are_asked_at_once():
    class Slow(ScriptedClient):
        under_way = 0

        async def send(self, request):
            self.under_way += 1
            await asyncio.sleep(0.01)
            return ChatReply(f"{self.under_way} {request.seed}", Usage(1))

    assert ask(Slow([]), "hi", n=3, seed=7).texts == ("3 7", "3 8", "3 9")


# ---- an answer that has been begun

BEGUN = ChatRequest(({"role": "user", "content": "what is 2 + 2?"},), prefill="2 + 2 is")


def test_a_server_is_told_to_go_on_with_what_was_begun():
    args = _openai_arguments(BEGUN, "tram", official=False)
    assert (
        args["messages"][-1] == {"role": "assistant", "content": "2 + 2 is"}
        and args["continue_final_message"]
        and args["add_generation_prompt"] is False
    )
    assert _anthropic_arguments(BEGUN, "tram")["messages"][-1] == {
        "role": "assistant",
        "content": "2 + 2 is",
    }
    plain = replace(BEGUN, prefill="")
    assert (
        "continue_final_message" not in _openai_arguments(plain, "tram", False)
        and len(_anthropic_arguments(plain, "tram")["messages"]) == 1
    )
