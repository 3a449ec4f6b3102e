"""Scores and credits of turns: the published numbers, what must not change, and every edge case,
ours and as published."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.training.advantages import (
    _turn_credits,
    trajectory_scores,
    turn_advantages,
)
from humanlm.training.dialogues import CREDITS, SCORES

REWARDS, TOKENS = [[0, 0, 1], [0, 1], [0, 0], [0.5, 0, 0.5]], [[2, 2, 2], [3, 2], [2, 3], [1, 2, 3]]
TABLE = {  # credit, score → the advantage of each turn of four dialogues
    ("equalized", "r2g"): [[0.1947] * 3, [0.6101] * 2, [-1.4668] * 2, [0.6620] * 3],
    ("r2g", "r2g"): [[0.1532, 0.1915, 0.2394], [0.5546, 0.6933], [0, 0], [1.0440, 0.5092, 0.6366]],
    ("em", "r2g"): [
        [0.1460, 0.1460, 0.2921],
        [0.4358, 0.8716],
        [-1.4668] * 2,
        [0.7705, 0.4451, 0.7705],
    ],
    ("equalized", "mean"): [[0.1986] * 3, [0.9935] * 2, [-1.3907] * 2, [0.1986] * 3],
    ("r2g", "mean"): [[0.1563, 0.1953, 0.2442], [0.9032, 1.1290], [0, 0], [0.3132, 0.1528, 0.1910]],
    ("em", "mean"): [
        [0.1490, 0.1490, 0.2979],
        [0.7096, 1.4193],
        [-1.3907] * 2,
        [0.2311, 0.1335, 0.2311],
    ],
}


def dialogues(tokens, other=0):
    "Where turns begin, and the mask"
    starts = [[sum(row[:i]) + i * other for i in range(len(row))] for row in tokens]
    T = max((sum(row) + other * len(row) for row in tokens), default=0)
    mask = torch.zeros(len(tokens), T, dtype=torch.bool)
    for i, (row, begin) in enumerate(zip(tokens, starts)):
        for n, s in zip(row, begin):
            mask[i, s : s + n] = True
    return starts, mask


def by_turn(rewards, tokens, other=0, groups=None, **options):
    "The advantage of each turn; that of others' tokens is 0 and one turn's tokens are pushed alike"
    starts, mask = dialogues(tokens, other)
    found = turn_advantages(rewards, starts, mask, groups or [0] * len(rewards), **options)
    assert found.shape == mask.shape and found.isfinite().all() and (found[~mask] == 0).all()
    turns = [
        [found[i, s : s + n] for n, s in zip(row, begin)]
        for i, (row, begin) in enumerate(zip(tokens, starts))
    ]
    assert all((turn == turn[0]).all() for row in turns for turn in row)
    return [[turn[0].item() for turn in row] for row in turns]


# ---- the published numbers


def test_credits_and_scores_of_a_late_success():
    assert _turn_credits([[0, 0, 1]], "r2g")[0].tolist() == pytest.approx([0.64, 0.8, 1])
    assert _turn_credits([[0, 0, 1]], "em")[0].tolist() == pytest.approx([0.5, 0.5, 1])
    assert {name: trajectory_scores([[0, 0, 1]], name).item() for name in SCORES} == pytest.approx(
        {"sum": 1, "mean": 1 / 3, "r2g": 0.64}
    )
    assert trajectory_scores([[0, 0, 1]], "sum", compat=True).item() == 0.3333


def test_worked_example_of_two_halves():
    half = [[0.5, 0, 0.5]]
    assert [trajectory_scores(half, name).item() for name in ("sum", "r2g")] == pytest.approx(
        [1, 0.82]
    )
    assert (
        _turn_credits(half, "r2g")[0].tolist() == pytest.approx([0.82, 0.4, 0.5])
        and _turn_credits(half, "naive")[0].tolist() == half[0]
    )
    assert _turn_credits(half, "em", compat=True)[0].tolist() == pytest.approx(
        [0.8655, 0.5, 0.8655], abs=1e-9
    )


@pytest.mark.parametrize("other", [0, 3])
@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize("credit, score", TABLE)
def test_table_of_four_dialogues_under_six_schemes(credit, score, compat, other):
    found, known = (
        by_turn(REWARDS, TOKENS, other, credit=credit, score=score, compat=compat),
        TABLE[credit, score],
    )
    if not compat and credit == "r2g":
        known = [
            *known[:2],
            TABLE["equalized", score][2],
            known[3],
        ]  # a failure is pushed away from
    rounded = (
        score == "mean" and not compat
    )  # theirs is a mean of four decimals, of which 1e-4 becomes up to 2e-4
    for row, expected in zip(found, known, strict=True):
        assert row == pytest.approx(expected, abs=2e-4 if rounded else 1e-4)
    if compat:
        assert (
            by_turn(
                REWARDS,
                TOKENS,
                other,
                credit=credit,
                score="sum" if score == "mean" else score,
                compat=compat,
            )
            == found
        )


# ---- what must not change

TURN = st.tuples(st.sampled_from([0, 0.1, 0.25, 0.5, 0.8, 1]), st.integers(1, 4))
BATCH = st.lists(
    st.tuples(st.lists(TURN, min_size=1, max_size=5), st.integers(0, 2)), min_size=1, max_size=9
)
quick = settings(deadline=None, max_examples=40)


def columns(batch):
    return (
        [[r for r, _ in turns] for turns, _ in batch],
        [[n for _, n in turns] for turns, _ in batch],
        [g for _, g in batch],
    )


@pytest.mark.filterwarnings("ignore:.*nobody in their group")
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("credit", CREDITS)
@quick
@given(BATCH)
def test_credit_keeps_the_mean_push_and_equals_a_plain_loop(credit, score, batch):
    rewards, tokens, groups = columns(batch)
    found = by_turn(rewards, tokens, 2, groups, credit=credit, score=score)
    scores = trajectory_scores(rewards, score).tolist()
    for row, r, n, g, s in zip(found, rewards, tokens, groups, scores):
        others = [x for x, h in zip(scores, groups) if h == g]
        tied = len(others) < 2 or max(others) - min(others) < 1e-8
        compared = 0 if tied else (s - statistics.mean(others)) / (statistics.stdev(others) + 1e-6)
        c = _turn_credits([r], credit)[0].tolist()
        if not any(c):
            c = [1] * len(c)
        mean = sum(x * k for x, k in zip(c, n)) / sum(k for x, k in zip(c, n) if x)
        assert row == pytest.approx([compared * x / mean for x in c], abs=1e-5)
        assert sum(a * k for a, k in zip(row, n)) / sum(
            k for x, k in zip(c, n) if x
        ) == pytest.approx(compared, abs=1e-5)


# ---- edge cases: ours, and as published


def test_a_failed_user_means_no_push_and_no_part_in_the_comparison():
    found = by_turn([[1.0], [0.0], [0.5, math.nan]], [[2], [2], [2, 2]], credit="r2g", score="sum")
    assert found[2] == [0, 0] and [row[0] for row in found[:2]] == pytest.approx(
        [0.7071, -0.7071], abs=1e-4
    )


def test_negative_rewards_do_not_turn_a_push_around():
    rewards, tokens = [[1, -1], [1, 0]], [[2, 2], [2, 2]]
    published = by_turn(rewards, tokens, credit="r2g", score="r2g", compat=True)
    assert published[0] == pytest.approx([0.3536, -1.7678], abs=1e-4)
    ours = by_turn(rewards, tokens, credit="r2g", score="r2g")
    assert ours[0] == pytest.approx([-0.7071, 0], abs=1e-4) and all(x >= 0 for x in ours[1])
    assert by_turn([[-1, -1], [0, 0]], tokens, credit="naive")[0] == pytest.approx(
        [-0.7071] * 2, abs=1e-4
    )
