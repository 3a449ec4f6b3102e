"""Requests per second of the chat client beside the plain OpenAI SDK and the ideal, against a slow
server on loopback.

    nice -n -5 python bench/llm.py           # 16,000 requests each, about 2 minutes
    nice -n -5 python bench/llm.py --quick   # at most 40 s

2,000 different requests (--quick), answered after 50 ms, 64 at once: a client that took no time
itself would reach 1,280 per second. The plain SDK is `AsyncOpenAI` behind a semaphore, without
retries. The server is a process of its own (tests/server.py). All take turns of 500 requests;
each has its connections open before the clock starts; ratios are medians over neighbouring
turns, by the clock and by the CPU time of this process, which changes less on a busy machine.
"own ms" is our CPU time per request beyond the plain SDK's; it is negative where ours takes
less. Targets: without a cache at least 90 % of the plain SDK's requests per second, with a cold
one at least 75 % and at most 1 ms of our own; a warm one sends nothing.

The second table has a service that allows 40 requests per second and refuses more with 429.
"""

import argparse
import asyncio
import itertools
import math
import statistics
import sys
import tempfile
import time
from importlib import metadata

from common import Clock, in_turns, median_ratio, ratio, serving

from humanlm.clients.cache import DiskCache
from humanlm.clients.client import chat_all
from humanlm.clients.limits import Limits
from humanlm.clients.names import vllm_client
from humanlm.clients.protocol import chat

CONCURRENCY, LATENCY, REQUESTS = 64, 0.05, 500
SHARES = {"cache off": 0.9, "cold cache": 0.75}  # of the plain SDK's requests a second
LIMITS = Limits(concurrency=CONCURRENCY)
RATE, LIMITED = 40, 120
numbers = itertools.count()


def fresh(n):
    "Requests that nobody has made before"
    return [
        chat(f"Question number {next(numbers)}: what would they say?", max_tokens=64)
        for _ in range(n)
    ]


async def plain(url, requests):
    "The SDK as one would use it: a semaphore around it, one task per request"
    from openai import AsyncOpenAI

    gate = asyncio.Semaphore(CONCURRENCY)

    async def ask(sdk, request):
        async with gate:
            reply = await sdk.chat.completions.create(
                model="tiny", messages=list(request.messages), max_tokens=64
            )
        return reply.choices[0].message.content

    async def ask_all(sdk, requests):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(sdk, r)) for r in requests]
        return [t.result() for t in tasks]

    async with AsyncOpenAI(api_key="none", base_url=url, max_retries=0, timeout=60) as sdk:
        await ask_all(sdk, fresh(CONCURRENCY))
        with Clock() as clock:
            texts = await ask_all(sdk, requests)
    check(requests, texts)
    clock.calls = len(texts)
    return clock


async def ours(url, requests, cache=None):
    "This package's client"
    model = vllm_client("tiny", url, limits=LIMITS, cache=cache)
    await chat_all(model, fresh(CONCURRENCY))
    with Clock() as clock:
        replies = await chat_all(model, requests)
    check(requests, [r.text for r in replies])
    clock.calls = sum(not r.cached for r in replies)
    return clock


def check(requests, texts):
    if texts != [r.messages[0]["content"] for r in requests]:
        raise SystemExit("wrong answers")


def cold_and_warm(url, requests):
    with tempfile.TemporaryDirectory() as folder:
        return [asyncio.run(ours(url, requests, DiskCache(folder))) for _ in range(2)]


def throughput(url, rounds, seconds):
    arms = {
        "plain": lambda: asyncio.run(plain(url, fresh(REQUESTS))),
        "off": lambda: asyncio.run(ours(url, fresh(REQUESTS))),
        "cached": lambda: cold_and_warm(url, fresh(REQUESTS)),
    }
    asyncio.run(plain(url, fresh(CONCURRENCY)))  # imports
    asyncio.run(ours(url, fresh(CONCURRENCY)))
    results = in_turns(arms, rounds, seconds)
    base, (cold, warm) = results["plain"], zip(*results["cached"])
    total = len(base) * REQUESTS
    print(
        f"{total:,} requests in {len(base)} turns, {LATENCY * 1000:.0f} ms, "
        f"{CONCURRENCY} at once; medians\n"
    )
    print(
        f"{'':11} {'calls':>7} {'requests/s':>11} {'of ideal':>9} {'of plain SDK':>13} "
        f"{'by CPU':>8} {'CPU ms each':>12} {'own ms':>7}  target"
    )
    print(f"{'ideal':11} {total:>7,} {CONCURRENCY / LATENCY:>11,.0f} {'100 %':>9}")
    for name, clocks, target in (
        ("plain SDK", base, ""),
        ("cache off", results["off"], "90 % of plain SDK"),
        ("cold cache", cold, "75 % of plain SDK, own <= 1 ms"),
        ("warm cache", warm, "0 calls"),
    ):
        print(f"{name:11} {throughput_row(clocks, base)}  {target}")
        if name in SHARES:
            ratio(
                f"requests, {name}",
                median_ratio([b.wall for b in base], [c.wall for c in clocks]),
                "rate of the plain OpenAI SDK",
                f">= {SHARES[name]}",
            )


def throughput_row(clocks, base):
    "Columns of one client beside the plain SDK's"
    speed = statistics.median(REQUESTS / c.wall for c in clocks)
    cpu = statistics.median(1000 * c.cpu / REQUESTS for c in clocks)
    overhead = statistics.median(1000 * (c.cpu - b.cpu) / REQUESTS for c, b in zip(clocks, base))
    shares = [
        median_ratio([getattr(b, of) for b in base], [getattr(c, of) for c in clocks])
        for of in ("wall", "cpu")
    ]
    calls = sum(c.calls for c in clocks)
    return (
        f"{calls:>7,} {speed:>11,.0f} {speed / CONCURRENCY * LATENCY:>9.0%} "
        f"{shares[0]:>13.0%} {shares[1]:>8.0%} "
        f"{cpu:>12.2f} {f'{overhead:.2f}' if calls and clocks is not base else '':>7}"
    )


def limited(server):
    "A service with a limit, which says how long to wait, or does not"
    print(
        f"\n{LIMITED} requests to a service that allows {RATE} per second: ideal "
        f"{(LIMITED - 1) / RATE:.1f} s\n"
    )
    print(f"{'':32} {'seconds':>8} {'refused (429)':>14} {'busiest second':>15}  answered")
    many = {"attempts": 50, "backoff": 0.1, "longest_wait": 1.0, "breaker": 0}
    arms = {
        "429 with Retry-After": Limits(16, **many),
        "429 without": Limits(16, **many),
    }
    for name, limits in arms.items():
        server.configure(rate=RATE, burst=2, latency=0.02, retry_after=name != "429 without")
        server.reset()
        start = time.perf_counter()
        replies = asyncio.run(
            chat_all(vllm_client("tiny", server.url, limits=limits), fresh(LIMITED))
        )
        seconds, seen = time.perf_counter() - start, server.stats()
        answered = sum(hasattr(r, "text") for r in replies)
        print(
            f"{name:32} {seconds:>8.1f} {seen['over rate']:>14} "
            f"{seen['busiest second']:>15}  {answered}/{LIMITED}"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds: at most 40 s")
    quick = parser.parse_args().quick
    print(f"Python {sys.version.split()[0]}, openai {metadata.version('openai')}; ", end="")
    with serving(latency=LATENCY) as server:
        throughput(server.url, *((4, 24) if quick else (32, math.inf)))
        limited(server)


if __name__ == "__main__":
    main()
