"""What several benches share: the test server, taking turns, and CPU seconds of this process."""

import gc
import json
import math
import os
import signal
import statistics
import sys
import threading
import time
import traceback
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from server import serving  # noqa: F401


class Clock:
    "Wall and CPU seconds of a block; nothing is collected from earlier blocks in it"

    def __init__(self, wait=lambda: None):  # until a GPU has done what it was given
        self.wait = wait

    def __enter__(self):
        gc.collect()
        self.wait()
        self.started = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error):
        self.wait()
        self.wall, self.cpu = (
            time.perf_counter() - self.started[0],
            time.process_time() - self.started[1],
        )


def in_turns(arms, rounds, seconds=math.inf):
    "Measure each arm once per round, each round starting with another arm: name → [result]"
    names, results, start = list(arms), {name: [] for name in arms}, time.perf_counter()
    for i in range(rounds):
        if i and time.perf_counter() - start > seconds * i / (i + 1):
            break  # the next round would end too late
        for name in names[i % len(names) :] + names[: i % len(names)]:
            results[name].append(arms[name]())
    return results


def ratio(what, value, of, bound=""):
    "Keep a ratio for `all.py`, which names the file; bound: such as <= 1.25"
    if file := os.environ.get("BENCH_RATIOS"):
        with open(file, "a") as out:
            out.write(
                json.dumps(
                    {
                        "bench": Path(sys.argv[0]).stem,
                        "what": what,
                        "ratio": value,
                        "of": of,
                        "asked": bound,
                    }
                )
                + "\n"
            )
    return value


def median_ratio(ours, theirs):
    "Median of the ratios of neighbouring measurements"
    return statistics.median(a / b for a, b in zip(ours, theirs))


class Late(BaseException):
    "The time of a part is over"


class Lines:
    "Lines of a bench, printed and written to a file one by one, in parts that have their time"

    def __init__(self, out, fields, head, seconds, rounds):
        self.out, self.fields, self.head, self.rounds = out, fields, head, rounds
        self.lines, self.failed, self.end = [], False, time.perf_counter() + seconds
        signal.signal(signal.SIGALRM, self.late)
        last = threading.Timer(seconds + 10, os._exit, [1])  # should a kernel never return
        last.daemon = True
        last.start()
        print(head, "\n\n" + " | ".join(fields))

    def late(self, *_):
        raise Late("the time of this part is over")

    def line(self, part, **values):
        row = dict.fromkeys(self.fields) | {"part": part} | values
        if row.get("ratio"):
            names = " ".join(str(row[n]) for n in ("model", "weights", "what", "arm") if row[n])
            ratio(f"{part} {names}", row["ratio"], f"rate of {row['against']}")
        self.lines.append(row)
        shown = (f"{x:.3g}" if isinstance(x, float) else str(x or "") for x in row.values())
        print(" | ".join(shown), flush=True)
        self.out.write_text(json.dumps(self.head | {"lines": self.lines}, indent=1) + "\n")

    def fault(self, error, part, **row):
        "Write a line with the reason why there is no figure; all but time and memory is a failure"
        if not isinstance(error, Late) and type(error).__name__ != "OutOfMemoryError":
            self.failed = True
            traceback.print_exception(error)
        columns = {name: row[name] for name in row if name in self.fields}
        self.line(part, **columns, reason=f"{type(error).__name__}: {error}"[:200])

    def run(self, seconds, work, *names):
        "Do a part within its time"
        start = time.perf_counter()
        self.until = min(start + seconds, self.end)
        try:
            signal.setitimer(signal.ITIMER_REAL, max(self.until - start, 1e-3))
            work(self, *names)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except (Exception, Late) as e:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.fault(e, work.__name__, **dict(zip(("model", "weights"), names)))
        gc.collect()  # a trainer and its model hold each other

    def compare(self, part, turn, rows, **names):
        "Let arms take turns, after one each to warm up; rows: arm → what its line says"
        arms = {}
        for arm, row in rows.items():
            try:
                turn(arm)
                arms[arm] = partial(turn, arm)
            except Exception as e:
                self.fault(e, part, **names | row)
        seconds = in_turns(arms, self.rounds, 0.8 * (self.until - time.perf_counter()))
        for arm, ours in seconds.items():
            row = names | rows[arm] | {"seconds": statistics.median(ours)}
            work, theirs = row.pop("work", None), seconds.get(row.pop("peer", None))
            row["ratio"] = theirs and median_ratio(theirs, ours)
            row["rate"] = row["tokens"] / row["seconds"] if "tokens" in row else None
            row["mfu"] = work and work / row["seconds"]
            self.line(part, **row)
