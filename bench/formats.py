"""Raw rows per CPU-second by source, beside reading their JSON; mails; bodies made to be slow.

    nice -n -5 python bench/formats.py           # about 20 s
    nice -n -5 python bench/formats.py --quick   # about 5 s

Invented rows of about 4 kB in the six published shapes, once as published and once as released
(hashed user ids, facts as strings, prompts of Opinion and Politics as JSON strings). The peer is
`json.loads` of the same lines. Target: 20,000 rows/s for published rows. Hostile bodies of 100 kB
are repetitions of one piece; the ratio is the time for 400 kB over that for 100 kB: 4 is linear.
"""

import argparse
import json
import statistics
from hashlib import sha256

from common import Clock, in_turns, ratio
from raw_rows import ROWS, forwarded, mail, original

from humanlm.data.mail import read_mail
from humanlm.data.rows import _map_row

PIECES = (
    "From: a\n",
    "To: a\n",
    "05/14/2001 03:05 PM\nTo: a\n",
    ">",
    "> x\n",
    "-----Original Message-----\n",
    "a wrote:\n> b\n",
    "\n",
    "a@",
    "<style",
)


def published(source, chars=4000):
    "A row of the source, filled up to the length"
    row = ROWS[source]()
    row["completion"] += " word" * ((chars - len(json.dumps(row))) // 5)
    return row


def released(source):
    row = published(source)
    facts = (m["metadata"] for m in row["prompt"])
    row["prompt"] = [
        m | {"metadata": f if isinstance(f, str) else json.dumps(f)}
        for m, f in zip(row["prompt"], facts)
    ]
    if source in ("reddit", "medium"):
        row["prompt"] = json.dumps(row["prompt"])
    if source not in ("amazon", "wildchat"):
        row["user_id"] = sha256(row["user_id"].encode()).hexdigest()[:16]
    return row


def per_second(f, n):
    def measure():
        with Clock() as clock:
            for _ in range(n):
                f()
        return n / clock.cpu

    return measure


def seconds(text):
    def measure():
        with Clock() as clock:
            read_mail(text)
        return clock.cpu

    return measure


def rates(n, rounds):
    print(f"{'rows':22}{'kB':>6}{'read JSON/s':>14}{'_map_row/s':>12}")
    for source in ROWS:
        for kind, make in (("published", published), ("released", released)):
            row = make(source)
            line = json.dumps(row)
            results = in_turns(
                {
                    "json": per_second(lambda: json.loads(line), n),
                    "map": per_second(lambda: _map_row(source, row), n),
                },
                rounds,
            )
            read, mapped = (statistics.median(results[k]) for k in ("json", "map"))
            print(
                f"{source + ', ' + kind:22}{len(line) / 1000:>6.1f}{read:>14,.0f}{mapped:>12,.0f}"
            )
            ratio(f"rows of {source}, {kind}", mapped / read, "rate of json.loads alone")


def mails(n, rounds):
    text = mail(
        "I have them all."
        + original("Who has the numbers?" + " word" * 300)
        + forwarded("Up again, all of them.")
    )
    results = in_turns({"mail": per_second(lambda: read_mail(text), n // 4)}, rounds)
    print(
        f"\nfiles of a mailbox ({len(text) / 1000:.1f} kB, two quotations): "
        f"{statistics.median(results['mail']):,.0f} per s\n"
    )
    print(f"{'100 kB of':34}{'ms':>8}{'400 kB / 100 kB':>18}")
    for piece in PIECES:
        small, large = (mail(piece * (size // len(piece))) for size in (100_000, 400_000))
        results = in_turns({"small": seconds(small), "large": seconds(large)}, rounds)
        small, large = (min(results[k]) for k in ("small", "large"))
        print(f"{piece!r:34}{1000 * small:>8.1f}{large / max(small, 1e-3):>18.1f}")


if __name__ == "__main__":
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--quick", action="store_true")
    quick = args.parse_args().quick
    rates(500 if quick else 2000, 3 if quick else 7)
    mails(500 if quick else 2000, 2 if quick else 5)
