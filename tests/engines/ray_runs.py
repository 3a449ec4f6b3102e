"""Questions that workers of Ray ask, with Ray itself: by hand, in an environment that has it (constraints-verl.txt).

    python -m pytest tests/engines/ray_runs.py -s
"""
import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")

from server import serving  # noqa: E402
from verl_runs import MARK, left, nobody_left  # noqa: E402

from humanlm.core.basics import run_sync  # noqa: E402
from humanlm.data.records import Message  # noqa: E402
from humanlm.clients.client import chat_all  # noqa: E402
from humanlm.clients.ledger import Ledger  # noqa: E402
from humanlm.clients.limits import Limits  # noqa: E402
from humanlm.clients.names import client  # noqa: E402
from humanlm.clients.protocol import LLMError, chat  # noqa: E402
from humanlm.rewards.judge_settings import JudgeConfig, make_judge  # noqa: E402
from humanlm.rewards.scoring import JudgeRequest, score_groups  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def rows(count): return [JudgeRequest("stance", "is for it", {"c": f"0.{i:04d} words"}, (Message(f"m{i}", name="A", content=f"post {i}"),), seed=i) for i in range(count)]


def test_a_worker_that_is_killed_is_replaced_and_no_answer_is_lost_or_bought_twice():
    with serving() as server:
        server.configure(latency=0.2)
        judge = make_judge(JudgeConfig(model="vllm/tiny", base_url=server.url, concurrency=4, workers="ray/2"))

        async def judged():
            await score_groups(judge, rows(1), 1)
            pids = [await worker.__ray_call__.remote(lambda self: os.getpid()) for worker in judge.client.workers]
            asking = asyncio.ensure_future(score_groups(judge, rows(60), 32))
            await asyncio.sleep(0.7)
            os.kill(pids[0], signal.SIGKILL)
            return await asking

        scores = [s for group in asyncio.run(judged()) for s in group]
        assert [s.status for s in scores] == ["scored"] * 60 and [round(s.value, 4) for s in scores] == [i / 10000 for i in range(60)]
        asked = server.stats()["requests"] - 1
        print(f"{asked} questions for 60 rows, one of two workers killed in the middle")
        assert 60 <= asked <= 60 + 4  # only what the killed one had under way is asked again


def test_workers_share_one_budget_and_one_ledger():
    with serving() as server:
        ledger = Ledger()
        many = client("vllm/tiny", "ray/2", base_url=server.url, limits=Limits(concurrency=4), ledger=ledger)
        found = run_sync(chat_all(many, [chat(f"question {i}") for i in range(20)]))
        assert not any(isinstance(reply, LLMError) for reply in found) and ledger.total.calls == 20


def test_a_cluster_that_is_not_there_is_named_within_a_minute(monkeypatch):
    code = "from humanlm.engines.workers import join_cluster; join_cluster()"
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": "127.0.0.1:6399"})
    print(f"{time.monotonic() - start:.0f} s: {done.stderr.strip().splitlines()[-1][:300]}")
    assert "Nobody answers at 127.0.0.1:6399" in done.stderr and time.monotonic() - start < 60


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nobody_is_left_however_the_asking_process_ends(how, tmp_path):
    code = ("from humanlm.clients.client import chat_all\nfrom humanlm.clients.limits import Limits\nfrom humanlm.clients.names import client\nfrom humanlm.clients.protocol import chat\nfrom humanlm.core.basics import run_sync\n"
            "many = client('scripted/echo', 'ray/2', limits=Limits(concurrency=2))\nrun_sync(chat_all(many, [chat('a')]))\nprint('asked', flush=True)\nimport time\ntime.sleep(600)")
    running = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, MARK: f"workers{how}", "PYTHONPATH": str(ROOT)})
    assert running.stdout.readline() == "asked\n" and any("raylet" in command for command in left(f"workers{how}"))
    running.send_signal(how)
    running.wait(60)
    assert nobody_left(f"workers{how}")
