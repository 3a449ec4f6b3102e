"""Questions that workers of Ray ask, and work that they do, with Ray itself: by hand, in an environment that has it (constraints-verl.txt).

python -m pytest tests/engines/ray_runs.py -s
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

ray = pytest.importorskip("ray")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from leftovers import MARK, left, nobody_left
from server import serving

import humanlm.corpus.store as store
import humanlm.engines.workers as workers
from humanlm.clients.client import chat_all
from humanlm.clients.ledger import Ledger
from humanlm.clients.limits import Limits
from humanlm.clients.names import client
from humanlm.clients.protocol import LLMError, chat
from humanlm.core.basics import DataError, check_name, run_sync
from humanlm.core.plugins import mapper
from humanlm.corpus.build import build
from humanlm.data.records import Message
from humanlm.evaluation.measured import load_results
from humanlm.gyms.evaluation import load_episodes
from humanlm.rewards.judge_settings import JudgeConfig, make_judge
from humanlm.rewards.scoring import JudgeRequest, score_groups
from humanlm.serving.gym_evaluation import evaluate_command

ROOT = Path(__file__).resolve().parents[2]


def rows(count):
    return [
        JudgeRequest(
            "stance",
            "is for it",
            {"c": f"0.{i:04d} words"},
            (Message(f"m{i}", name="A", content=f"post {i}"),),
            seed=i,
        )
        for i in range(count)
    ]


def test_a_worker_that_is_killed_is_replaced_and_no_answer_is_lost_or_bought_twice():
    with serving() as server:
        server.configure(latency=0.2)
        judge = make_judge(
            JudgeConfig(model="vllm/tiny", base_url=server.url, concurrency=4, workers="ray/2")
        )

        async def judged():
            await score_groups(judge, rows(1), 1)
            pids = [
                await worker.__ray_call__.remote(lambda self: os.getpid())
                for worker in judge.client.workers
            ]
            asking = asyncio.ensure_future(score_groups(judge, rows(60), 32))
            await asyncio.sleep(0.7)
            os.kill(pids[0], signal.SIGKILL)
            return await asking

        scores = [s for group in asyncio.run(judged()) for s in group]
        assert [s.status for s in scores] == ["scored"] * 60 and [
            round(s.value, 4) for s in scores
        ] == [i / 10000 for i in range(60)]
        asked = server.stats()["requests"] - 1
        print(f"{asked} questions for 60 rows, one of two workers killed in the middle")
        assert (
            60 <= asked <= 60 + 8
        )  # only what the killed one had under way, or answered within 5 ms, is asked again


def test_workers_share_one_budget_and_one_ledger():
    with serving() as server:
        ledger = Ledger()
        many = client(
            "vllm/tiny", "ray/2", base_url=server.url, limits=Limits(concurrency=4), ledger=ledger
        )
        found = run_sync(chat_all(many, [chat(f"question {i}") for i in range(20)]))
        assert not any(isinstance(reply, LLMError) for reply in found) and ledger.total.calls == 20


def test_a_cluster_that_is_not_there_is_named_within_a_minute(monkeypatch):
    code = "from humanlm.engines.workers import _join_cluster; _join_cluster()"
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": "127.0.0.1:6399"},
    )
    print(f"{time.monotonic() - start:.0f} s: {done.stderr.strip().splitlines()[-1][:300]}")
    assert "Nobody answers at 127.0.0.1:6399" in done.stderr and time.monotonic() - start < 60


def test_a_worker_that_hangs_keeps_no_question_from_being_answered():
    with serving() as server:
        many = client(
            "vllm/tiny", "ray/2", base_url=server.url, limits=Limits(concurrency=2, timeout=2)
        )
        run_sync(chat_all(many, [chat("first")]))
        pids = ray.get(
            [worker.__ray_call__.remote(lambda self: os.getpid()) for worker in many.workers]
        )
        os.kill(pids[0], signal.SIGSTOP)
        try:
            found = run_sync(chat_all(many, [chat(f"question {i}") for i in range(40)]))
        finally:
            os.kill(pids[0], signal.SIGCONT)
        again = [reply.attempts for reply in found]
        print(
            f"40 questions, one of two workers hangs: {again.count(1)} answered at "
            f"once, {again.count(2)} on the second try, at most {max(again)} tries"
        )
        assert max(again) == 2


ASK = (
    "from humanlm.clients.client import chat_all\nfrom humanlm.clients.limits import "
    "Limits\nfrom humanlm.clients.names import client\nfrom humanlm.clients.protocol "
    "import chat\nfrom humanlm.core.basics import run_sync\n"
    "many = client('vllm/tiny', 'ray/2', base_url='{url}', "
    "limits=Limits(concurrency=8))\nrun_sync(chat_all(many, "
    "[chat('a')]))\nprint('asked', flush=True)\nfound = run_sync(chat_all(many, "
    "[chat({text}) for i in range(2000)]))\nraise SystemExit(str(next(reply for reply "
    "in found if isinstance(reply, Exception))))"
)
WORK = (
    "import time\nfrom humanlm.core.plugins import mapper\nwith mapper('ray/2') as "
    "spread:\n    list(spread(abs, range(4)))\n    print('asked', flush=True)\n    "
    "list(spread(lambda i: time.sleep(1), range(100)))"
)


@pytest.mark.parametrize(
    "code",
    [ASK.replace("{text}", "str(i)"), ASK.replace("{text}", "str(i) * 20_000"), WORK],
    ids=["asking", "asking at length", "working"],
)
def test_a_raylet_that_is_killed_ends_the_run_in_a_sentence(code):
    "Where little is asked no worker starts any more; where more passes through Ray's store of objects, Ray ends the process at once"
    with serving() as server:
        server.configure(latency=0.5)
        mark = f"vanished{uuid4().hex}"
        running = subprocess.Popen(
            [sys.executable, "-c", code.replace("{url}", server.url)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, MARK: mark, "PYTHONPATH": str(ROOT)},
        )
        assert running.stdout.readline() == "asked\n"
        time.sleep(1)
        raylets = [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/comm")
            if _read(path) == b"raylet\n" and mark.encode() in _read(path.with_name("environ"))
        ]
        start = time.monotonic()
        for pid in raylets:
            os.kill(pid, signal.SIGKILL)
        said = running.communicate(timeout=200)[1].strip()[-500:].splitlines()[-1:]
        print(f"{time.monotonic() - start:.0f} s: {said}")
        assert (
            raylets
            and running.returncode
            and re.search(
                "Workers of Ray (cannot be started|have ended)|cut off while workers "
                "of Ray were at work",
                *said,
            )
            and nobody_left(mark)
        )


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


ASKS = (
    "from humanlm.clients.client import chat_all\nfrom humanlm.clients.limits import "
    "Limits\nfrom humanlm.clients.names import client\nfrom humanlm.clients.protocol "
    "import chat\nfrom humanlm.core.basics import run_sync\n"
    "many = client('scripted/echo', 'ray/2', "
    "limits=Limits(concurrency=2))\nrun_sync(chat_all(many, "
    "[chat('a')]))\nprint('asked', flush=True)\nimport time\ntime.sleep(600)"
)
WORKS = (
    "import time\nfrom humanlm.core.plugins import mapper\nwith mapper('ray/2') as "
    "spread:\n    list(spread(abs, range(4)))\n    print('asked', flush=True)\n    "
    "list(spread(time.sleep, [600] * 4))"
)


@pytest.mark.parametrize("code", [ASKS, WORKS], ids=["asking", "working"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nobody_is_left_however_the_leading_process_ends(code, how, tmp_path):
    mark = f"workers{how}{uuid4().hex}"
    running = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, MARK: mark, "PYTHONPATH": str(ROOT)},
    )
    assert running.stdout.readline() == "asked\n" and any(
        "raylet" in command for command in left(mark)
    )
    running.send_signal(how)
    running.wait(60)
    assert nobody_left(mark)


# ---- a build


def corpus(folder, count=4000):
    from build import make_file

    return make_file(folder / "rows.jsonl", count)


def building(path, out, *more):
    from humanlm.core.grammar import parse
    from humanlm.corpus.build import GROUPS

    return parse(
        GROUPS,
        [
            f"--build.path={path}",
            "--build.source=reddit",
            f"--build.out={out}",
            "--build.sets=[rl,sft,thinking_sft]",
            "--build.dropout=0.6",
            f"--persona.salt={Path(path).with_name('salt')}",
            *more,
        ],
    )


def content(folder):
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name not in ("config.yaml", "run.json")
    }


def test_a_build_by_workers_is_the_same_bytes_also_where_one_is_killed_in_the_middle(
    tmp_path, monkeypatch
):
    path, pids, killed, start = corpus(tmp_path), [], [], workers._started
    build(building(path, tmp_path / "alone"))

    def started(*given, **options):
        found = start(*given, **options)
        pids.extend(
            ray.get([worker.__ray_call__.remote(lambda self: os.getpid()) for worker in found])
        )
        return found

    def fetched(*given):  # one of the two is killed while it has rows
        for i, some in enumerate(store._fetched_before(*given)):
            if i == 6:
                os.kill(pids[0], signal.SIGKILL) or killed.append(pids[0])
            yield some

    monkeypatch.setattr(workers, "_started", started)
    monkeypatch.setattr(store, "_fetched_before", store._fetched, raising=False)
    monkeypatch.setattr(store, "_fetched", fetched)
    start_time = time.monotonic()
    build(building(path, tmp_path / "spread", "--build.workers=ray/2"))
    print(f"{time.monotonic() - start_time:.0f} s, one of two workers killed while it made entries")
    assert (
        killed
        and not Path(f"/proc/{killed[0]}").exists()
        and content(tmp_path / "spread") == content(tmp_path / "alone")
    )
    notes = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("alone", "spread")]
    assert notes[0]["faults"] == notes[1]["faults"]


def test_what_a_worker_meets_is_said_as_if_this_process_had_met_it():
    with mapper("ray/2") as spread:
        assert list(spread(str.upper, "abcdefg")) == list("ABCDEFG")
        with pytest.raises(DataError, match="^Unknown name 'c'"):
            list(spread(partial(check_name, options="ab"), "abc"))


def test_a_build_where_no_cluster_answers_reads_nothing(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "humanlm.humanual",
            "build",
            "--build.path",
            str(corpus(tmp_path, 20)),
            "--build.source",
            "reddit",
            "--build.out",
            str(tmp_path / "out"),
            "--build.workers",
            "ray/2",
        ],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": "127.0.0.1:6399"},
    )
    assert (
        done.returncode
        and "Nobody answers at 127.0.0.1:6399" in done.stderr
        and "Traceback" not in done.stderr
        and not (tmp_path / "out" / "config.yaml").exists()
    ), done.stderr


# ---- gyms


def test_episodes_are_the_same_each_written_and_each_question_asked_once(tmp_path):
    with serving() as server:
        server.configure(says="action Is it alive?")
        found = {}
        for name, more in (("alone", ()), ("spread", ("--policy.workers", "ray/2"))):
            out = tmp_path / name
            assert (
                evaluate_command(
                    [
                        "vllm/tiny",
                        "--play.gyms",
                        "[telepathy,turtle]",
                        "--play.count",
                        "6",
                        "--play.out",
                        str(out),
                        "--policy.base_url",
                        server.url,
                        "--policy.cache",
                        str(out / "cache"),
                        *more,
                    ]
                )
                == 0
            )
            episodes = [e for path in out.glob("*/episodes.jsonl") for e in load_episodes(path)]
            notes = load_results(out / "results.json").notes
            found[name] = (
                sorted((e.key, str(e.turns), e.stop, e.score) for e in episodes),
                len(episodes),
                server.stats()["requests"],
                notes["lines"],
            )
            server.reset()
        assert found["alone"][1] == 12 and found["alone"] == found["spread"]
