"""Time the parser beside the regular expression that one would write first, in the same run.

    python bench/parser.py          # one thread, best of several repeats, about a minute
    python bench/parser.py --fast   # without the ten-megabyte texts

Columns: this package, the peer, and how often the peer's time fits ours (above 1: we are
faster). The peer accepts what `<level>(.*?)</level>` finds, so it checks neither order nor
repetition, and says nothing about what is wrong.
"""

import re
import sys
import time
from timeit import repeat

from common import ratio

from humanlm.hierarchy.levels import LEVELS
from humanlm.hierarchy.parsing import ParsePolicy, clean_reply, parse

STRICT, THINK, FLEX = ParsePolicy(), ParsePolicy(thinking=True), ParsePolicy(strict=False)
ONE = "<stance>leans away from the border bill</stance>"
SEVEN = "\n".join(f"<{n}>leans away from the border bill, a little</{n}>" for n in LEVELS)
REPLY = "</think><response>haha, no way to the travel app. you are not alone.</response>"
THOUGHT = (
    "<value>progress should lead<stance>is dead against the travel "
    "app<emotion>intensely angry about the travel app"
    "<belief>rules keep things working<goal>cheer someone up<communication>teasing tone"
)[: 300 - len(REPLY)].ljust(300 - len(REPLY), ".") + REPLY


def peer(text, levels, thinking=False):
    "The obvious parser: cut the thought off, then one lazy search per level"
    if thinking:
        text = text.rsplit("</think>", 1)[-1]
    fields = {}
    for level in levels:
        m = re.search(f"<{level}>(.*?)</{level}>", text, re.S | re.I)
        if m:
            fields[level] = m.group(1).strip()
    return fields


def micro(work, number=5000):
    "Microseconds of one call, best of nine series"
    return min(repeat(work, number=number, repeat=9)) / number * 1e6


def line(name, ours, theirs, note=""):
    print(f"{name:<46}{ours:>10.2f}{theirs:>10.2f}{theirs / ours:>8.2f}   {note}")
    ratio(f"parsing, {name}", ours / theirs, "time of one regular expression a level")


def short_texts():
    print(f"{'microseconds per text':<46}{'ours':>10}{'peer':>10}{'ratio':>8}")
    line(
        "one short level, strict",
        micro(lambda: parse(ONE, ("stance",), STRICT)),
        micro(lambda: peer(ONE, ("stance",))),
        "target: ours <= 6",
    )
    line(
        "one short level, flexible",
        micro(lambda: parse(ONE, ("stance",), FLEX)),
        micro(lambda: peer(ONE, ("stance",))),
        "target: ours <= 6",
    )
    line(
        "seven levels, strict",
        micro(lambda: parse(SEVEN, LEVELS, STRICT)),
        micro(lambda: peer(SEVEN, LEVELS)),
        "target: ours <= 25",
    )
    odd = SEVEN.replace("leans", "a < b:")
    line(
        "seven levels with a '<' inside, strict",
        micro(lambda: parse(odd, LEVELS, STRICT)),
        micro(lambda: peer(odd, LEVELS)),
    )
    line(
        "seven levels, wrong order, strict",
        micro(lambda: parse(SEVEN, LEVELS[::-1], STRICT)),
        micro(lambda: peer(SEVEN, LEVELS[::-1])),
    )


def thoughts():
    print(f"\n{'megabytes per second, 300 bytes with a thought':<46}{'ours':>10}{'peer':>10}")
    theirs = 300 / micro(lambda: peer(THOUGHT, ("response",), True))
    for name, policy in (
        ("strict, thinking", THINK),
        ("flexible, thinking", ParsePolicy(False, True)),
    ):
        assert parse(THOUGHT, ("response",), policy).ok
        ours = 300 / micro(lambda: parse(THOUGHT, ("response",), policy))
        print(f"{name:<46}{ours:>10.1f}{theirs:>10.1f}{ours / theirs:>8.2f}   target: ours >= 50")


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def hostile():
    "Ten times the text must take about ten times as long"
    texts = {
        unit: unit for unit in ("<", "<stance>", "</stance>", "</think>", "<a><b></a></b>", " ")
    }
    more = f"{'10 MB':>8}{'growth':>8}"
    print(
        f"\n{'seconds on hostile texts':<24}{'strict 1 MB':>12}{more}{'flexible 1 MB':>15}{more}"
        f"{'reply 10 MB':>13}"
    )
    for name, unit in {**texts, "<stance>.. </stance>..": None}.items():
        small, big = grown(unit, 10**6), grown(unit, 10**7)
        row = [
            x
            for policy in (THINK, FLEX)
            for x in growth(lambda t: parse(t, ("stance",), policy), small, big)
        ]
        strict, flexible = (
            f"{row[i + 1]:>8.2f}{row[i + 2] if row[i + 1] > 0.05 else '-':>8.3}" for i in (0, 3)
        )
        print(
            f"{name!r:<24}{row[0]:>12.3f}{strict}{row[3]:>15.3f}{flexible}"
            f"{seconds(lambda: clean_reply(big)):>13.2f}"
        )
    lazy = re.compile("<(\\w+)>(.*?)</\\1>", re.S | re.I)
    a, b, times = growth(lazy.findall, grown("<stance>", 10**4), grown("<stance>", 10**5))
    print(
        f"the lazy expression <(\\w+)>(.*?)</\\1> on '<stance>': 10 kB {a:.3f} s, 100 "
        f"kB {b:.2f} s, growth {times:.0f}"
    )


def grown(unit, n):
    "About n bytes of one unit, or of opening tags followed by closing ones"
    return (
        grown("<stance>", n // 2) + grown("</stance>", n // 2)
        if unit is None
        else unit * (n // len(unit))
    )


def growth(work, small, big):
    a, b = (min(seconds(lambda: work(text)) for _ in range(3)) for text in (small, big))
    return a, b, b / max(a, 1e-4)


if __name__ == "__main__":
    short_texts()
    thoughts()
    if "--fast" not in sys.argv:
        hostile()
