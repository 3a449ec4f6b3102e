"""A chat server for tests and benches, in a process of its own: slow, limited, faulty or down, as
it is told.

    with serving(latency=0.05, faults={"500": 0.1, "stall": 0.1}) as server:
        model = vllm_client("tiny", server.url)
        ...
        server.configure(down="503")     # any field of `Config`, while it runs
        server.stats()["requests"]       # seen since the start or the last `server.reset()`

It speaks enough of OpenAI's chat completions for the real SDKs: HTTP/1.1 with kept connections,
on loopback. What goes wrong with a request depends on its content, on how often that content
was sent before, and on the seed, never on timing, so that a failing run fails again. Questions
that hold a judge's "candidates" get a judge's answer, in which each candidate has the number
that its text states ("... 0.37 ..."; without one, a number that depends on the text): a score
that reaches the wrong candidate is found. All else is echoed, or answered with one text that
the settings give.

The tests in test_llm.py script single replies from within their own process instead. This file,
run as a command, is the server; it ends when its standard input does, which is when the process
that started it ends in any way.
"""

import asyncio
import contextlib
import hashlib
import http.client
import json
import math
import re
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace

from clock import wait_until

NO_COMPLETION = ("429 wait", "429", "500", "503", "drop", "stall")
HTTP_FAULTS = (*NO_COMPLETION, "empty body", "truncated body")
ANSWER_FAULTS = ("wrong count", "strings", "nan", "duplicates", "prose", "truncated answer")
FAULTS = HTTP_FAULTS + ANSWER_FAULTS


@dataclass(frozen=True)
class Config:
    latency: float = 0.0  # seconds before each answer
    rate: float = 0.0  # requests per second that it allows, 429 for more; 0: any number
    burst: int = 1  # requests that it allows at once after a pause
    retry_after: bool = True  # whether such a 429 says how long to wait
    wait: float = 0.02  # seconds that an injected "429 wait" asks for
    faults: dict = field(
        default_factory=dict
    )  # one of `FAULTS` → its probability; the sum is at most 1
    fault_attempts: int = (
        1_000_000  # content that was sent this often already is answered without a fault
    )
    seed: int = 0  # of the faults
    says: str = ""  # to what is no judge's question; empty: what it was told
    down: str = ""  # "503": that to everything; "refused": nobody listens

    def __post_init__(self):
        unknown = set(self.faults) - set(FAULTS)
        assert not unknown and sum(self.faults.values()) <= 1.000001, (
            f"bad faults: {unknown or self.faults}"
        )
        assert self.down in ("", "503", "refused"), self.down


# ---- what it answers

NUMBER = re.compile(r"\d\.\d+")


def candidates_of(messages):
    "The candidates of a judge's question: label → text; None if the messages ask something else"
    for message in messages:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            found = json.loads(message["content"])["candidates"]
            if isinstance(found, dict):
                return found


def stated(text):
    "The number that a candidate's text states"
    found = NUMBER.search(text)
    return float(found[0]) if found else zlib.crc32(text.encode("utf-8", "replace")) % 101 / 100


def verdict(id, value):
    return {
        "id": id,
        "matches": [value],
        "penalty": 0.0,
        "score": value,
        "reason": f"it states {value}",
    }


def judge_answer(candidates, fault=""):
    "A judge's answer as text, with one fault of `ANSWER_FAULTS`"
    verdicts = [verdict(id, stated(text)) for id, text in candidates.items()]
    if fault == "wrong count":
        verdicts = verdicts[1:]
    if fault == "duplicates":
        verdicts.append(verdict(verdicts[0]["id"], 1 - verdicts[0]["score"]))
    if fault == "nan":
        verdicts[-1] |= {"matches": [math.nan], "score": math.nan}
    if fault == "strings":
        verdicts = [
            v | {"matches": [str(v["score"])], "penalty": "0", "score": str(v["score"])}
            for v in verdicts
        ]
    text = json.dumps({"key_points": ["the number"], "verdicts": verdicts})
    if fault == "prose":
        return (
            f'Here is {{my}} answer, with "care":\n```json\n{text}\n```\nI hope that it '
            f"helps {{you}}."
        )
    return text[: len(text) * 3 // 5] if fault == "truncated answer" else text


def answer(messages, fault="", says=""):
    "The text that the model would say"
    candidates = candidates_of(messages)
    if candidates:
        return judge_answer(candidates, fault)
    said = says or str(messages[-1]["content"])
    return said[: len(said) // 2] if fault in ANSWER_FAULTS else said


def completion(model, messages, text, finish="stop"):
    "The body of an answer; a token is four characters"
    read, written = (-(-n // 4) for n in (sum(len(str(m["content"])) for m in messages), len(text)))
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}
        ],
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        },
    }


