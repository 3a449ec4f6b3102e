"""The sandbox for programs of models against bare processes that do nothing, in turn, on the same interpreter.

    python bench/classmate.py [--programs 40] [--rounds 5] [--workers 2]

Ours is a program with one test through `Sandbox.score`: order, namespaces, limits, program, comparison. The peer is `python -I -c pass` without any
containment, as many at once. `without site` is the same peer without the search for installed packages (`-S`), which in some environments is
most of its start. Programs per second, medians of the rounds; the target is at least 0.5 times the peer.
"""
import argparse
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from common import Clock, in_turns, median_ratio
from humanlm.sandbox.programs import Sandbox, SandboxConfig

PROGRAM, TEST = "def more(n): return n + 1", "assert more(1) == 2"


def bare(pool, count, *options):
    "Start processes that do nothing; how many a second"
    command = [getattr(sys, "_base_executable", sys.executable), "-I", *options, "-c", "pass"]
    with Clock() as clock: list(pool.map(lambda _: subprocess.run(command, check=True), range(count)))
    return count / clock.wall


def sandboxed(sandbox, count):
    "Test a program as often; how many tests a second"
    with Clock() as clock: found = sandbox.score(PROGRAM, [TEST] * count, 30)
    assert found.rate == 1, found
    return count / clock.wall


def sandbox_rate(args):
    "Ours and the peers, in turn"
    for workers in sorted({1, args.workers}):
        with Sandbox(SandboxConfig(workers=workers, max_seconds=60)) as sandbox, ThreadPoolExecutor(workers) as pool:
            sandboxed(sandbox, 2), bare(pool, 2)
            found = in_turns({"sandbox": lambda: sandboxed(sandbox, args.programs), "python -I": lambda: bare(pool, args.programs), "without site": lambda: bare(pool, args.programs, "-S")}, args.rounds)
        print(f"\n{workers} at once {'programs/s':>14} {'times python -I':>18}")
        for name, rates in found.items(): print(f"{name:<12} {statistics.median(rates):>11.1f} {median_ratio(rates, found['python -I']):>18.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"programs": 40, "rounds": 5, "workers": 2}.items(): parser.add_argument(f"--{name}", type=int, default=default)
    sandbox_rate(parser.parse_args())


if __name__ == "__main__": main()
