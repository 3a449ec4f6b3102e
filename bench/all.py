"""Every bench in turn, in its quick form, and one table of all ratios against their peers.

    OMP_NUM_THREADS=1 python bench/all.py                      # 15 minutes on two quiet cores
    OMP_NUM_THREADS=1 python bench/all.py --only llm sdpo      # some of them
    OMP_NUM_THREADS=1 python bench/all.py --out ratios.jsonl   # resumable: ended benches are kept

A ratio of times or tokens is good below 1, a ratio of rates above 1. The noise is how much longer
the slowest of nine repeats of one piece of work took than the fastest, before and after the bench:
ratios within it say nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import ROOT

RUNS = [
    "startup",
    "parser --fast",
    "formats --quick",
    "advantages",
    "llm --quick",
    "judges --quick",
    "tom --quick",
    "social --quick",
    "build --quick",
    "generate --repeats 3",
    "trainer --steps 10",
    "sdpo --steps 6",
    "gyms --seconds 0.3",
    "gpu --rehearse",
    "classmate reading --rounds 3",
    "classmate sandbox --rounds 3",
    "classmate overlap --rounds 3",
    "viewer --samples 10000 --rounds 1",
]


def noise():
    "How much longer the slowest of nine pieces of work took than the fastest"

    def piece():
        start = time.perf_counter()
        sum(i * i for i in range(300_000))
        return time.perf_counter() - start

    times = [piece() for _ in range(9)]
    return max(times) / min(times) - 1


def measured(words, file):
    "Run a bench; its ratios, with the noise around it"
    before = noise()
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / f"{words[0]}.py", *words[1:]],
        env={**os.environ, "BENCH_RATIOS": str(file)},
        cwd=ROOT,
        timeout=1800,
    )
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    around = max(before, noise())
    if done.returncode and not rows:
        rows = [
            {
                "bench": words[0],
                "what": f"ended with code {done.returncode}",
                "ratio": float("nan"),
                "of": "",
                "asked": "",
            }
        ]
    return [row | {"noise": around} for row in rows]


def reached(row):
    sign, bound = row["asked"].split()
    return row["ratio"] <= float(bound) if sign == "<=" else row["ratio"] >= float(bound)


def table(rows):
    def target(row):
        return row["asked"] and row["asked"] + (": yes" if reached(row) else ": **no**")

    lines = [
        "| bench | what | ratio | of the peer's | asked | noise |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join(
        [
            *lines,
            *(
                f"| `{r['bench']}` | {r['what']} | {r['ratio']:.3g} | {r['of']} | "
                f"{target(r)} | {r['noise']:.0%} |"
                for r in rows
            ),
        ]
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", help="benches by name")
    parser.add_argument(
        "--out",
        type=Path,
        help="JSONL that keeps the ratios, and from which an interrupted run goes on",
    )
    args = parser.parse_args()
    rows = (
        [json.loads(line) for line in args.out.read_text().splitlines()]
        if args.out and args.out.exists()
        else []
    )
    ended = {row["run"] for row in rows}
    for run in RUNS:
        words = run.split()
        if run in ended or (args.only and words[0] not in args.only):
            continue
        print(f"\n== {run}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            results = [row | {"run": run} for row in measured(words, Path(folder) / "ratios.jsonl")]
        rows += results
        if args.out:
            with open(args.out, "a") as out:
                out.write("".join(json.dumps(row) + "\n" for row in results))
    print("\n" + table(rows))


if __name__ == "__main__":
    main()
