"""Microseconds per cached reply, beside the same lookup handed to a thread, and beside a new client per hit.

    python bench/cache.py            # about 20 s
    python bench/cache.py --quick    # about 5 s

Requests as a judge makes them: 15,000 characters of context, a schema, four verdicts in the answer (2,300 bytes). The last rows
go through a client; two processes fill one folder at once, so that they also wait for each other's writes. Targets: a hit well
under 300 µs all in, at most 300 µs to store.
"""
import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from humanlm.cache import DiskCache, request_key
from humanlm.llm import ChatReply, ScriptedClient, Usage, chat

VERDICTS = {"candidates": [{"id": f"c{i}", "reason": "because of that " * 15, "score": 0.5} for i in range(4)]}
REPLY = ChatReply(json.dumps(VERDICTS), Usage(1, 0, 4000, 300, 0.001), parsed=VERDICTS)
SCHEMA = {"type": "object", "properties": {name: {"type": "number", "description": "x" * 50} for name in "abcdefgh"}}


def requests(n, first=0):
    return [chat("context é words " * 900 + str(i), "rubric " * 100, schema=SCHEMA, temperature=0.0) for i in range(first, first + n)]


async def model():
    return REPLY


def each(n, seconds): return 1e6 * seconds / n


def timed(f, items):
    "Microseconds per item"
    start = time.perf_counter()
    for item in items: f(item)
    return each(len(items), time.perf_counter() - start)


async def through(cache, asked):
    "Microseconds per request through the cache, one after the other"
    start = time.perf_counter()
    for request in asked: await cache(request, "bench/model", model)
    return each(len(asked), time.perf_counter() - start)


async def in_thread(cache, keys):
    "Microseconds per lookup that a thread makes"
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as pool:
        start = time.perf_counter()
        await asyncio.gather(*(loop.run_in_executor(pool, cache.replies.find, key) for key in keys))
        return each(len(keys), time.perf_counter() - start)


async def by_client(cache, asked):
    "Microseconds per request of a client, all at once"
    client = ScriptedClient(lambda request: REPLY.text, "bench/model", cache=cache)
    start = time.perf_counter()
    await asyncio.gather(*(client(request) for request in asked))
    return each(len(asked), time.perf_counter() - start)


def fill(folder, n, first):
    print(asyncio.run(through(DiskCache(folder), requests(n, first))))


def two_at_once(folder, n):
    "Microseconds per reply that each of two processes stores in one folder"
    command = [sys.executable, __file__, "--fill", folder, "--n", str(n), "--first"]
    pair = [subprocess.Popen([*command, str(i * n)], stdout=subprocess.PIPE, text=True) for i in range(2)]
    return sum(float(p.communicate()[0]) for p in pair) / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the requests")
    parser.add_argument("--fill", default="", help=argparse.SUPPRESS)
    parser.add_argument("--n", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.fill: return fill(args.fill, args.n, args.first)
    n = 1000 if args.quick else 4000
    asked = requests(n)
    keys = [request_key(r, "bench/model") for r in asked]
    with tempfile.TemporaryDirectory() as folder:
        cache = DiskCache(folder + "/one")
        rows = [("fingerprint of a request", timed(lambda r: request_key(r, "bench/model"), asked)),
                ("ask and store, all in", asyncio.run(through(cache, asked))),
                ("hit, all in", asyncio.run(through(cache, asked))),
                ("  lookup alone", timed(cache.replies.find, keys)),
                ("  lookup handed to a thread", asyncio.run(in_thread(cache, keys))),
                ("client, cold", asyncio.run(by_client(by := DiskCache(folder + "/client"), asked))),
                ("client, warm", asyncio.run(by_client(by, asked))),
                ("ask and store, two processes", two_at_once(folder + "/two", n))]
        found = DiskCache(folder + "/two").size()
        assert found.replies == 2 * n, found
        print(f"Python {sys.version.split()[0]}; {n:,} requests, {found.bytes / found.replies:,.0f} bytes per reply\n")
        for name, microseconds in rows: print(f"{name:30} {microseconds:8.0f} µs")


if __name__ == "__main__": main()
