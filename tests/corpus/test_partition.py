"Splits hold whole discussions, evidence lies before what is predicted, and nothing depends on the order of rows."

import subprocess
import sys
import time

import numpy as np
import pytest

from humanlm.core.basics import DataError
from humanlm.corpus.partition import (
    EARLY,
    EVIDENCE,
    FATES,
    HISTORY,
    NEWCOMER,
    SEEN,
    STRANGER,
    TEST,
    TRAIN,
    TURNS,
    UNSEEN,
    VAL,
    Index,
    _Groups,
    _split_post,
    _split_turn,
    _turn_counts,
    chance,
    choose_evidence,
    count_fates,
    hash64,
    in_order,
    keep_active,
    keep_first,
    keep_share,
    split,
    splitters,
)
from humanlm.data.splits import share

OUT = (TRAIN, VAL, TEST, SEEN)


def make_index(users, contexts, times, turns=None, targets=None):
    "An index from names; the id of a row is user, context, time and turn"
    turns, targets = turns or [1] * len(users), targets or [True] * len(users)
    keys = [hash64(f"{u}|{c}|{t}|{n}") for u, c, t, n in zip(users, contexts, times, turns)]
    names = (np.array([*map(hash64, values)], np.uint64) for values in (users, contexts))
    return Index(
        np.array(keys, np.uint64),
        *names,
        np.array(times, float),
        np.array(turns, int),
        np.array(targets, bool),
    )


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
    return Index(
        rng.permutation(n).astype(np.uint64) + np.uint64(1),
        user,
        context,
        when,
        turn,
        rng.random(n) >= history,
    )


def sides(rows, fate):
    "Which sides of the split each discussion is on; known and unknown people are tested on the same side"
    return [
        {int(f) if f != SEEN else TEST for f in fate[(rows.context == c) & np.isin(fate, OUT)]}
        for c in np.unique(rows.context)
    ]


@pytest.mark.parametrize("by", splitters)
@pytest.mark.parametrize("seed", range(12))
def test_discussions_stay_whole(by, seed):
    rows = random_rows(seed)
    fate = split(rows, by)
    assert all(len(s) <= 1 for s in sides(rows, fate))
    assert (fate[~rows.target] == HISTORY).all() and not (fate[rows.target] == HISTORY).any()
    assert {TRAIN, TEST} <= set(np.where(fate == SEEN, TEST, fate))


@pytest.mark.parametrize("by", splitters)
@pytest.mark.parametrize("seed", range(6))
def test_the_order_of_rows_does_not_matter(by, seed):
    rows, mixing = random_rows(seed), np.random.default_rng(seed).permutation(400)
    fate = split(rows, by)
    assert (split(rows[mixing], by) == fate[mixing]).all()
    found, mixed = choose_evidence(rows, fate, 7), choose_evidence(rows[mixing], fate[mixing], 7)
    assert (mixed.used == found.used[mixing]).all() and (mixed.fate == found.fate[mixing]).all()
    assert (
        rows[mixing].drop_strangers(mixed.fate) == rows.drop_strangers(found.fate)[mixing]
    ).all()


@pytest.mark.parametrize("by", splitters)
@pytest.mark.parametrize("seed", range(12))
def test_evidence_is_disjoint_and_strictly_earlier(by, seed):
    rows = random_rows(seed)
    before = split(rows, by)
    used, fate = choose_evidence(rows, before, history=5, share=0.4, least=2)
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


@pytest.mark.parametrize("seed", range(6))
def test_tested_people_are_known_from_training(seed):
    rows = random_rows(seed)
    fate = rows.drop_strangers(choose_evidence(rows, split(rows, "post"), 5).fate)
    tested = np.isin(fate, (VAL, TEST))
    assert np.isin(rows.user[tested], rows.user[fate == TRAIN]).all()
    assert not np.isin(rows.user[fate == STRANGER], rows.user[fate == TRAIN]).any()


def test_posts_are_held_out_by_their_earliest_reply():
    contexts = [f"c{i}" for i in range(50)] * 2
    rows = make_index(
        [f"u{i % 7}" for i in range(100)], contexts, [*range(50), *range(1000, 950, -1)]
    )  # late replies in the other order
    fate = _split_post(rows)
    assert fate[:50].tolist() == [TRAIN] * 45 + [VAL] + [TEST] * 4
    assert (fate[50:] == fate[:50]).all()


def test_shares_are_rounded_half_up_and_take_at_least_one():
    assert [share(n, 0.08) for n in (1, 6, 7, 18, 19, 31, 32)] == [1, 1, 1, 1, 2, 2, 3]
    with pytest.raises(DataError, match="1 discussions are too few"):
        _split_post(make_index(["a"], ["c"], [0]))


@pytest.mark.parametrize("seed", range(6))
def test_held_out_people_are_nowhere_in_training(seed):
    rows = random_rows(seed, history=0)
    fate = split(rows, "user", unseen_frac=0.3, seen_frac=0.1)
    strangers = np.unique(rows.user[np.isin(fate, (TEST, UNSEEN))])
    assert not np.isin(strangers, rows.user[np.isin(fate, (TRAIN, VAL, SEEN))]).any()
    assert len(strangers) == share(len(np.unique(rows.user)), 0.3)


