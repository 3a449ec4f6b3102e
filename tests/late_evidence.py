"""Count evidence that is not earlier than the reply it helps to predict: raw messages, built rows.

    python tests/late_evidence.py LOG.jsonl BUILD THREAD ID TIME    # log, build, three columns

Shares no code with the package. In one thread, lines of one moment have the order of their ids;
between threads they have none.
"""

import csv
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq


def seconds(value):
    if isinstance(value, (int, float)):
        return float(value)
    moment = datetime.fromisoformat(value)
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


def late_evidence(log, build, thread, number, time):
    "Count rows with evidence; give those with late ones: (row, evidence, seconds too late)"
    with open(log, newline="") as lines:
        raw = [*(csv.DictReader(lines) if str(log).endswith(".csv") else map(json.loads, lines))]
    when = {
        f"{m[thread]}/{m[number]}": (seconds(m[time]), str(m[thread]), int(m[number]))
        for m in raw
        if m[time]
    }
    rows, late = 0, []
    built = sorted((Path(build) / "examples").glob("*.parquet"))
    for row in (
        row for path in built for row in pq.read_table(path, columns=["id", "persona"]).to_pylist()
    ):
        mine, evidence = when[row["id"]], json.loads(row["persona"])["evidence_ids"]
        worst = max(((when[e], e) for e in evidence), default=None)
        rows += worst is not None
        if worst and not (
            worst[0][0] < mine[0] or (worst[0][:2] == mine[:2] and worst[0][2] < mine[2])
        ):
            late.append((row["id"], worst[1], worst[0][0] - mine[0]))
    return rows, late


if __name__ == "__main__":
    rows, late = late_evidence(*sys.argv[1:])
    print(
        f"{len(late)} of {rows} rows have evidence that is not earlier"
        + "".join(f"\n  {r}: {e}, {s:+,.0f} s" for r, e, s in late[:5])
    )