def choose(faults, seed, digest, attempt):
    "The fault of this content at this attempt, or none"
    point = (
        int.from_bytes(
            hashlib.blake2b(b"%d/%d/%b" % (seed, attempt, digest), digest_size=7).digest(), "big"
        )
        / 2**56
    )
    for name, share in faults.items():
        point -= share
        if point < 0:
            return name
    return ""


# ---- the server's process

DROP, STALL = "close the connection", "never answer"
REASONS = {
    200: "OK",
    404: "Not Found",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def response(status, body=b"", headers=""):
    return (
        f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: "
        f"application/json\r\ncontent-length: {len(body)}\r\n"
        f"{headers}\r\n"
    ).encode() + body


def error(status, headers=""):
    return response(
        status, b'{"error": {"message": "not now", "type": "injected", "code": null}}', headers
    )


class Model:
    "State of the server: its configuration, what it has seen, and the connections that are open"

    def __init__(self):
        self.config, self.open, self.busy = Config(), set(), 0
        self.reset()

    def reset(self):
        self.counts, self.sent, self.answered, self.arrivals = Counter(), Counter(), Counter(), []
        self.most = self.busy
        self.free_at = 0.0  # when the next request is allowed, if there is a limit

    def stats(self):
        first, last = (self.arrivals[0], self.arrivals[-1]) if self.arrivals else (0.0, 0.0)
        return {
            **self.counts,
            "requests": len(self.arrivals),
            "busy": self.busy,
            "most at once": self.most,
            "distinct": len(self.sent),
            "distinct answered": len(self.answered),
            "most answers to one": max(self.answered.values(), default=0),
            "seconds": last - first,
            "busiest second": busiest_second(self.arrivals),
        }

    def over_rate(self, now):
        "Seconds until the next request is allowed; 0 if this one is, which is then counted"
        if not self.config.rate:
            return 0.0
        step = 1 / self.config.rate
        earliest = max(self.free_at, now - (self.config.burst - 1) * step)
        if earliest > now + 1e-9:
            return earliest - now
        self.free_at = earliest + step
        return 0.0

    def reply(self, body):
        "Bytes to answer with, or `DROP`, or `STALL`"
        now, config = time.monotonic(), self.config
        self.arrivals.append(now)
        if config.down:
            return self.noted("down", error(503))
        if wait := self.over_rate(now):
            return self.noted(
                "over rate",
                error(429, f"retry-after: {wait:.3f}\r\n" if config.retry_after else ""),
            )
        digest = hashlib.blake2b(body, digest_size=16).digest()
        attempt = self.sent[digest]
        self.sent[digest] += 1
        fault = (
            choose(config.faults, config.seed, digest, attempt)
            if attempt < config.fault_attempts
            else ""
        )
        if fault in NO_COMPLETION:
            return self.noted(fault, self.refusal(fault))
        asked = json.loads(body)
        text = answer(asked["messages"], fault, self.config.says)
        finish = "length" if fault == "truncated answer" else "stop"
        said = completion(asked["model"], asked["messages"], text, finish)
        self.counts["tokens"] += said["usage"][
            "total_tokens"
        ]  # read and written, whether or not anybody still waits for them
        data = json.dumps(said).encode()
        if fault in HTTP_FAULTS:
            return self.noted(
                fault, response(200, data[: len(data) // 2 if fault == "truncated body" else 0])
            )
        self.answered[digest] += 1
        return self.noted(fault or "ok", response(200, data))

    def refusal(self, fault):
        if fault == "drop":
            return DROP
        if fault == "stall":
            return STALL
        return error(
            int(fault[:3]), f"retry-after: {self.config.wait}\r\n" if fault == "429 wait" else ""
        )

    def noted(self, what, reply):
        self.counts[what] += 1
        return reply


def busiest_second(times):
    "The largest number of arrivals within one second"
    most, start = 0, 0
    for end, moment in enumerate(times):
        while times[start] <= moment - 1:
            start += 1
        most = max(most, end - start + 1)
    return most


class Connection(asyncio.Protocol):
    "One connection of a client: takes requests one after the other"

    def __init__(self, model):
        self.model, self.data, self.waits = model, b"", False

    def connection_made(self, transport):
        self.transport = transport
        self.model.open.add(self)

    def connection_lost(self, error):
        self.model.open.discard(self)
        if self.waits:
            self.done()

    def data_received(self, data):
        self.data += data
        head, blank, rest = self.data.partition(b"\r\n\r\n")
        if not blank:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if len(rest) < length:
            return
        body, self.data = rest[:length], rest[length:]
        self.request(head.split(b" ", 2)[1].decode(), body)

    def request(self, path, body):
        model = self.model
        reply = model.reply(body) if path.endswith("/chat/completions") else error(404)
        model.busy += 1
        model.most = max(model.most, model.busy)
        self.waits = True
        if reply is STALL:
            return  # until the client gives up
        asyncio.get_running_loop().call_later(model.config.latency, self.answer, reply)

    def answer(self, reply):
        if self.transport.is_closing():
            return
        self.done()
        if reply is DROP:
            self.transport.abort()
        else:
            self.transport.write(reply)

    def done(self):
        self.waits = False
        self.model.busy -= 1


class Control(Connection):
    "The connection by which tests change the configuration and ask for counts"

    def request(self, path, body):
        self.task = asyncio.ensure_future(self.control(path, body))

    async def control(self, path, body):
        model = self.model
        if path == "/config":
            model.config = replace(model.config, **json.loads(body))
            await model.listen()
        if path == "/reset":
            model.reset()
        self.transport.write(response(200, json.dumps(model.stats()).encode()))


class Server(Model):
    "A model that listens"

    port, listener = 0, None

    async def listen(self):
        "Open the port, or close it and all connections, as the configuration wants"
        wanted = self.config.down != "refused"
        if wanted and not self.listener:
            loop = asyncio.get_running_loop()
            self.listener = await loop.create_server(
                lambda: Connection(self), "127.0.0.1", self.port, backlog=1024
            )
            self.port = self.listener.sockets[0].getsockname()[1]
        if not wanted and self.listener:
            self.listener.close()
            self.listener = None
            for connection in [c for c in self.open if not isinstance(c, Control)]:
                connection.transport.abort()


async def serve():
    loop, server = asyncio.get_running_loop(), Server()
    ended = asyncio.Event()
    loop.add_reader(sys.stdin, ended.set)  # nothing is ever written to it: this is its end
    await server.listen()
    control = await loop.create_server(lambda: Control(server), "127.0.0.1", 0)
    print(server.port, control.sockets[0].getsockname()[1], flush=True)
    await ended.wait()


# ---- the side of the tests


class Service:
    "A running server"

    def __init__(self, process):
        self.process = process
        port, self.control = map(int, process.stdout.readline().split())
        self.url = f"http://127.0.0.1:{port}/v1"

    def post(self, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.control, timeout=30)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body or {}))
            return json.loads(connection.getresponse().read())

    def configure(self, **changes):
        "Change fields of `Config`; what is under way keeps the old ones"
        Config(**changes)
        self.post("/config", changes)

    def reset(self):
        "Forget what was seen"
        self.post("/reset")

    def stats(self):
        "What was seen: requests, kinds of answers, most at once, distinct contents, ..."
        return Counter(self.post("/stats"))


@contextlib.contextmanager
def serving(**config):
    "Start a server; it ends with the block"
    process = subprocess.Popen(
        [sys.executable, "-E", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        service = Service(process)
        service.configure(**config)
        yield service
    finally:
        process.kill()
        process.communicate()


def run_under_kills(start, service, answers, sign=signal.SIGKILL):
    "Start a process again and again, each time ended after so many answers"
    ended = 0
    while True:
        seen, process = service.stats()["ok"], start()
        wait_until(
            lambda: process.poll() is not None or service.stats()["ok"] >= seen + answers, 300, 0.03
        )  # each look is a connection
        if process.poll() is not None:
            return process, ended
        process.send_signal(sign)
        process.wait()
        ended += 1


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    asyncio.run(serve())
