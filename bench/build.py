"""Rows per CPU-second from JSONL to parquet, beside reading the JSON and writing the parquet alone.

    nice -n -5 python bench/build.py            # about 1 min
    nice -n -5 python bench/build.py --quick    # about 10 s
    python bench/build.py --base COMMIT         # 52,560 rows of 6.9 kB beside another commit
    python bench/build.py --gigabytes 5         # memory of a build of a file of that size

Invented rows of about 4 kB: a post, two comments and a reply, sixty replies a person, in the order
of time. Personas quote the people. No tokeniser runs. Target: 5,000 rows/s per core for the RL
set, under 1 GB of memory whatever the size.
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import ROOT, Clock, in_turns, median_ratio, ratio

ROWS, KILOBYTES = 20_000, 4


def words(rng, n):
    return " ".join(rng.choices(WORDS, k=n))


WORDS = [
    f"{a}{b}{c}"
    for a in ("ba", "ko", "stra", "mi", "the", "lu")
    for b in ("n", "rd", "ss", "t")
    for c in ("", "er", "ing", "o", "ly")
]


def make_file(path, n, seed=0):
    "Write rows; texts come from a pool, so that making them is quick"
    rng = random.Random(seed)
    posts, comments, replies = ([words(rng, k) for _ in range(400)] for k in (290, 95, 80))
    people, threads = max(20, n // 60), max(10, n // 40)
    with open(path, "w") as f:
        for i in range(n):
            names = [f"person_{rng.randrange(people)}" for _ in range(4)]
            post = (i // 40 + rng.randrange(3)) % threads
            texts = [
                f"{posts[post % 400]} {post}",
                f"{rng.choice(comments)} {i % 977}",
                f"{rng.choice(comments)} {i % 983}",
            ]
            facts = [{"author": name, "score": 3} for name in names]
            prompt = [
                {"role": a, "content": t, "metadata": m} for a, t, m in zip(names, texts, facts)
            ]
            row = {
                "prompt": prompt,
                "completion": f"{rng.choice(replies)} {i}",
                "post_id": f"t3_{post}",
                "user_id": names[3],
                "timestamp": 1_500_000_000 + 30 * i,
                "metadata": {"score": i % 50},
            }
            f.write(json.dumps(row) + "\n")
    return path


def settings(path, out, sets, *more):
    from humanlm.core.grammar import parse
    from humanlm.data.build import GROUPS

    return parse(
        GROUPS,
        [
            f"--build.path={path}",
            "--build.source=reddit",
            f"--build.out={out}",
            f"--build.sets={json.dumps(sets)}",
            *more,
        ],
    )


def measure_build(path, tmp, sets):
    from humanlm.data.build import build

    out = tmp / "out"
    shutil.rmtree(out, ignore_errors=True)
    with Clock() as clock:
        build(settings(path, out, sets))
    return clock.cpu


def measure_read(path):
    with Clock() as clock, open(path, "rb") as lines:
        for line in lines:
            json.loads(line)
    return clock.cpu


def measure_write(tables, tmp):
    "Write tables that lie in memory, in the same row groups"
    import pyarrow.parquet as pq

    from humanlm.data.sets import CHUNK, PARQUET

    with Clock() as clock:
        for i, table in enumerate(tables):
            pq.write_table(table, tmp / f"floor{i}.parquet", row_group_size=CHUNK, **PARQUET)
    return clock.cpu


def speed(rows, rounds):
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        tmp = Path(folder)
        path = make_file(tmp / "rows.jsonl", rows)
        measure_build(path, tmp, ["rl"])
        tables = [pq.read_table(p) for p in sorted((tmp / "out").rglob("*.parquet"))]
        arms = {
            "build: examples and rl": lambda: measure_build(path, tmp, ["rl"]),
            "build: examples, rl and sft": lambda: measure_build(path, tmp, ["rl", "sft"]),
            "floor: read the JSON": lambda: measure_read(path),
            "floor: write the parquet": lambda: measure_write(tables, tmp),
        }
        results = in_turns(arms, rounds)
        print(
            f"{rows:,} rows of {path.stat().st_size / rows / 1000:.1f} kB, CPU seconds "
            f"of one process, best of {rounds} rounds"
        )
        print(f"{'what':<30}{'µs per row':>12}{'rows/s per core':>18}")
        for name, seconds in results.items():
            print(f"{name:<30}{min(seconds) / rows * 1e6:>12.0f}{rows / min(seconds):>18,.0f}")
        print("target: 5,000 rows/s per core for examples and rl")
        ratio(
            "corpus build, examples and rl",
            min(results["build: examples and rl"])
            / (min(results["floor: read the JSON"]) + min(results["floor: write the parquet"])),
            "CPU time of reading the JSON and writing the parquet alone",
        )


# ---- beside another commit

LONG_ROWS, MARKS = 52_560, [". ", "? ", ", ", "! ", ".\n\n", " – ", "; I’d say "]


def make_long_file(path, n, seed=0):
    "Write rows of 6.9 kB as Reddit has them: a post, three comments and a reply, with facts"
    rng = random.Random(seed)

    def text(k):
        return "".join(
            word + (rng.choice(MARKS) if rng.random() < 0.1 else " ")
            for word in rng.choices(WORDS, k=k)
        ).strip()

    posts, comments, replies = ([text(k) for _ in range(400)] for k in (376, 106, 92))
    people, threads = max(20, n // 60), max(10, n // 40)
    with open(path, "w") as f:
        for i in range(n):
            names, post = (
                [f"Person_{rng.randrange(people)}" for _ in range(5)],
                (i // 40 + rng.randrange(3)) % threads,
            )
            texts = [
                f"{posts[post % 400]} {post}",
                *(f"{rng.choice(comments)} {(i + j) % 977}" for j in range(3)),
            ]
            facts = [
                {
                    "author": name,
                    "score": 3,
                    "subreddit": "advice",
                    "created_utc": 1_500_000_000 + 30 * i - 60 * j,
                    "num_comments": 12,
                    "upvote_ratio": 0.9,
                    "permalink": f"/r/advice/comments/{post}/{i}_{j}/",
                    "edited": False,
                    "distinguished": None,
                }
                for j, name in enumerate(names)
            ]
            prompt = [
                {"role": name, "content": content, "metadata": fact}
                for name, content, fact in zip(names, texts, facts)
            ]
            f.write(
                json.dumps(
                    {
                        "prompt": prompt,
                        "completion": f"{rng.choice(replies)} {i}",
                        "post_id": f"t3_{post}",
                        "user_id": names[4],
                        "timestamp": 1_500_000_000 + 30 * i,
                        "metadata": facts[4],
                    }
                )
                + "\n"
            )
    return path


def one_build(path, sets, out):
    "CPU seconds and peak memory of one build, for another process to read"
    from humanlm.data.build import GROUPS, build

    plain = (
        ["--persona.pseudonyms=false"]
        if "pseudonyms" in GROUPS["persona"].__dataclass_fields__
        else []
    )
    with Clock() as clock:
        built = build(settings(path, out, json.loads(sets), *plain))
    print(
        json.dumps(
            {
                "cpu": clock.cpu,
                "rows": sum(built.rows.values()),
                "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            }
        )
    )


def beside(base, rows, rounds):
    "Build by this tree and by another commit in turns"
    with tempfile.TemporaryDirectory() as folder:
        tmp, trees = Path(folder), {"this tree": ROOT, base: Path(folder) / "base"}
        subprocess.run(
            ["git", "-C", ROOT, "worktree", "add", "-q", "--detach", trees[base], base], check=True
        )
        try:
            path = make_long_file(tmp / "rows.jsonl", rows)

            def run(tree, sets):
                shutil.rmtree(tmp / "out", ignore_errors=True)
                done = subprocess.run(
                    [sys.executable, __file__, "--one", path, sets, tmp / "out"],
                    env=os.environ | {"PYTHONPATH": str(tree)},
                    cwd=tmp,
                    check=True,
                    capture_output=True,
                    text=True,
                )
                return json.loads(done.stdout.splitlines()[-1])

            kinds = {"examples": "[]", "examples, rl and sft": '["rl", "sft"]'}
            arms = {
                (kind, name): lambda tree=tree, sets=sets: run(tree, sets)
                for kind, sets in kinds.items()
                for name, tree in trees.items()
            }
            results = in_turns(arms, rounds)
            import pyarrow.parquet as pq

            tables = [
                pq.read_table(p) for p in sorted((tmp / "out" / "examples").glob("*.parquet"))
            ]

            def floor(measure):
                return [{"cpu": measure()} for _ in range(rounds)]

            results |= {
                ("floor", "read the JSON"): floor(lambda: measure_read(path)),
                ("floor", "write the parquet of examples"): floor(
                    lambda: measure_write(tables, tmp)
                ),
                ("floor", "read the parquet of examples"): floor(lambda: measure_parquet(tmp)),
            }
            _print_beside(results, kinds, base, rows, path.stat().st_size)
        finally:
            subprocess.run(
                ["git", "-C", ROOT, "worktree", "remove", "--force", trees[base]], check=True
            )


def _print_beside(results, kinds, base, rows, size):
    print(
        f"{rows:,} rows of {size / rows / 1000:.1f} kB, filters, splits and personas by "
        f"rule; CPU seconds, best of {len(results['floor', 'read the JSON'])} rounds"
    )
    print(f"{'what':<24}{'by':<32}{'rows/CPU s':>20}{'MB/CPU s':>20}{'peak memory, MB':>18}")
    for (kind, name), some in results.items():
        cpu, memory = (
            min(one["cpu"] for one in some),
            max(one.get("memory", 0) for one in some) / 1000,
        )
        peak = f"{memory:,.0f}" if memory else ""
        speed = f"{rows / cpu:>20,.0f}{size / cpu / 1e6:>20.1f}"
        print(f"{kind:<24}{name:<32}{speed}{peak:>18}")
    for kind in kinds:
        won = median_ratio(
            *([one["cpu"] for one in results[kind, name]] for name in (base, "this tree"))
        )
        print(
            f"{kind}: {won:.2f} times the rows per CPU-second of {base} (median of "
            "neighbouring rounds; asked: 3.5)"
        )


def measure_parquet(tmp):
    import pyarrow.parquet as pq

    with Clock() as clock:
        for i in range(99):
            if (place := tmp / f"floor{i}.parquet").exists():
                pq.read_table(place).to_pylist()
    return clock.cpu


def memory(gigabytes):
    "Build a big file in a process of its own and say what it took"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        n = int(gigabytes * 1e9 / (KILOBYTES * 1000))
        make_file(path, n)
        start = time.perf_counter()
        flags = [
            "--build.path",
            str(path),
            "--build.source",
            "reddit",
            "--build.out",
            f"{folder}/out",
            "--build.sets",
            "[rl]",
        ]
        subprocess.run(
            [sys.executable, "-m", "humanlm", "data", *flags],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        used, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
        cpu = used.ru_utime + used.ru_stime
        print(
            f"{path.stat().st_size / 1e9:.2f} GB, {n:,} rows: peak memory "
            f"{used.ru_maxrss / 1e6:.2f} GB (target: under 1), "
            f"{wall:,.0f} s wall, {cpu:,.0f} s CPU, {n / cpu:,.0f} rows/s per core"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--gigabytes", type=float, default=0.0)
    parser.add_argument("--base", default="", help="a commit to measure beside this tree")
    parser.add_argument("--rows", type=int, default=LONG_ROWS)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if args.one:
        one_build(*args.one)
    elif args.gigabytes:
        memory(args.gigabytes)
    elif args.base:
        beside(args.base, args.rows, 2 if args.quick else 4)
    else:
        speed(ROWS // 4 if args.quick else ROWS, 2 if args.quick else 4)
