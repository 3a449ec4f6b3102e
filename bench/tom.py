"""Own milliseconds per question of a Theory-of-Mind run, beside the chat client alone and the plain
OpenAI SDK.

    nice -n -5 python bench/tom.py           # about 2 minutes
    nice -n -5 python bench/tom.py --quick   # at most 40 s

Hi-ToM-like questions of our own (five about each story) are answered by a server on loopback
(tests/server.py) after 50 ms, 64 at once, with two sentences of reasons and an answer, as a
model would. A run makes the prompt, finds the context, which was written before (bench/social.py
measures that), asks, reads and scores the answer, and keeps it on disk. The peers send the very
same requests: `chat_all` with the same client, and `AsyncOpenAI` behind a semaphore. All take
turns. "own ms" is the CPU time of this process per question beyond the peer's; the target is 2
ms beyond the client's.

The second table has no model: questions per second of whole runs with the symbolic solver and
with the solver that reads contexts.
"""

import argparse
import asyncio
import math
import statistics
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from common import Clock, in_turns, median_ratio, ratio, serving

from humanlm.clients.client import chat_all
from humanlm.clients.limits import Limits
from humanlm.clients.names import vllm_client
from humanlm.core.basics import append_row, grown_rows
from humanlm.social.generation import write_stories
from humanlm.social.parsing import SymbolicParser
from humanlm.tom.answers import AnswerConfig, Asker
from humanlm.tom.protocol import Extra
from humanlm.tom.questions import BenchmarkItem
from humanlm.tom.runs import Respondent, _answer_all
from humanlm.tom.sets import benchmarks

CONCURRENCY, LATENCY = 64, 0.05
SAYS = (
    '{"reasoning": "Whoever left before the last move knows nothing of it. So the place of the '
    'first move is what counts here.", "answer": "C"}'
)
LIMITS = Limits(concurrency=CONCURRENCY, timeout=60.0)
CONFIG = AnswerConfig()
hitom = benchmarks["hitom"]


def asker(url):
    return Asker(vllm_client("tiny", url, limits=LIMITS), hitom, CONFIG)


def requests_of(items, contexts, url):
    "What a run sends"
    ask = asker(url)
    return [
        ask.request(
            hitom.prompt(item, Extra(contexts[item.source].to_text()) if contexts else None)
        )
        for item in items
    ]


async def plain(url, requests):
    "The SDK behind a semaphore"
    from openai import AsyncOpenAI

    slots = asyncio.Semaphore(CONCURRENCY)
    async with AsyncOpenAI(api_key="none", base_url=url, max_retries=0, timeout=60.0) as sdk:

        async def ask(request):
            async with slots:
                args = {"temperature": request.temperature, "max_tokens": request.max_tokens}
                return await sdk.chat.completions.create(
                    model="tiny", messages=list(request.messages), **args
                )

        await asyncio.gather(*map(ask, requests[:CONCURRENCY]))
        with Clock() as clock:
            await asyncio.gather(*map(ask, requests))
    return clock


async def client(url, requests):
    "This package's client alone"
    model = vllm_client("tiny", url, limits=LIMITS)
    await chat_all(model, requests[:CONCURRENCY])
    with Clock() as clock:
        await chat_all(model, requests)
    return clock


async def run(url, items, mode, folder):
    "The same through a run: prompt, context, reading, scoring, keeping"
    job = Respondent(hitom, mode, asker(url), parser=SymbolicParser())
    await _answer_all(job, items[:CONCURRENCY], lambda outcome: None, CONCURRENCY)
    job.contexts.clear()
    file = Path(folder) / "answers.jsonl"
    with Clock() as clock:
        await _answer_all(job, items, lambda answer: append_row(file, answer), 2 * CONCURRENCY)
    if len(grown_rows(file)) != len(items):
        raise SystemExit("answers are missing")
    return clock


def with_model(server, items, contexts, rounds, seconds):
    print(
        f"{len(items):,} questions per turn, {LATENCY * 1000:.0f} ms, {CONCURRENCY} at "
        "once; medians\n"
    )
    print(
        f"{'':16} {'turns':>5} {'questions/s':>12} {'of ideal':>9} {'CPU ms each':>12} "
        f"{'own ms beyond client':>21} {'beyond SDK':>11}  target"
    )
    for mode in ("vanilla", "context"):
        requests = requests_of(items, contexts if mode == "context" else None, server.url)

        def through():
            with tempfile.TemporaryDirectory() as folder:
                return asyncio.run(run(server.url, items, mode, folder))

        arms = {
            "plain SDK": lambda: asyncio.run(plain(server.url, requests)),
            "client": lambda: asyncio.run(client(server.url, requests)),
            "run": through,
        }
        results = in_turns(arms, rounds, seconds / 2)
        for name, clocks in results.items():
            speed, cpu = (
                statistics.median(len(items) / c.wall for c in clocks),
                statistics.median(1000 * c.cpu / len(items) for c in clocks),
            )
            overheads = [
                statistics.median(
                    1000 * (c.cpu - b.cpu) / len(items) for c, b in zip(clocks, results[peer])
                )
                for peer in ("client", "plain SDK")
            ]
            shown_ = [
                f"{value:.2f}" if name == "run" or (name == "client" and i) else ""
                for i, value in enumerate(overheads)
            ]
            print(
                f"{mode + ', ' + name:16} {len(clocks):>5} {speed:>12,.0f} "
                f"{speed * LATENCY / CONCURRENCY:>9.0%} {cpu:>12.2f} {shown_[0]:>21} "
                f"{shown_[1]:>11}"
                f"  {'<= 2 ms beyond client' if name == 'run' else ''}"
            )
        ratio(
            f"questions of a run, {mode}",
            median_ratio([c.wall for c in results["plain SDK"]], [c.wall for c in results["run"]]),
            "rate of the plain OpenAI SDK",
        )


def without_model(items):
    print(f"\n{len(items):,} questions, no model\n\n{'':10} {'questions/s':>12}")
    for solver in ("symbolic", "memory"):
        with tempfile.TemporaryDirectory() as folder:
            parser = SymbolicParser() if solver == "memory" else None
            file = Path(folder) / "answers.jsonl"
            with Clock() as clock:
                asyncio.run(
                    _answer_all(
                        Respondent(hitom, "context", solver=solver, parser=parser),
                        items,
                        lambda answer: append_row(file, answer),
                        CONCURRENCY,
                    )
                )
        print(f"{solver:10} {len(items) / clock.wall:>12,.0f}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds: at most 40 s")
    quick = parser.parse_args().quick
    print(f"Python {sys.version.split()[0]}, openai {metadata.version('openai')}; ", end="")
    with tempfile.TemporaryDirectory() as folder:
        write_stories("hitom", 100, 0, Path(folder) / "hitom.jsonl")
        items: list[BenchmarkItem] = list(hitom.load(Path(folder) / "hitom.jsonl"))
    with serving(latency=LATENCY, says=SAYS) as server:
        symbolic = SymbolicParser()
        contexts = {
            text: asyncio.run(symbolic(text, "hitom")).context
            for text in {item.source for item in items}
        }
        with_model(server, items, contexts, *((3, 30) if quick else (12, math.inf)))
    without_model(items)


if __name__ == "__main__":
    main()
