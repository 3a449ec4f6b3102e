"""Time the synthetic world: `python bench/miniworld.py` prints a small table (CPU time, best of
five, one thread)."""

import time

from humanlm.worlds.mini import SyntheticWorld, make_world
from humanlm.worlds.oracle import read, score_reply, score_state
from humanlm.worlds.states import STATE_LEVELS

HOSTILE = {
    "10 MB of <": "<" * 10_000_000,
    "10 MB of one phrase": "no way to the night tram " * 400_000,
    "10 MB of apostrophes": "a'" * 5_000_000,
}


def best(work, repeats=5):
    "CPU seconds of the fastest of a few runs of `work()`"
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def row(what, value, unit):
    print(f"{what:<44}{value:>10.3f} {unit}")


def main():
    world = make_world()
    rows = world.examples[:1000]
    replies = [e.reply for e in rows]
    size = sum(map(len, replies)) / 1e6
    row(f"make_world, {len(world.replies)} replies", best(make_world), "s")
    row(
        f"examples, {len(world.examples)} rows",
        best(lambda: SyntheticWorld.examples.func(world)),
        "s",
    )
    row("read a reply", best(lambda: [read(r) for r in replies]), "ms")
    row("read replies", size / best(lambda: [read(r) for r in replies]), "MB/s")
    states = [(level, e.states[level]) for e in rows for level in STATE_LEVELS]
    row(
        "score a state",
        best(lambda: [score_state(level, s, s) for level, s in states]) / 6,
        "ms",
    )
    row(
        "score a reply",
        best(lambda: [score_reply(e.reply, e.reply, e.states) for e in rows]),
        "ms",
    )
    for name, text in HOSTILE.items():
        seconds = best(lambda: read(text), repeats=1)
        row(f"read {name}", seconds, f"s ({len(text) / 1e6 / seconds:.0f} MB/s)")


if __name__ == "__main__":
    main()
