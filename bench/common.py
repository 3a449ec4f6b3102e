"""What several benches share: the test server, taking turns, and CPU seconds of this process."""

import gc
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from server import serving  # noqa: F401


class Clock:
    "Wall and CPU seconds of a block; nothing is collected from earlier blocks in it"

    def __enter__(self):
        gc.collect()
        self.started = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error):
        self.wall, self.cpu = (
            time.perf_counter() - self.started[0],
            time.process_time() - self.started[1],
        )


def in_turns(arms, rounds, seconds=math.inf):
    "Measure each arm once per round, each round starting with another arm: name → [result]"
    names, found, start = list(arms), {name: [] for name in arms}, time.perf_counter()
    for i in range(rounds):
        if i and time.perf_counter() - start > seconds * i / (i + 1):
            break  # the next round would end too late
        for name in names[i % len(names) :] + names[: i % len(names)]:
            found[name].append(arms[name]())
    return found


def ratio(what, value, of, asked=""):
    "Keep a ratio for `all.py`, which names the file; asked: a bound such as <= 1.25"
    if file := os.environ.get("BENCH_RATIOS"):
        with open(file, "a") as out:
            out.write(
                json.dumps(
                    {
                        "bench": Path(sys.argv[0]).stem,
                        "what": what,
                        "ratio": value,
                        "of": of,
                        "asked": asked,
                    }
                )
                + "\n"
            )
    return value


def median_ratio(ours, theirs):
    "Median of the ratios of neighbouring measurements"
    return statistics.median(a / b for a, b in zip(ours, theirs))
