"""Decisions about pairs, counted: hand-made lists against other implementations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from humanlm.core.basics import run_sync
from humanlm.evaluation.contests import (
    Contest,
    PairVerdict,
    as_pairs,
    compare,
    win_rate,
    win_table,
)

DECISIONS = st.sampled_from(["a", "b", "tie", "none"])


def contest(decisions, name="new", clusters=None, against="base"):
    pairs = as_pairs(
        ["Where?"] * len(decisions),
        ["out back"] * len(decisions),
        ["behind the house"] * len(decisions),
        clusters=clusters,
    )
    return Contest(
        name, against, "hand", tuple(pairs), tuple(PairVerdict(d, "rule") for d in decisions)
    )


class Longer:
    "Prefers the longer reply; counts what it was asked"

    name = "longer"

    def __init__(self):
        self.asked = []

    async def __call__(self, pairs):
        self.asked += pairs
        return [
            p.settled() or PairVerdict("a" if len(p.a) > len(p.b) else "b", "rule") for p in pairs
        ]


@pytest.mark.parametrize(
    "decisions, rate, decided, coverage",
    [
        ([], math.nan, math.nan, 0.0),
        (["a"], 1.0, 1.0, 1.0),
        (["tie"] * 4, 0.5, math.nan, 0.0),
        (["none"] * 3, math.nan, math.nan, 0.0),
        (["a", "a", "b", "tie"], 0.625, 2 / 3, 0.75),
        (["a", "none", "b", "tie"], 0.5, 0.5, 0.5),
    ],
)
def test_rates_of_hand_made_lists(decisions, rate, decided, coverage):
    found = win_rate(contest(decisions))
    assert [found.rate.value, found.decided.value, found.coverage] == pytest.approx(
        [rate, decided, coverage], nan_ok=True
    )
    assert found.n == len(decisions) and found.rate.n == len(decisions) - decisions.count("none")
    assert str(win_table([found]))  # every list can be shown


@pytest.mark.parametrize("wins, losses", [(1, 0), (0, 1), (7, 3), (230, 26)])
def test_wilson_is_that_of_scipy(wins, losses):
    found = win_rate(contest(["a"] * wins + ["b"] * losses + ["tie"] * 5)).decided
    wanted = binomtest(wins, wins + losses).proportion_ci(method="wilson")
    assert [found.low, found.high] == pytest.approx([wanted.low, wanted.high], abs=1e-5)


def test_the_interval_without_ties_knows_clusters_and_is_wilsons_where_each_is_one_pair():
    decisions, clusters = ["a"] * 75 + ["b"] * 25, [str(i // 25) for i in range(100)]
    together, alone = (
        win_rate(contest(decisions, clusters=names)).decided for names in (clusters, None)
    )
    assert (
        together.value == alone.value == 0.75
        and together.low < 0.3 < 0.6 < alone.low
        and together == win_rate(contest(decisions, clusters=clusters)).rate
    )
    assert alone == win_rate(contest(decisions, clusters=[str(i) for i in range(100)])).decided
    all_won, none = (
        win_rate(contest(said, clusters=clusters)).decided for said in (["a"] * 100, ["tie"] * 100)
    )
    assert all_won.low == pytest.approx(
        binomtest(4, 4).proportion_ci(method="wilson").low, abs=1e-5
    ) and math.isnan(none.low)
    one = win_rate(contest(["a", "a", "b"], clusters=["x"] * 3)).decided
    assert math.isnan(one.low) and math.isnan(one.high)  # nothing is known beyond a single cluster


@given(st.lists(DECISIONS, min_size=1, max_size=12))
def test_the_other_side_has_what_is_left(decisions):
    turned = [{"a": "b", "b": "a"}.get(d, d) for d in decisions]
    one, other = win_rate(contest(decisions), resamples=50), win_rate(contest(turned), resamples=50)
    assert one.rate.value + other.rate.value == pytest.approx(1) or math.isnan(one.rate.value)
    assert (one.wins, one.losses, one.ties, one.none) == (
        other.losses,
        other.wins,
        other.ties,
        other.none,
    )


def test_the_interval_knows_clusters():
    rng = np.random.default_rng(0)
    before = rng.choice(["a", "b"], 60).tolist()
    after = ["a" if i % 6 == 0 else d for i, d in enumerate(before)]
    alone, together = (
        win_rate(contest(after)),
        win_rate(contest(after, clusters=[str(i // 10) for i in range(60)])),
    )
    assert together.rate.value == alone.rate.value and together.rate.low != alone.rate.low


def test_missing_and_empty_replies():
    judge = Longer()
    found = run_sync(
        compare(
            ["Where?"] * 4, {"new": [None, "", "here", "  "]}, ["x", "x", " here\n", ""], [judge]
        )
    )[0]
    assert [v.decision for v in found.verdicts] == ["none", "b", "tie", "tie"]
    rate = win_rate(found)
    assert (rate.none, rate.rate.n, rate.longer.n) == (1, 3, 3)


def test_every_candidate_meets_base_and_the_start_of_its_phase():
    judge, prompts = Longer(), ["Where?", "Who?"]
    replies = {"start": ["a", "b"], "step 5": ["aa", "bb"], "step 9": ["aaa", "b"]}
    found = run_sync(
        compare(prompts, replies, ["x", "yyyy"], [judge], {"step 5": "start", "step 9": "step 5"})
    )
    assert [(c.candidate, c.against) for c in found] == [
        ("start", "base"),
        ("step 5", "base"),
        ("step 5", "start"),
        ("step 9", "base"),
        ("step 9", "step 5"),
    ]
    assert found[4].pairs[0].b == "aa" and len(judge.asked) == 10
    assert {row["against"] for row in found[4].rows()} == {"step 5"} and found[4].rows()[1][
        "decision"
    ] == "b"
