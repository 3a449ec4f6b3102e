"The best states so far: what enters, what replaces what, which row is asked next."

import math
from dataclasses import replace

import pytest

from experiments.prefixes import Entry, PrefixMap
from humanlm.hierarchy.levels import HIERARCHY, Hierarchy

ORDER = [{"level": "stance", "example_id": f"e{i}"} for i in range(6)]


def states(threshold=0.9):
    levels = [replace(d, threshold=d.threshold and threshold) for d in HIERARCHY]
    return PrefixMap(Hierarchy(levels), ORDER)


# ---- what enters (acceptance 6)


@pytest.mark.parametrize(
    "reward,text,enters",
    [
        (0.9, "x", True),
        (1.0, "x", True),
        (0.8999, "x", False),
        (math.nan, "x", False),
        (1.0, "", False),
        (1.0, " \n", False),
    ],
)
def test_nothing_below_the_threshold_and_nothing_empty_enters(reward, text, enters):
    assert states().offer(Entry("stance", "e1", text, reward, 0)) is enters


# ---- which row is asked


def with_stances(*examples):
    found = states()
    for example in examples:
        found.offer(Entry("stance", example, f"stance of {example}", 1.0, 0))
    return found


def test_the_rule_of_choice():
    found = with_stances("e1", "e4")
    assert found.choose("stance", "e0") == ("stance", "e0", ())
    assert found.choose("emotion", "e1") == (
        "emotion",
        "e1",
        (("stance", "stance of e1"),),
    )
    assert found.choose("emotion", "e2")[:2] == ("emotion", "e4"), (
        "the next example that has something to stand on"
    )
    assert found.choose("emotion", "e5")[:2] == ("emotion", "e1"), "the order is a circle"
    assert found.choose("emotion", "e2", [("emotion", "e4")])[:2] == ("emotion", "e1")
    assert found.choose("emotion", "e2", [("emotion", "e4"), ("emotion", "e1")])[:2] == (
        "stance",
        "e2",
    ), "one level down"
    assert found.choose("response", "e2")[:2] == ("emotion", "e4"), (
        "as many levels down as it takes"
    )


# ---- on disk
