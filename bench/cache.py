"""Microseconds per reply that the cache stores or finds, wall and CPU, beside the same lookup
handed to a thread.

    nice -n -5 python bench/cache.py            # about 20 s
    nice -n -5 python bench/cache.py --quick    # about 5 s

Requests as a judge makes them: 15,000 characters of context, a schema, four verdicts in the
answer. "All in" starts with the request and ends with the reply. The last row has two processes
that fill one folder at once, so that they wait for each other's writes. Targets: a hit well
under 300 µs all in, at most 300 µs to store.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from common import Clock

from humanlm.clients.cache import DiskCache, request_key
from humanlm.clients.client import ScriptedClient, chat_all
from humanlm.clients.protocol import ChatReply, Usage, chat

NAME = "bench/model"
VERDICTS = [{"id": f"c{i}", "reason": "because of that " * 15, "score": 0.5} for i in range(4)]
REPLY = ChatReply(json.dumps(VERDICTS), Usage(1, 0, 4000, 300, 0.001))
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "number", "description": "x" * 50} for name in "abcdefgh"},
}


def requests(n, first=0):
    return [
        chat("context é words " * 900 + str(i), "rubric " * 100, schema=SCHEMA, temperature=0.0)
        for i in range(first, first + n)
    ]


async def model():
    return REPLY


async def through(cache, batch):
    "One request after the other through the cache"
    with Clock() as clock:
        for request in batch:
            await cache(request, NAME, model)
    return clock


async def in_thread(find, keys):
    "Lookups that a thread makes"
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as pool, Clock() as clock:
        await asyncio.gather(*(loop.run_in_executor(pool, find, key) for key in keys))
    return clock


async def by_client(batch, cache=None):
    "All requests at once through a client"
    client = ScriptedClient(lambda request: REPLY.text, NAME, cache=cache)
    with Clock() as clock:
        await chat_all(client, batch)
    return clock


def timed(f, items):
    with Clock() as clock:
        for item in items:
            f(item)
    return clock


def fill(folder, n, first):
    clock = asyncio.run(through(DiskCache(folder), requests(n, first)))
    print(clock.wall, clock.cpu)


def two_at_once(folder, n):
    "Two processes that fill one folder: their mean"
    command = [sys.executable, __file__, "--fill", folder, "--n", str(n), "--first"]
    pair = [
        subprocess.Popen([*command, str(i * n)], stdout=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    times = [list(map(float, p.communicate()[0].split())) for p in pair]
    clock = Clock()
    clock.wall, clock.cpu = (sum(column) / 2 for column in zip(*times))
    return clock


def measure(n, folder):
    batch = requests(n)
    keys, plain = [request_key(r, NAME) for r in batch], [chat(f"question {i}") for i in range(n)]
    cache, clients = DiskCache(folder + "/one"), DiskCache(folder + "/clients")
    yield "fingerprint of a request", timed(lambda r: request_key(r, NAME), batch)
    yield "ask and store, all in", asyncio.run(through(cache, batch))
    yield "hit, all in", asyncio.run(through(cache, batch))
    yield "  lookup alone", timed(cache.replies.find, keys)
    yield "  lookup handed to a thread", asyncio.run(in_thread(cache.replies.find, keys))
    yield "client without a cache, short", asyncio.run(by_client(plain))
    yield "client, cold, short", asyncio.run(by_client(plain, clients))
    yield "client, warm, short", asyncio.run(by_client(plain, clients))
    yield "ask and store, two processes", two_at_once(folder + "/two", n)
    count = len(DiskCache(folder + "/two"))
    if count != 2 * n:
        raise SystemExit(f"two processes stored {count} of {2 * n} replies")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a quarter of the requests")
    for name, kind in (("fill", str), ("n", int), ("first", int)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.fill:
        return fill(args.fill, args.n, args.first)
    n = 1000 if args.quick else 4000
    print(
        f"Python {sys.version.split()[0]}; {n:,} requests, answers of "
        f"{len(REPLY.text):,} characters\n\n{'':30} {'wall µs':>8} {'CPU µs':>8}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, clock in measure(n, folder):
            print(f"{name:30} {1e6 * clock.wall / n:>8.0f} {1e6 * clock.cpu / n:>8.0f}")


if __name__ == "__main__":
    main()
