"""Decisions about pairs, measured: hand-made lists."""

import math

import pytest

from humanlm.evaluation.answering import Pair, PairVerdict, pair_measurements
from humanlm.evaluation.measured import results


def means(decisions, clusters=None):
    pairs = [
        Pair(str(i), "Where?", "out back", "behind the house", clusters[i] if clusters else "")
        for i in range(len(decisions))
    ]
    rows = pair_measurements(pairs, {"hand": [PairVerdict(d, "rule") for d in decisions]})
    return {row.metric: row for row in results({"new": rows}).rows}


@pytest.mark.parametrize(
    "decisions, rate, without_ties, decided",
    [
        (["a"], 1.0, 1.0, 1.0),
        (["tie"] * 4, 0.5, math.nan, 0.0),
        (["none"] * 3, math.nan, math.nan, 0.0),
        (["a", "a", "b", "tie"], 0.625, 2 / 3, 0.75),
        (["a", "none", "b", "tie"], 0.5, 0.5, 0.5),
    ],
)
def test_rates_of_hand_made_lists(decisions, rate, without_ties, decided):
    found = means(decisions)
    assert [found[m].mean for m in ("win rate", "without ties", "decided")] == pytest.approx(
        [rate, without_ties, decided], nan_ok=True
    )
    assert found["win rate"].n == len(decisions) - decisions.count("none")


def test_the_interval_knows_clusters():
    decisions, clusters = ["a"] * 75 + ["b"] * 25, [str(i // 25) for i in range(100)]
    together, alone = means(decisions, clusters)["win rate"], means(decisions)["win rate"]
    assert together.mean == alone.mean == 0.75 and together.low < 0.3 < 0.6 < alone.low


def test_missing_and_empty_replies_need_no_judge():
    replies = zip([None, "", "here", "  "], ["x", "x", " here\n", ""])
    pairs = [Pair("1", "Where?", *two) for two in replies]
    assert [p.settled().decision for p in pairs] == ["none", "b", "tie", "tie"]
