"""The real OpenAI and Anthropic clients against a real HTTP server on loopback."""
import asyncio
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from humanlm.data import run_sync
from humanlm.llm import AnthropicClient, ChatReply, Limits, LLMError, OpenAIClient, chat, chat_all, client, vllm_client

SECRET = "sk-loopback-0123456789abcdef"
FAST = Limits(concurrency=8, timeout=5.0, attempts=4, backoff=0.001, longest_wait=0.05)


def openai_body(text):
    return {"id": "c1", "object": "chat.completion", "created": 0, "model": "tiny", "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15},
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}]}


def anthropic_body(text):
    return {"id": "m1", "type": "message", "role": "assistant", "model": "tiny", "stop_reason": "end_turn", "stop_sequence": None,
            "content": [{"type": "text", "text": text}], "usage": {"input_tokens": 12, "output_tokens": 3}}


class Server(ThreadingHTTPServer):
    """Plays a script of (status, body, headers) and answers politely when it is over."""
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.seen, self.lock, self.delay, self.busy, self.most = [], [], threading.Lock(), 0.0, 0, 0
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
            status, body, headers = server.script.pop(0) if server.script else (200, None, {})
            server.busy += 1
            server.most = max(server.most, server.busy)
        time.sleep(server.delay)
        with server.lock:
            server.busy -= 1
        if body is None:
            body = (anthropic_body if self.path.endswith("/messages") else openai_body)(f"you said: {asked['messages'][-1]['content']}")
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(params=["vllm", "openai", "anthropic"])
def make(request, server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    build = {"vllm": lambda **k: vllm_client("tiny", server.url + "/v1", **k),
             "openai": lambda **k: OpenAIClient("gpt-5-mini", server.url + "/v1", **k),
             "anthropic": lambda **k: AnthropicClient("claude-haiku-4-5", server.url, **k)}[request.param]
    return lambda limits=FAST, **k: build(limits=limits, **k)


ERROR = {"error": {"message": "not now", "type": "error", "code": None}}


def test_success(make, server):
    c = make()
    reply = run_sync(c(chat("hello", "be brief", temperature=0.5, max_tokens=9, stop=("x",), caller="test")))
    assert reply.text == "you said: hello"
    assert (reply.usage.calls, reply.usage.tokens_in, reply.usage.tokens_out, reply.attempts) == (1, 12, 3, 1)
    assert c.ledger.entries["test", c.name].tokens_in == 12
    path, headers, asked = server.seen[0]
    assert asked.get("temperature") == (None if c.name.startswith("openai") else 0.5)  # gpt-5 takes none
    assert len(reply.notes) == (2 if c.name.startswith("openai") else 0)
    assert asked["model"] == c.model
    if path.endswith("/messages"):
        assert (asked["system"], asked["max_tokens"], asked["stop_sequences"]) == ("be brief", 9, ["x"])
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
    assert (e.value.kind, e.value.status, e.value.attempts, len(server.seen)) == ("server", 500, 4, 4)


@pytest.mark.parametrize("body, kind", [(b"<html>bad gateway</html>", "text/html"), (b'{"choices": [', "application/json"), (b"", "application/json"),
                                        (b"[1, 2]", "application/json"), (b"null", "application/json"), (b'{"unexpected": 1}', "application/json")])
def test_garbage_body_is_malformed_and_asked_again(make, server, body, kind):
    server.script = [(200, body, {"content-type": kind})] * 2
    reply = run_sync(make()(chat("hello")))
    assert (reply.text, reply.attempts) == ("you said: hello", 3)
    server.script = [(200, body, {"content-type": kind})] * 9
    with pytest.raises(LLMError, match="malformed"):
        run_sync(make()(chat("hello")))


@pytest.mark.parametrize("status, kind", [(401, "auth"), (403, "auth"), (400, "bad request"), (404, "bad request"), (402, "no credit")])
def test_hopeless_errors_are_not_repeated(make, server, status, kind):
    server.script = [(status, {"error": {"message": f"Incorrect API key provided: {SECRET}", "type": "e"}}, {})] * 9
    with pytest.raises(LLMError) as e:
        run_sync(make()(chat("hello")))
    assert (e.value.kind, len(server.seen)) == (kind, 1)


def test_empty_account_is_not_repeated(make, server):
    server.script = [(429, {"error": {"message": "quota", "type": "insufficient_quota", "code": "insufficient_quota"}}, {})] * 9
    c = make()
    if c.name.startswith("anthropic"):
        pytest.skip("OpenAI's code")
    with pytest.raises(LLMError, match="no credit"):
        run_sync(c(chat("hello")))
    assert len(server.seen) == 1


def test_timeout(make, server):
    server.delay = 1.0
    start = time.perf_counter()
    with pytest.raises(LLMError, match="timeout"):
        run_sync(make(Limits(timeout=0.1, attempts=2, backoff=0.001))(chat("hello")))
    assert time.perf_counter() - start < 4  # two attempts and the import of the SDK


def test_nobody_listens(make, server):
    c = make()
    server.shutdown()
    server.server_close()
    with pytest.raises(LLMError, match="connection"):
        run_sync(c(chat("hello")))


def test_key_never_shows(make, server, capsys):
    server.script = [(401, {"error": {"message": f"Incorrect API key provided: {SECRET}", "type": "e"}}, {})]
    c = make()
    import traceback
    try:
        run_sync(c(chat("hello")))
    except LLMError as e:
        shown = "".join(traceback.format_exception(e)) + repr(e) + str(e.__cause__)
    assert SECRET not in shown and "sk-loopback" not in shown
    assert SECRET not in repr(c) + repr(c.ledger.to_dict()) + capsys.readouterr().err
    sent = {k.lower(): v for k, v in server.seen[0][1].items()}
    assert (SECRET in str(sent)) == (not c.name.startswith("vllm"))


def test_missing_keys_are_named(monkeypatch):
    for name, variable in (("openai/gpt-5-mini", "OPENAI_API_KEY"), ("anthropic/claude-haiku-4-5", "ANTHROPIC_API_KEY")):
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
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
    reply = run_sync(make()(chat('{"a": "b"}', schema=schema)))
    assert reply.parsed == {"a": "b"}
    assert schema in (server.seen[0][2].get("response_format", {}).get("json_schema", {}).get("schema"), server.seen[0][2].get("output_config", {}).get("format", {}).get("schema"))
