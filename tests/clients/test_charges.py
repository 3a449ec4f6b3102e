"""Money that is spent stays spent: charges on disk, whole after any kill."""

import asyncio
import subprocess
import sys

import pytest
from clock import wait_until
from server import serving

from humanlm.clients.client import ScriptedClient, chat_all
from humanlm.clients.ledger import Ledger, prices
from humanlm.clients.limits import Limits
from humanlm.clients.protocol import LLMError, Usage, chat
from humanlm.core.basics import grown_rows, run_sync


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setitem(prices, "vllm/dear", (0.0, 1e6))  # a dollar a token
    return tmp_path / "charges.jsonl"


def kept(path, budget=None, account="", ranks=1):
    ledger = Ledger(budget=budget)
    ledger.keep(path, account, ranks)
    return ledger


def model(ledger, answer=lambda request: "four"):
    return ScriptedClient(answer, "vllm/dear", ledger=ledger, limits=Limits(attempts=1))


def test_what_a_call_may_cost_is_on_disk_before_it_is_sent_and_what_it_did_cost_after(path):
    seen = []

    def answer(request):
        seen.append([row.get("most") for row in grown_rows(path)])
        return "four"

    run_sync(model(kept(path), answer)(chat("hello", max_tokens=5)))
    assert (
        seen == [[5.0]]
        and [row.get("cost") for row in grown_rows(path)] == [None, 1.0]
        and kept(path).spent == 1.0
    )


@pytest.mark.parametrize(
    "failure, spent",
    [
        (LLMError("timeout", "late"), 5.0),
        (LLMError("rate limit", "not now"), 0.0),
        (RuntimeError("a bug"), 5.0),
        (KeyboardInterrupt(), 5.0),
    ],
    ids=["timeout", "rate limit", "bug", "Ctrl-C"],
)
def test_a_call_that_fails_costs_what_it_may_have_cost(path, failure, spent):
    def answer(request):
        raise failure

    with pytest.raises(type(failure)):
        asyncio.run(model(kept(path), answer)(chat("hello", max_tokens=5)))
    assert (kept(path).spent, kept(path).reserved) == (spent, 0.0)


def test_half_a_line_at_the_end_is_cut_off_and_costs_nothing_twice(path):
    kept(path).record("a", "vllm/dear", Usage(1, cost=2.0))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"account": "", "caller": "a", "model": "vllm/dear", "cost": 7')
    ledger = kept(path)
    assert ledger.spent == 2.0
    ledger.record("a", "vllm/dear", Usage(1, cost=1.0))
    assert (
        kept(path).spent == 3.0
        and path.read_bytes().startswith(whole)
        and len(grown_rows(path)) == 2
    )


ASK = """
import sys
from humanlm.clients.client import chat_all
from humanlm.clients.ledger import Ledger
from humanlm.clients.limits import Limits
from humanlm.clients.names import vllm_client
from humanlm.clients.protocol import chat
from humanlm.core.basics import run_sync

ledger = Ledger(budget=1.0)
ledger.keep(sys.argv[2], "judge")
model = vllm_client("echo", sys.argv[1], ledger=ledger, limits=Limits(concurrency=4))
found = run_sync(chat_all(model, [chat(f"{i}", max_tokens=30) for i in range(200)]))
print(sorted({getattr(f, "kind", "answered") for f in found}))
"""


def test_a_budget_holds_over_a_kill_and_the_next_start(tmp_path, monkeypatch):
    "A cent an answer, three at most: of four calls, nobody knows how they ended"
    (tmp_path / "prices.yaml").write_text("vllm/echo: [0.0, 1000.0]")
    monkeypatch.setenv("HUMANLM_PRICES", str(tmp_path / "prices.yaml"))
    file = tmp_path / "charges.jsonl"
    with serving(latency=0.03, says="It is ten tokens, or about forty letters") as server:
        command = [sys.executable, "-c", ASK, server.url, file]
        with subprocess.Popen(command) as killed:
            wait_until(lambda: file.exists() and len(grown_rows(file)) >= 30)
            killed.kill()
        said = subprocess.run(command, capture_output=True, text=True).stdout
        paid = 0.01 * server.stats()["ok"]
    assert "over budget" in said and 0.8 <= paid <= 1.0
    assert paid <= kept(file, account="judge").spent <= 1.0


def test_processes_that_train_together_share_what_is_left(path, monkeypatch):
    kept(path).record("a", "vllm/dear", Usage(1, cost=2.0))
    monkeypatch.setenv("WORLD_SIZE", "2")
    ranks = []
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        ranks.append(kept(path, 10.0, ranks=2))
    for ledger in ranks:
        found = run_sync(chat_all(model(ledger), [chat(f"{i}", max_tokens=1) for i in range(9)]))
        assert sum(isinstance(f, LLMError) for f in found) == 5
    assert [ledger.total.cost for ledger in ranks] == [10.0, 10.0]
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setenv("RANK", "0")
    assert kept(path, 10.0).spent == 10.0
