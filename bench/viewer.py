"""How long a run of 100,000 samples takes to open, beside pandas reading all of it.

First page, last step, a search that finds something early, one that finds nothing, one record.

    python bench/viewer.py [--samples 100000] [--per-file 1000] [--rounds 3]

Samples are generated as training writes them: 200 tokens each with log-probabilities and
advantages, a turn, a judged state with its reason. Each line is a new viewer, which has opened no
file; `again` asks the same viewer once more. The files were just written, so both sides read them
from the memory of the system.
"""

import argparse
import random
import resource
import statistics
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from common import Clock, in_turns, ratio

from humanlm.core.trajectory import Score, Trajectory, Turn
from humanlm.evaluation.index import save_trajectories
from humanlm.evaluation.viewer import RunViewer, _Shown

TOKENS = 200
WORDS = (
    "nobody should go without; customs ought to be kept; the river festival is probably "
    "good; my aunt went through it; it warms my heart a little; luck decides most things"
).split()


def sample(rng, group, copy):
    "One trajectory"
    text, values = " ".join(rng.choices(WORDS, k=60)), [rng.gauss(0, 1) for _ in range(TOKENS)]
    score = Score(
        "0",
        round(rng.random(), 3),
        "scored",
        " ".join(rng.choices(WORDS, k=30)),
        ("position", "reasons"),
        (0.5, 0.25),
        0.1,
        "judge",
    )
    row = f"p{group:03}-u{rng.randrange(400):03}:value"
    return Trajectory(
        f"{row}/{copy}",
        row,
        group,
        0,
        "value",
        (Turn("policy", text, (0, TOKENS)),),
        [*range(300)],
        [rng.randrange(5000) for _ in range(TOKENS)],
        [True] * TOKENS,
        [-abs(x) for x in values],
        text,
        {"value": text},
        "ok",
        {"value": score},
        {"alignment": score.value},
        values,
    )


def make(folder, samples, per_file):
    "Write a run: a thousand samples again for each step; its last sample alone says zanzibar"
    import pyarrow.parquet as pq
    from pyarrow import array

    rng, place = random.Random(0), folder / "trajectories" / "humanlm"
    first = save_trajectories(
        place / "step-000000-0.parquet", [sample(rng, i // 8, i % 8) for i in range(per_file)]
    )
    table, last = pq.read_table(first), samples // per_file - 1
    for step in range(1, last):
        pq.write_table(
            table.set_column(
                table.schema.get_field_index("step"),
                table.schema.field("step"),
                array([step] * per_file),
            ),
            place / f"step-{step:06d}-0.parquet",
            compression="zstd",
            row_group_size=512,
        )
    odd = replace(
        sample(rng, 0, 0),
        step=last,
        text="zanzibar",
        turns=(Turn("policy", "zanzibar", (0, TOKENS)),),
    )
    save_trajectories(
        place / f"step-{last:06d}-0.parquet",
        [*(replace(sample(rng, i // 8, i % 8), step=last) for i in range(per_file - 1)), odd],
    )


def measured(work):
    "Milliseconds on the wall and of the processor"
    with Clock() as clock:
        work()
    return 1e3 * clock.wall, 1e3 * clock.cpu


def peer(folder, search=""):
    "Read all with pandas, and search the texts"
    import pandas

    table = pandas.concat(
        [
            pandas.read_parquet(path)
            for path in sorted((folder / "trajectories" / "humanlm").glob("*.parquet"))
        ],
        ignore_index=True,
    )
    return (
        table[table.text.str.contains(search, case=False, regex=False)]
        if search
        else table.head(25)
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--per-file", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        make(folder, args.samples, args.per_file)
        size, files = (
            sum(path.stat().st_size for path in folder.rglob("*.parquet")),
            args.samples // args.per_file,
        )
        print(f"{args.samples:,} samples in {files:,} files, {size / 1e6:,.0f} MB\n")
        last = f"step-{files - 1:06d}-0.parquet:{args.per_file - 1}"
        choices = {
            "first page": _Shown(),
            "the last step": _Shown(step=str(files - 1)),
            "search, found early": _Shown(search="AUNT"),
            "search, found in the last sample": _Shown(search="Zanzibar"),
            "search, found nowhere": _Shown(search="xylophone"),
            "a score, found nowhere": _Shown(number="score value", high="-1"),
            "one record": _Shown(at=last),
        }

        def twice(shown):
            viewer = RunViewer(folder)
            return [
                *measured(lambda: viewer.page(shown._asdict())),
                measured(lambda: viewer.page(shown._asdict()))[0],
            ]

        arms = {name: partial(twice, shown) for name, shown in choices.items()}
        results = {
            name: [statistics.median(each) for each in zip(*times)]
            for name, times in in_turns(arms, args.rounds).items()
        }
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        results |= {
            "pandas, all read, 25 rows": [*measured(lambda: peer(folder)), float("nan")],
            "pandas, all read and searched": [
                *measured(lambda: len(peer(folder, "zanzibar"))),
                float("nan"),
            ],
        }
        assert len(peer(folder, "zanzibar")) == 1 and "zanzibar" in RunViewer(folder).page(
            {"search": "Zanzibar"}
        )
        print(f"{'milliseconds':36}{'wall':>10}{'CPU':>10}{'again':>10}")
        for name, times in results.items():
            print(f"{name:36}" + "".join(f"{'' if x != x else f'{x:,.0f}':>10}" for x in times))
        for name in choices:
            ratio(
                f"{name}, of {args.samples:,} samples",
                results[name][1] / results["pandas, all read, 25 rows"][1],
                "CPU time of pandas reading all",
            )
        print(
            f"\nmemory at its peak: {before / 1e3:,.0f} MB with the viewer (the making "
            "of the samples included), "
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:,.0f} MB with "
            "pandas"
        )


if __name__ == "__main__":
    main()
