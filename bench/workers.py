"""What workers of Ray win: 2,000 judged rows, a server that takes 50 ms, 8 questions at once for each worker; gyms, played; a corpus, built.

    python bench/workers.py             # some minutes; needs Ray (constraints-verl.txt)
    python bench/workers.py --quick     # 400 rows, 16 tasks, 10,000 rows of a corpus
    python bench/workers.py --only build

The judge is the one of every run (LLMJudge behind JudgeConfig, group protocol), the server stands on loopback in a process of its own (tests/server.py, a
scripted judge). Ray's start is not counted: each judge is asked a few rows first. Beside it plain asyncio in one process with as many questions at once.
Target: two workers take at least 1.8 times the rows per second of one, and no question is asked twice.

Gyms: telepathy, 64 tasks of 16 turns with a policy that answers in 50 ms, 16 with one that is a tiny model on a CPU, in its worker. A corpus: the rows of bench/build.py, examples and two sets; one process, one
worker, two; files are compared byte by byte, and workers have started before the clock does.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

from build import make_file, settings
from common import Clock, ratio, serving
from judges import check, words

from humanlm.core.plugins import mapper
from humanlm.data.records import Message
from humanlm.gyms.evaluation import ChatPlayer, play_tasks
from humanlm.gyms.protocol import find_gym
from humanlm.models.settings import ChatConfig
from humanlm.rewards.judge_settings import JudgeConfig, make_judge
from humanlm.rewards.scoring import JudgeRequest, score_groups

LATENCY, EACH, TARGET = 0.05, 8, 1.8
WAYS = {
    "asyncio, 8 at once": (8, None),
    "asyncio, 16 at once": (16, None),
    "1 worker x 8": (EACH, "ray/1"),
    "2 workers x 8": (EACH, "ray/2"),
}


def rows(count, seed):
    "Questions of one candidate each, none twice"
    import random

    draw = random.Random(seed)
    for i in range(count):
        yield JudgeRequest(
            "stance",
            words(draw, 20),
            {"c": f"{draw.random():.4f} {words(draw, 20)}"},
            (Message(f"m{i}", name="A", content=words(draw, 60)),),
            seed=i,
        )


async def timed(judge, first, asked, server):
    "Seconds for all rows, after some that start what must be started"
    await score_groups(judge, first, 8)
    server.reset()
    with Clock() as clock:
        judged = await score_groups(judge, asked, 64)
    check(asked, judged)
    return clock


def judged(quick):
    count = 400 if quick else 2000
    print(
        f"{count:,} judged rows, {LATENCY * 1000:.0f} ms a question\n\n{'':20} "
        f"{'seconds':>8} {'rows/s':>7} {'CPU s here':>11} {'questions':>10}  floor of "
        "the latency"
    )
    rates = {}
    with serving() as server:
        server.configure(latency=LATENCY)
        for seed, (name, (concurrency, workers)) in enumerate(WAYS.items()):
            judge = make_judge(
                JudgeConfig(
                    model="vllm/tiny", base_url=server.url, concurrency=concurrency, workers=workers
                )
            )
            clock, at_once = (
                asyncio.run(
                    timed(judge, list(rows(8, f"first{seed}")), list(rows(count, seed)), server)
                ),
                concurrency * (2 if name.startswith("2") else 1),
            )
            asked, rates[name] = server.stats()["requests"], count / clock.wall
            print(
                f"{name:20} {clock.wall:>8.2f} {rates[name]:>7.0f} {clock.cpu:>11.2f} "
                f"{asked:>10,}  {count * LATENCY / at_once:.2f} s",
                flush=True,
            )
            if asked != count:
                raise SystemExit(f"{asked} questions for {count} rows")
    won = ratio(
        "judged rows by two workers of Ray",
        rates["2 workers x 8"] / rates["1 worker x 8"],
        "rows of one worker",
        f">= {TARGET}",
    )
    print(
        f"\ntwo workers take {won:.2f} times the rows of one (target {TARGET}); asyncio "
        f"with 16 at once {rates['asyncio, 16 at once'] / rates['2 workers x 8']:.2f} "
        "times those of two workers\n"
    )
    return won >= TARGET


async def played(gym, count, config):
    "Seconds of playing tasks, after some that start what must be started, and the episodes"
    player = ChatPlayer(gym, config.client(config.model), max_tokens=16, temperature=0.0)
    await play_tasks(gym, gym.tasks(4, seed=1), player, workers=config.at_once)
    with Clock() as clock:
        episodes = await play_tasks(gym, gym.tasks(count, seed=0), player, workers=config.at_once)
    return clock, episodes


def gyms(quick):
    from humanlm.models.checkpoints import save_model
    from humanlm.models.config import ModelConfig, tiny_model, train_tokenizer

    gym = find_gym("telepathy")
    print(f"{'telepathy':49} {'seconds':>8} {'CPU s here':>11}  turns/s")
    with serving() as server, tempfile.TemporaryDirectory() as folder:
        server.configure(latency=LATENCY)
        tokenizer = train_tokenizer(
            [gym.system_prompt(), *(task.opening for task in gym.tasks(8, 2))]
        )
        save_model(tiny_model(ModelConfig(), tokenizer), tokenizer, folder)
        for name, url in (("vllm/tiny", server.url), (f"hf/{folder}", None)):
            found, count = [], 64 if url and not quick else 16
            what = f"{count} tasks, {'a policy of 50 ms' if url else 'a tiny model'}"
            for way, (concurrency, workers) in WAYS.items():
                if name.startswith("hf/") and way == "asyncio, 16 at once":
                    continue
                clock, episodes = asyncio.run(
                    played(
                        gym,
                        count,
                        ChatConfig(name, base_url=url, concurrency=concurrency, workers=workers),
                    )
                )
                found.append([(e.key, e.turns, e.stop, e.score) for e in episodes])
                print(
                    f"{what:28} {way:20} {clock.wall:>8.2f} {clock.cpu:>11.2f}  "
                    f"{sum(len(e.turns) for e in episodes) / clock.wall:,.0f}",
                    flush=True,
                )
            if any(own != found[0] for own in found):
                raise SystemExit("workers played other episodes")


def built(quick):
    import humanlm.corpus.build as builds

    count, whole = 10_000 if quick else 40_000, []
    print(f"\n{f'{count:,} rows of a corpus':32} {'seconds':>8} {'CPU s here':>11}   rows/s")
    with tempfile.TemporaryDirectory() as folder:
        path, first = (
            make_file(Path(folder) / "rows.jsonl", count),
            make_file(Path(folder) / "first.jsonl", 1000),
        )
        for way, workers in (("one process", None), ("1 worker", "ray/1"), ("2 workers", "ray/2")):
            out = Path(folder) / "out"
            with (
                mapper(workers) as spread,
                patch.object(builds, "mapper", lambda asked: nullcontext(spread)),
            ):
                builds.build(settings(first, Path(folder) / f"first-{way}", ["rl", "sft"]))
                with Clock() as clock:
                    builds.build(settings(path, out, ["rl", "sft"]))
            whole.append(
                {
                    str(p.relative_to(out)): p.read_bytes()
                    for p in sorted(out.rglob("*"))
                    if p.is_file() and p.name not in ("config.yaml", "run.json")
                }
            )
            shutil.rmtree(out)
            print(
                f"{way:32} {clock.wall:>8.2f} {clock.cpu:>11.2f}  {count / clock.wall:>7,.0f}",
                flush=True,
            )
    if any(own != whole[0] for own in whole):
        raise SystemExit("workers wrote other files")
    print("the same bytes each time")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["judged", "gyms", "build"])
    args = parser.parse_args()
    good = judged(args.quick) if args.only in (None, "judged") else True
    if args.only in (None, "gyms"):
        gyms(args.quick)
    if args.only in (None, "build"):
        built(args.quick)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
