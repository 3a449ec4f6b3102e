"""Thousands of judgements through the real client against a server that fails in every way."""

import json
import math
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from clock import wait_until
from server import ANSWER_FAULTS, FAULTS, serving, stated

from humanlm.clients.cache import DiskCache
from humanlm.clients.client import chat_all
from humanlm.clients.ledger import Ledger, prices
from humanlm.clients.limits import Limits
from humanlm.clients.names import vllm_client
from humanlm.clients.protocol import chat
from humanlm.core.basics import run_sync
from humanlm.rewards.scoring import JUDGE_FAULTS, JudgeRequest, score_groups
from humanlm.rewards.verdicts import LLMJudge

SHARE = 0.3
LIMITS = Limits(concurrency=64, timeout=4.0, attempts=6, backoff=0.01, longest_wait=0.1)


def mix(kinds, share=SHARE):
    return {kind: share / len(kinds) for kind in kinds}


def groups(count, seed=0):
    "Groups of 4; each candidate states the score that it must get, and none must get 0"
    draw = random.Random(seed)
    for i in range(count):
        texts = {
            f"g{i}c{k}": f"Candidate {k} of {i} deserves {draw.uniform(0.01, 1):.4f}."
            for k in range(4)
        }
        yield JudgeRequest("stance", f"The truth of group {i}.", texts, seed=i)


def llm_judge(server, limits=LIMITS, cache=None, **settings):
    return LLMJudge(vllm_client("tiny", server.url, limits=limits, cache=cache), **settings)


def judged(judge, requests):
    "Scores of all candidates and counts per status; each is right or says the judge failed"
    scores = [s for group in run_sync(score_groups(judge, requests, 64)) for s in group]
    texts = {id: text for r in requests for id, text in r.candidates.items()}
    assert [s.id for s in scores] == list(texts)
    for s in scores:
        if s.status == "scored":
            assert s.value == pytest.approx(stated(texts[s.id]), abs=1e-9), s
        else:
            assert s.status in JUDGE_FAULTS and math.isnan(s.value) and s.reason, s
    return scores, Counter(s.status for s in scores)


@pytest.fixture(scope="module")
def shared():
    with serving() as server:
        yield server


@pytest.fixture
def server(shared):
    shared.configure(latency=0.0, rate=0.0, faults={}, down="", seed=0)
    shared.reset()
    return shared


# ---- faults


def test_two_thousand_judgements_at_thirty_percent_faults(server):
    server.configure(faults=mix(FAULTS), latency=0.005)
    start = time.perf_counter()
    scores, statuses = judged(llm_judge(server), list(groups(500)))
    seconds, seen = time.perf_counter() - start, server.stats()
    print(f"\n{dict(statuses)} in {seconds:.1f} s; the server saw {dict(seen)}")
    assert len(scores) == 2000
    assert statuses["scored"] >= 0.98 * 2000
    assert all(seen[kind] for kind in FAULTS), seen
    injected = sum(seen[kind] for kind in FAULTS)
    assert 0.25 < injected / seen["requests"] < 0.35
    assert seen["requests"] < 2 * 500
    assert seconds < 120  # about 2.5 on an idle core


@pytest.mark.parametrize("kind", ANSWER_FAULTS)
def test_every_fault_of_the_answer_is_repaired_or_named(server, kind):
    server.configure(faults={kind: 0.5})
    _scores, statuses = judged(llm_judge(server), list(groups(20)))
    assert server.stats()[kind]
    if kind in ("strings", "prose"):
        assert statuses == {"scored": 80}
    else:
        assert statuses["scored"] > 40


# ---- outages


# ---- the cache, through real HTTP


def test_what_failed_is_asked_again_and_what_was_answered_is_not(server, tmp_path):
    requests = list(groups(150))
    server.configure(faults=mix(FAULTS, 0.6))
    limits = Limits(concurrency=64, timeout=4.0, attempts=2, backoff=0.01, breaker=0)
    scores, statuses = judged(llm_judge(server, limits, DiskCache(tmp_path)), requests)
    assert statuses["judge failed"]
    failed = {s.id.partition("c")[0] for s in scores if s.status != "scored"}
    kept = len(DiskCache(tmp_path))
    server.configure(faults={})
    server.reset()
    _, statuses = judged(llm_judge(server, cache=DiskCache(tmp_path)), requests)
    assert statuses == {"scored": 600}
    assert server.stats()["requests"] == 150 - kept >= len(failed)
    server.reset()
    judge = llm_judge(server, cache=DiskCache(tmp_path))
    _, statuses = judged(judge, requests)
    assert statuses == {"scored": 600}
    assert server.stats()["requests"] == 0
    assert (judge.ledger.total.calls, judge.ledger.total.hits) == (0, 150)


@pytest.mark.parametrize("kind", ["truncated body", "empty body", "drop", "stall"])
def test_a_budget_holds_where_every_attempt_is_billed_and_none_is_answered(
    server, monkeypatch, kind
):
    monkeypatch.setitem(prices, "vllm/tiny", (0.0, 100.0))
    server.configure(faults={kind: 1.0})
    limits = Limits(
        concurrency=8, timeout=0.3 if kind == "stall" else 5.0, attempts=4, backoff=0.01, breaker=0
    )
    model = vllm_client("tiny", server.url, limits=limits, ledger=Ledger(budget=1.0))
    replies = run_sync(chat_all(model, [chat(f"{i}", max_tokens=1000) for i in range(30)]))
    assert server.stats()["requests"] == model.ledger.total.calls == 10
    assert model.ledger.spent == pytest.approx(1.0) and "over budget" in {r.kind for r in replies}


ASK = """
import asyncio, json, sys
from humanlm.clients.cache import DiskCache
from humanlm.clients.client import chat_all
from humanlm.clients.limits import Limits
from humanlm.clients.names import vllm_client
from humanlm.clients.protocol import chat

url, folder, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
model = vllm_client("tiny", url, limits=Limits(concurrency=16, timeout=20), cache=DiskCache(folder))
requests = [chat(f"question {i}") for i in range(first, last, 1 if last > first else -1)]
print("ready", flush=True)
sys.stdin.readline()
replies = asyncio.run(chat_all(model, requests))
assert [r.text for r in replies] == [r.messages[0]["content"] for r in requests]
print(json.dumps([model.ledger.total.calls, model.ledger.total.hits]))
"""


def asker(server, folder, first, last):
    "A process that asks questions with these numbers as soon as it is told to"
    argv = [sys.executable, "-c", ASK, server.url, str(folder), str(first), str(last)]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return process


def test_an_interrupt_leaves_no_orphan_and_keeps_what_was_answered(server, tmp_path):
    server.configure(latency=0.1)
    process = asker(server, tmp_path, 0, 400)
    print(file=process.stdin, flush=True)
    wait_until(lambda: server.stats()["ok"] > 80)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 1, 130)
    assert "KeyboardInterrupt" in errors
    for complaint in ("never retrieved", "was destroyed", "Event loop is closed", "unclosed"):
        assert complaint not in errors
    wait_until(lambda: server.stats()["busy"] == 0)
    answered = server.stats()["requests"]
    assert answered < 400
    server.configure(latency=0.0)
    server.reset()
    process = asker(server, tmp_path, 0, 400)
    out, errors = process.communicate("\n", timeout=300)
    assert process.returncode == 0, errors
    calls, hits = json.loads(out)
    assert calls + hits == 400
    assert answered - 2 * 16 <= hits <= answered  # only what was under way may be lost
    assert server.stats()["requests"] == calls


# ---- the server itself
