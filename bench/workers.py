"""What workers of Ray win where one process asks: 2,000 judged rows, a server that takes 50 ms, 8 questions at once for each worker.

    python bench/workers.py             # about a minute; needs Ray (constraints-verl.txt)
    python bench/workers.py --quick     # 400 rows

The judge is the one of every run (LLMJudge behind JudgeConfig, group protocol), the server stands on loopback in a process of its own (tests/server.py, a
scripted judge). Ray's start is not counted: each judge is asked one row first. Beside it plain asyncio in one process with as many questions at once.
Target: two workers take at least 1.8 times the rows per second of one, and no question is asked twice.
"""
import argparse
import asyncio
import sys

from common import Clock, serving
from judges import check, words

from humanlm.data.records import Message
from humanlm.rewards.judge_settings import JudgeConfig, make_judge
from humanlm.rewards.scoring import JudgeRequest, score_groups

LATENCY, EACH, TARGET = 0.05, 8, 1.8
WAYS = {"asyncio, 8 at once": (8, None), "asyncio, 16 at once": (16, None), "1 worker x 8": (EACH, "ray/1"), "2 workers x 8": (EACH, "ray/2")}


def rows(count, seed):
    "Questions of one candidate each, none twice"
    import random
    draw = random.Random(seed)
    for i in range(count):
        yield JudgeRequest("stance", words(draw, 20), {"c": f"{draw.random():.4f} {words(draw, 20)}"}, (Message(f"m{i}", name="A", content=words(draw, 60)),), seed=i)


async def timed(judge, first, asked, server):
    "Seconds for all rows, after one that starts what must be started"
    await score_groups(judge, first, 1)
    server.reset()
    with Clock() as clock: judged = await score_groups(judge, asked, 64)
    check(asked, judged)
    return clock


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    count = 400 if parser.parse_args().quick else 2000
    print(f"{count:,} judged rows, {LATENCY * 1000:.0f} ms a question\n\n{'':20} {'seconds':>8} {'rows/s':>7} {'CPU s here':>11} {'questions':>10}  floor of the latency")
    rates = {}
    with serving() as server:
        server.configure(latency=LATENCY)
        for seed, (name, (concurrency, workers)) in enumerate(WAYS.items()):
            judge = make_judge(JudgeConfig(model="vllm/tiny", base_url=server.url, concurrency=concurrency, workers=workers))
            clock, at_once = asyncio.run(timed(judge, list(rows(1, f"first{seed}")), list(rows(count, seed)), server)), concurrency * (2 if name.startswith("2") else 1)
            asked, rates[name] = server.stats()["requests"], count / clock.wall
            print(f"{name:20} {clock.wall:>8.2f} {rates[name]:>7.0f} {clock.cpu:>11.2f} {asked:>10,}  {count * LATENCY / at_once:.2f} s", flush=True)
            if asked != count: raise SystemExit(f"{asked} questions for {count} rows")
    ratio = rates["2 workers x 8"] / rates["1 worker x 8"]
    print(f"\ntwo workers take {ratio:.2f} times the rows of one (target {TARGET}); asyncio with 16 at once {rates['asyncio, 16 at once'] / rates['2 workers x 8']:.2f} times those of two workers")
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__": sys.exit(main())
