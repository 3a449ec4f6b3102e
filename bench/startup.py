"""Whole-process times of commands that must answer at once, against a bare interpreter.

    python bench/startup.py [--repeats 7] [--threads FILE]

Prints medians of wall time and of CPU time, alternately measured, as a ratio to `python -c
pass`, with the limit that the project sets itself. The first round, which may have to compile,
is not counted. FILE is a file of threads for configs/humanlm-threads.yaml; without it, the file
that HUMANLM_DATA leads to is taken, and without that the line is left out.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from common import ratio

ROOT = Path(__file__).resolve().parent.parent


def commands(threads):
    "Name → arguments of python and the limit in seconds"
    train = ["-m", "humanlm.train"]
    arms = {
        "python -c pass": (["-c", "pass"], None),
        "import humanlm": (["-c", "import humanlm"], 0.3),
        "humanlm.train --help": ([*train, "--help"], 1.0),
        "humanlm-mini.yaml --dry-run": (
            [*train, "--config", "configs/humanlm-mini.yaml", "--dry-run"],
            1.0,
        ),
    }
    if threads:
        argv = [
            *train,
            "--config",
            "configs/humanlm-threads.yaml",
            "--data.path",
            str(threads),
            "--dry-run",
        ]
        arms["humanlm-threads.yaml --dry-run"] = (argv, 1.0)
    return arms | {"import torch": (["-c", "import torch"], None)}


def seconds(argv):
    "Wall and CPU seconds of one process"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *argv],
        cwd=ROOT,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"failed: python {' '.join(argv)}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=Path)
    args = parser.parse_args()
    data = os.environ.get("HUMANLM_DATA")
    threads = args.threads or (Path(data) / "irc_threads" / "irc_dev.jsonl" if data else None)
    if threads:
        threads = threads.resolve()
    arms = commands(threads)
    times = {name: [] for name in arms}
    for _ in range(args.repeats + 1):
        for name, (argv, _) in arms.items():
            times[name].append(seconds(argv))
    medians = {
        name: [statistics.median(column) for column in zip(*all_of[1:])]
        for name, all_of in times.items()
    }
    bare = medians["python -c pass"]
    print(
        f"Python {sys.version.split()[0]}, median of {args.repeats}\n\n{'':32} "
        f"{'wall s':>7} {'limit':>6} {'ratio':>6} {'CPU s':>7} {'ratio':>6}"
    )
    for name, (wall, cpu) in medians.items():
        limit = arms[name][1]
        print(
            f"{name:32} {wall:7.3f} {limit or '':>6} {wall / bare[0]:6.1f} {cpu:7.3f} "
            f"{cpu / bare[1]:6.1f}"
        )
        if cpu != bare[1]:
            ratio(f"start of {name}", cpu / bare[1], "CPU time of python -c pass")


if __name__ == "__main__":
    main()
