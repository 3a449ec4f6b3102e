"Splits hold whole discussions, evidence is earlier, and the order of rows does not matter."

import numpy as np
import pytest

from humanlm.data.dataset import share
from humanlm.data.selection import (
    HISTORY,
    SEEN,
    STRANGER,
    TEST,
    TRAIN,
    UNSEEN,
    VAL,
    _choose_evidence,
    _drop_strangers,
    _split,
)

OUT = (TRAIN, VAL, TEST, SEEN)


def make_rows(key, user, context, time, turn, target):
    "Rows of columns"
    names = "key, user, context, time, until, turn, target"
    return np.rec.fromarrays([key, user, context, time, time, turn, target], names=names)


def random_rows(seed, n=400, people=25, talks=30, ties=True, history=0.2):
    "Rows of people who are unequally busy, in discussions of unequal length, with many equal times"
    rng = np.random.default_rng(seed)
    users, contexts = (rng.integers(1, 2**63, k, dtype=np.uint64) for k in (people, talks))
    user, context = (
        pool[(rng.random(n) ** 2 * len(pool)).astype(int)] for pool in (users, contexts)
    )
    when = rng.integers(0, 60 if ties else 10**9, n).astype(float)
    turn = np.zeros(n, int)
    for c in contexts:
        turn[context == c] = 2 * np.arange(1, (context == c).sum() + 1)
    key = rng.permutation(n).astype(np.uint64) + np.uint64(1)
    return make_rows(key, user, context, when, turn, rng.random(n) >= history)


WHOLE = ["post", "user"]  # splits in which discussions stay whole


def sides(rows, fate):
    "Which sides of the split each discussion is on; known and unknown people are one side"
    return [
        {int(f) if f != SEEN else TEST for f in fate[(rows.context == c) & np.isin(fate, OUT)]}
        for c in np.unique(rows.context)
    ]


@pytest.mark.parametrize("by", WHOLE)
@pytest.mark.parametrize("seed", range(2))
def test_discussions_stay_whole(by, seed):
    rows = random_rows(seed)
    fate = _split(rows, by)
    assert all(len(s) <= 1 for s in sides(rows, fate))
    assert (fate[~rows.target] == HISTORY).all() and not (fate[rows.target] == HISTORY).any()
    assert {TRAIN, TEST} <= set(np.where(fate == SEEN, TEST, fate))


@pytest.mark.parametrize("by", WHOLE)
@pytest.mark.parametrize("seed", range(2))
def test_evidence_is_disjoint_and_strictly_earlier(by, seed):
    rows = random_rows(seed)
    before = _split(rows, by)
    used, fate = _choose_evidence(rows, before, history=5, least=2)
    assert used.any() and not np.isin(fate[used], OUT).any()
    for user in np.unique(rows.user):
        mine, out = rows.user == user, (rows.user == user) & np.isin(fate, OUT)
        assert (mine & used).sum() <= 5
        if out.any():
            assert (mine & used).sum() >= 2 and rows.time[mine & used].max() < rows.time[out].min()
        if (
            mine & (before == TRAIN)
        ).any():  # known from training: nothing from discussions that test
            tested = rows.context[np.isin(before, (VAL, TEST, SEEN))]
            assert not np.isin(rows.context[mine & used], tested).any()


@pytest.mark.parametrize("seed", range(2))
def test_tested_people_are_known_from_training(seed):
    rows = random_rows(seed)
    fate = _drop_strangers(rows, _choose_evidence(rows, _split(rows, "post"), 5)[1])
    tested = np.isin(fate, (VAL, TEST))
    assert np.isin(rows.user[tested], rows.user[fate == TRAIN]).all()
    assert not np.isin(rows.user[fate == STRANGER], rows.user[fate == TRAIN]).any()


@pytest.mark.parametrize("seed", range(2))
def test_held_out_people_are_nowhere_in_training(seed):
    rows = random_rows(seed, history=0)
    fate = _split(rows, "user", test_frac=0.3)
    strangers = np.unique(rows.user[np.isin(fate, (TEST, UNSEEN))])
    assert not np.isin(strangers, rows.user[np.isin(fate, (TRAIN, VAL, SEEN))]).any()
    assert len(strangers) == share(len(np.unique(rows.user)), 0.3)
