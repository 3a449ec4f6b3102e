"""Money that is spent stays spent: charges on disk, shared by processes, whole after any kill."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from clock import wait_until
from server import serving

from humanlm.clients.client import ScriptedClient, chat_all
from humanlm.clients.ledger import Ledger, _OpenCall, prices, reserve
from humanlm.clients.limits import Limits
from humanlm.clients.protocol import CacheError, LLMError, Usage, chat
from humanlm.core.basics import grown_rows, run_sync
from humanlm.core.runs import Journal

SCRIPT = """
import sys
from pathlib import Path
from humanlm.core.basics import run_sync
from humanlm.clients.client import chat_all
from humanlm.clients.ledger import Ledger
from humanlm.clients.limits import Limits
from humanlm.clients.names import vllm_client
from humanlm.clients.protocol import chat

url, folder, name = sys.argv[1:]
ledger = Ledger(budget=1.0)
ledger.keep(Path(folder) / "charges.jsonl", "judge")
model = vllm_client("echo", url, ledger=ledger, limits=Limits(concurrency=4))
found = run_sync(chat_all(model, [chat(f"{name} {i}", max_tokens=30) for i in range(120)]))
print(sorted({getattr(f, "kind", "answered") for f in found}), ledger.spent)
"""


def test_processes_that_share_a_file_share_the_budget_and_one_may_be_killed(tmp_path):
    "A cent an answer, three at most; three processes, of which one is killed on the way, ask 360 questions for one dollar"
    (tmp_path / "ask.py").write_text(SCRIPT)
    (tmp_path / "prices.yaml").write_text("vllm/echo: [0.0, 1000.0]")
    env = os.environ | {"HUMANLM_PRICES": str(tmp_path / "prices.yaml")}
    with (
        serving(latency=0.03, says="It is ten tokens, or about forty letters") as server,
        ExitStack() as stack,
    ):
        asked = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, tmp_path / "ask.py", server.url, tmp_path, name],
                    env=env,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for name in "abc"
        ]

        def begun(process):
            return (
                sum(row.get("pid") == process.pid for row in grown_rows(tmp_path / "charges.jsonl"))
                >= 8
            )

        wait_until(lambda: any(map(begun, asked)))
        killed = next(filter(begun, asked))
        killed.send_signal(signal.SIGKILL)
        for process in asked:
            process.wait()
        paid, said = (
            0.01 * server.stats()["ok"],
            [process.stdout.read() for process in asked if process is not killed],
        )
    assert killed.returncode == -signal.SIGKILL
    assert all("over budget" in text for text in said), "nobody waits for the dead"
    assert 0.85 <= paid <= 1.0, (
        "at most four calls, of which nobody knows the end, count three cents each"
    )
    assert {round(float(text.split()[-1]), 6) for text in said} == {
        round(spent_of(tmp_path), 6)
    } and paid <= spent_of(tmp_path) <= 1.0
    assert {row["account"] for row in grown_rows(tmp_path / "charges.jsonl")} == {"judge"}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
def test_nobody_waits_for_a_process_that_has_ended_and_was_not_waited_for():
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        wait_until(
            lambda: Path(f"/proc/{ended.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        )
        assert not _OpenCall("", "vllm/echo", 0.03, ended.pid, time.time()).may_end()


def spent_of(folder, account="judge"):
    ledger = Ledger()
    ledger.keep(folder / "charges.jsonl", account)
    return ledger.spent


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setitem(prices, "vllm/dear", (0.0, 1e6))  # a dollar a token
    return tmp_path / "charges.jsonl"


def kept(path, budget=None, account=""):
    ledger = Ledger(budget=budget)
    ledger.keep(path, account)
    return ledger


def model(ledger, answer=lambda request: "four"):
    return ScriptedClient(answer, "vllm/dear", ledger=ledger, limits=Limits(attempts=1))


def test_what_a_call_may_cost_is_on_disk_before_it_is_sent_and_what_it_did_cost_after(path):
    seen = []

    def answer(request):
        seen.append([row.get("cost") for row in grown_rows(path)])
        return "four"

    run_sync(model(kept(path), answer)(chat("hello", max_tokens=5)))
    assert (
        seen == [[5.0]]
        and [row["cost"] for row in grown_rows(path)] == [5.0, 1.0]
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

    with pytest.raises(BaseException):
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


def test_accounts_in_one_file_have_budgets_of_their_own_and_are_all_seen(path):
    first, second = kept(path, 10.0, "judge"), kept(path, 10.0, "test judge")
    for ledger in (first, second):
        run_sync(model(ledger)(chat("hello", max_tokens=9)))
    assert (first.spent, second.spent, kept(path, account="judge").spent) == (1.0, 1.0, 1.0)


def test_the_budget_of_a_run_without_prices_begins_with_what_is_known(path, monkeypatch):
    "One call without a price made all that followed in the same account look free"
    kept(path).record("", "vllm/dear", Usage(1, tokens_out=3))
    ledger = kept(path, 3.0)
    found = run_sync(chat_all(model(ledger), [chat(f"{i}", max_tokens=1) for i in range(9)]))
    assert (
        sum(isinstance(f, LLMError) for f in found) == 6
        and ledger.spent == 3.0
        and ledger.total.cost is None
    )


@pytest.mark.parametrize(
    "pid, at",
    [(2**22 + 7, 0), (1, -700), ("own", -700)],
    ids=["dead", "old", "another of our number"],
)
def test_open_calls_of_processes_that_died_count_in_full_and_nobody_waits_for_them(path, pid, at):
    with Journal(path).held() as (_, write):
        write(
            {
                "call": "c0",
                "caller": "a",
                "model": "vllm/dear",
                "cost": 8.0,
                "pid": os.getpid() if pid == "own" else pid,
                "at": time.time() + at,
            }
        )
    ledger = kept(path, 10.0)
    assert (ledger.spent, ledger.reserved, ledger.total.calls) == (8.0, 0.0, 1)
    with pytest.raises(LLMError, match="over budget: US. 8.0000 of 10.0000"):
        run_sync(model(ledger)(chat("hello", max_tokens=3)))
    assert run_sync(model(ledger)(chat("hello", max_tokens=2))).text == "four"


def test_an_open_call_of_a_process_that_lives_is_waited_for(path):
    other, mine = kept(path, 10.0), kept(path, 10.0)

    async def scene():
        async with reserve(other, 8.0, "a", "vllm/dear") as charge:
            waiting = asyncio.create_task(model(mine)(chat("hello", max_tokens=5)))
            await asyncio.sleep(0.1)
            held = (mine.spent, mine.reserved, waiting.done())
            charge(Usage(1, cost=1.0))
        await asyncio.wait_for(waiting, 30)
        return held

    assert asyncio.run(scene()) == (0.0, 8.0, False) and mine.spent == 2.0


def test_nothing_is_asked_where_charges_cannot_be_written(tmp_path):
    (tmp_path / "a-file").write_text("")
    asked = []
    with pytest.raises(
        CacheError, match="Charges cannot be entered in .*Not a directory. Check the disk"
    ):
        run_sync(model(kept(tmp_path / "a-file" / "charges.jsonl"), asked.append)(chat("hello")))
    assert asked == []


def test_a_ledger_brings_what_it_spent_before_into_a_new_file_once(path, tmp_path):
    ledger = Ledger()
    ledger.record("a", "vllm/dear", Usage(1, cost=2.0))
    for _ in range(2):
        ledger.keep(path)
    assert ledger.spent == kept(path).spent == 2.0
    ledger.keep(tmp_path / "another.jsonl")
    assert ledger.spent == 0.0 and not (tmp_path / "another.jsonl").exists()


def test_a_broken_line_is_named(path):
    path.write_text('{"caller": "a", "model": "m", "cost": 1.0}\nnonsense\n')
    with pytest.raises(Exception, match="charges.jsonl.*not JSON"):
        kept(path).spent
    assert json.loads(path.read_text().splitlines()[0])["cost"] == 1.0