def test_separate_discussions_give_the_published_user_split():
    n = 300
    rows = make_index([f"u{i % 10}" for i in range(n)], [f"book {i}" for i in range(n)], range(n))
    fate = split(rows, "user", unseen_frac=0.2, seen_frac=0.1, val_frac=0.1)
    counts = count_fates(fate)
    assert counts["test"] == 60 and counts["test_seen"] == 24 and "unseen" not in counts
    for user in np.unique(rows.user[fate == SEEN]):
        mine = rows.user == user
        assert rows.time[mine & (fate == SEEN)].min() > rows.time[mine & (fate != SEEN)].max()


def test_the_published_table_of_turns():
    n = np.arange(5, 11)
    found = _turn_counts(n)  # 5 % and 5 %, at least six turns train
    assert np.stack(found).T.tolist() == [
        [5, 0, 0],
        [6, 0, 0],
        [6, 1, 0],
        [6, 1, 1],
        [6, 1, 2],
        [7, 1, 2],
    ]
    rows = make_index(
        *zip(*[("u", f"chat {k}", 100 * k + t) for k in n for t in range(k)]),
        turns=[2 * t + 2 for k in n for t in range(k)],
    )
    fate = _split_turn(rows, 0.05, 0.05, turns=(5, 9), compat=6)
    per_chat = [
        [
            int((fate[rows.context == hash64(f"chat {k}")] == f).sum())
            for f in (TRAIN, VAL, TEST, TURNS)
        ]
        for k in n
    ]
    assert per_chat == [
        [5, 0, 0, 0],
        [6, 0, 0, 0],
        [6, 1, 0, 0],
        [6, 1, 1, 0],
        [6, 1, 2, 0],
        [0, 0, 0, 10],
    ]
    train, test = (
        rows.turn[(rows.context == hash64("chat 9")) & (fate == f)] for f in (TRAIN, TEST)
    )
    assert train.max() < test.min()


def test_our_turns_test_the_end_of_whole_conversations():
    rows = make_index(
        *zip(*[("u", f"chat {k}", 100 * k + t) for k in range(20) for t in range(10)]),
        turns=[2 * t + 2 for _ in range(20) for t in range(10)],
    )
    fate = _split_turn(rows, 0.1, 0.05)
    for k in range(20):
        mine = fate[rows.context == hash64(f"chat {k}")].tolist()
        assert mine == (
            [EARLY] * 8 + [TEST] * 2
            if k >= 18
            else [EARLY] * 8 + [VAL] * 2
            if k == 17
            else [TRAIN] * 10
        )


def test_chance_is_the_same_everywhere_and_even():
    keys = np.arange(100_000, dtype=np.uint64)
    draws = chance(keys)
    step = 0x9E3779B97F4A7C15  # the first outputs of SplitMix64 from state 0, as published, are those of keys 0, step, 2 step
    known = chance(np.array([0, step, 2 * step % 2**64], np.uint64))
    assert [int(x * 2**53) for x in known] == [
        n >> 11 for n in (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)
    ]
    assert (draws >= 0).all() and (draws < 1).all()
    assert np.histogram(draws, 20)[0].std() < 3 * np.sqrt(5000)
    kept = [keep_share(keys, share, 3) for share in (0, 0.1, 0.5, 1)]
    assert kept[0].sum() == 0 and kept[3].all() and not (kept[1] & ~kept[2]).any()
    code = (
        "from humanlm.corpus.partition import *; import numpy as np; "
        "print(hash64('maple'), chance(np.array([7], np.uint64), 3)[0])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert said.split() == [str(hash64("maple")), str(chance(np.array([7], np.uint64), 3)[0])]


def test_the_earliest_of_equal_contents_stays():
    content, when, key = (np.array(a) for a in ([5, 5, 6, 5], [3.0, 1, 2, 1], [1, 9, 3, 2]))
    assert keep_first(content, in_order(when, key)).tolist() == [False, False, True, True]
    assert keep_active(np.array([1, 1, 2], np.uint64), 2).tolist() == [True, True, False]
    assert keep_active(np.array([1, 1, 2], np.uint64), 0, None).all()


def test_people_with_one_message_and_people_without_history():
    rows = make_index([*"aaab"], [*"1234"], range(4))
    fate = np.zeros(4, int)
    assert choose_evidence(rows, fate, share=0.5).fate.tolist() == [
        EVIDENCE,
        TRAIN,
        TRAIN,
        NEWCOMER,
    ]
    assert choose_evidence(rows, fate, share=0.5, least=0).fate.tolist() == [
        EVIDENCE,
        TRAIN,
        TRAIN,
        TRAIN,
    ]
    assert choose_evidence(rows, fate, history=0, least=0).fate.tolist() == [TRAIN] * 4


def test_equal_times_are_not_earlier():
    rows = make_index([*"aaaa"], [*"1234"], [5, 5, 5, 9], turns=[1, 2, 3, 4])
    used, fate = choose_evidence(rows, np.zeros(4, int), history=1)
    assert used.sum() == 1 and fate[3] == TRAIN and (fate == TRAIN).sum() == 1


def test_every_fate_has_a_meaning_and_counts_add_up():
    rows = random_rows(1)
    fate = choose_evidence(rows, split(rows, "user", unseen_frac=0.3), 5).fate
    assert sum(count_fates(fate).values()) == 400 and set(count_fates(fate)) <= set(FATES)
    assert _Groups.by(rows.context, rows.time).count(np.ones(400, bool)).sum() == 400


def test_a_hundred_thousand_rows_take_seconds():
    rows = random_rows(0, 100_000, 10_000, 4_000)
    for by in splitters:
        start = time.process_time()
        choose_evidence(rows, split(rows, by))
        assert time.process_time() - start < 8, by
