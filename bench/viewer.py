"""How long a run of 100,000 samples takes to open: first page, last step, a search that finds something early, one that finds nothing, one record; beside pandas reading all of it.

    python bench/viewer.py [--samples 100000] [--per-file 1024]

Samples are generated as training writes them: 200 tokens each with log-probabilities and advantages, a turn, a judged state with its reason. Each line is a new viewer, which has opened no file;
`again` asks the same viewer once more. The files were just written, so both sides read them from the memory of the system.
"""
import argparse
import random
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from common import in_turns

from humanlm.data.trajectory import Score, Trajectory, Turn, save_trajectories
from humanlm.evaluation.viewer import RunViewer, Shown

LEVELS, TOKENS = ("stance", "emotion", "belief", "value", "goal", "communication", "response"), 200
WORDS = "nobody should go without; customs ought to be kept; the river festival is probably good; my aunt went through it; it warms my heart a little; luck decides most things".split()


def sample(rng, step, group, copy):
    "One trajectory of a step"
    level, text = LEVELS[step % len(LEVELS)], " ".join(rng.choices(WORDS, k=60))
    values, row = [rng.gauss(0, 1) for _ in range(TOKENS)], f"p{group:03}-u{rng.randrange(400):03}:{level}"
    score = Score("0", round(rng.random(), 3), "scored", " ".join(rng.choices(WORDS, k=30)), ("position", "reasons"), (0.5, 0.25), 0.1, "judge")
    return Trajectory(f"{step}/{row}/{copy}", row, group, step, level, (Turn("policy", text, (0, TOKENS)),), [*range(300)], [rng.randrange(5000) for _ in range(TOKENS)], [True] * TOKENS,
                      [-abs(x) for x in values], text, {level: text}, "ok", {level: score}, {"alignment": score.value}, values)


def make(folder, samples, per_file):
    "Write a run; its last sample alone says zanzibar"
    rng = random.Random(0)
    for step in range(samples // per_file):
        found = [sample(rng, step, i // 8, i % 8) for i in range(per_file)]
        if step == samples // per_file - 1: found[-1] = replace(found[-1], text="zanzibar", turns=(Turn("policy", "zanzibar", (0, TOKENS)),))
        save_trajectories(folder / "trajectories" / "humanlm" / f"step-{step:06d}-0.parquet", found)


def milliseconds(work):
    start = time.perf_counter()
    found = work()
    return 1e3 * (time.perf_counter() - start), found


def peer(folder, search=""):
    "Read all with pandas, and search the texts"
    import pandas
    table = pandas.concat([pandas.read_parquet(path) for path in sorted((folder / "trajectories" / "humanlm").glob("*.parquet"))], ignore_index=True)
    return table[table.text.str.contains(search, case=False, regex=False)] if search else table.head(25)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--per-file", type=int, default=1_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        make(folder, given.samples, given.per_file)
        size, files = sum(path.stat().st_size for path in folder.rglob("*.parquet")), given.samples // given.per_file
        print(f"{given.samples:,} samples in {files:,} files, {size / 1e6:,.0f} MB\n")
        last = f"step-{files - 1:06d}-0.parquet:{given.per_file - 1}"
        asked = {"first page": Shown(), "the last step": Shown(step=str(files - 1)), "search, found early": Shown(search="AUNT"), "search, found in the last sample": Shown(search="Zanzibar"),
                 "search, found nowhere": Shown(search="xylophone"), "score below 0.001": Shown(number=f"score {LEVELS[0]}", high="0.001"), "one record": Shown(at=last)}
        arms = {name: lambda shown=shown: [milliseconds(lambda: viewer.page(shown._asdict()))[0] for viewer in [RunViewer(folder)] for _ in range(2)] for name, shown in asked.items()}
        found = in_turns(arms, 3)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        pandas_first, pandas_search = milliseconds(lambda: peer(folder))[0], milliseconds(lambda: len(peer(folder, "zanzibar")))
        assert pandas_search[1] == 1 and "zanzibar" in RunViewer(folder).page({"search": "Zanzibar"})
        print(f"{'':34}{'ms':>10}{'again':>10}")
        for name, times in found.items(): print(f"{name:34}{sorted(t[0] for t in times)[1]:>10,.0f}{sorted(t[1] for t in times)[1]:>10,.0f}")
        print(f"\n{'pandas, all read, 25 rows':34}{pandas_first:>10,.0f}\n{'pandas, all read and searched':34}{pandas_search[0]:>10,.0f}")
        print(f"memory at its peak: {before / 1e3:,.0f} MB with the viewer (the making of the samples included), {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:,.0f} MB with pandas")


if __name__ == "__main__": main()
