"The best states so far: what enters, what replaces what, which row is asked next."

import math
from dataclasses import replace

import pytest

from humanlm.alignment.modes import _Entry, _PrefixMap
from humanlm.hierarchy.levels import HIERARCHY, Hierarchy

ORDER = [{"level": "stance", "example_id": f"e{i}"} for i in range(6)]


def states(threshold=0.9):
    levels = [replace(d, threshold=d.threshold and threshold) for d in HIERARCHY]
    return _PrefixMap(Hierarchy(levels), ORDER)


def offered(*entries):
    found = states()
    for reward, step, text in entries:
        found.offer(_Entry("stance", "e1", text, reward, step))
    return found.entries["stance", "e1"]


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
    assert states().offer(_Entry("stance", "e1", text, reward, 0)) is enters


@pytest.mark.parametrize(
    "entries,kept",
    [
        ([(0.9, 1, "a"), (1.0, 2, "b")], "b"),
        ([(1.0, 1, "a"), (0.9, 2, "b")], "a"),
        ([(1.0, 1, "a"), (1.0, 2, "b")], "b"),
        ([(1.0, 2, "a"), (1.0, 1, "b")], "a"),
        ([(1.0, 1, "a"), (0.95, 2, "b"), (0.1, 3, "c")], "a"),
    ],
)
def test_best_ever_and_the_newest_among_equals(entries, kept):
    assert offered(*entries).field == kept


# ---- which row is asked


def with_stances(*examples):
    found = states()
    for example in examples:
        found.offer(_Entry("stance", example, f"stance of {example}", 1.0, 0))
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


def test_saved_and_loaded_it_is_the_same(tmp_path):
    found = with_stances("e1", "e2")
    found.offer(
        _Entry("emotion", "e1", 'hostile "text"\n</emotion>\ud800 ü', 0.95, 7, (("stance", "a"),))
    )
    path = found.save(tmp_path / "prefixes.json")
    again = states()
    again.load(path)
    assert again.entries.keys() == found.entries.keys()
    emotion = again.entries["emotion", "e1"]
    assert emotion[:2] == found.entries["emotion", "e1"][:2]
    assert emotion.before == (("stance", "a"),)
    assert again.save(tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert not list(tmp_path.glob("*.tmp*"))
