"""Intervals cover what they promise, pairs stay paired, and every test and measure of agreement is
what the libraries say."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.core.stats import (
    Bootstrap,
    agreement,
    association,
    crossed_means,
    detectable,
    known_mean,
    mean_interval,
    signed_rank,
    wilson,
)

SCORE = st.floats(0, 1, width=32) | st.just(math.nan)
SCORES = st.lists(SCORE, max_size=25)


@settings(deadline=None, max_examples=50)
@given(SCORES)
def test_interval_holds_the_mean_and_counts_what_is_scored(scores):
    i = mean_interval(scores, resamples=200)
    known = [s for s in scores if not math.isnan(s)]
    assert i.n == len(known)
    assert i.value == pytest.approx(np.mean(known)) if known else math.isnan(i.value)
    assert (
        (0 <= i.low <= i.high <= 1) if len(known) > 1 else math.isnan(i.low) and math.isnan(i.high)
    )


def test_a_mean_is_a_number_and_an_array_only_along_an_axis():
    assert type(known_mean([1.0, math.nan])) is type(known_mean([])) is float and math.isnan(
        known_mean([])
    )
    assert known_mean([[1.0, math.nan], [3.0, 4.0]], 1).tolist() == [1.0, 3.5]


def test_a_share_of_nothing_has_no_interval():
    assert all(map(math.isnan, (*wilson(0.5, 0), *wilson(math.nan, 0))))


def test_agrees_with_a_loop():
    rng = np.random.default_rng(3)
    values, contexts = rng.random(20), [f"c{i % 7}" for i in range(20)]
    names = sorted(set(contexts))

    def one():
        drawn = [
            v for c in rng.choice(names, len(names)) for v, d in zip(values, contexts) if d == c
        ]
        return np.mean(drawn)

    loop = np.percentile([one() for _ in range(3000)], [2.5, 97.5])
    assert mean_interval(values, contexts, resamples=3000)[1:3] == pytest.approx(
        loop.tolist(), abs=0.01
    )


def test_same_seed_same_numbers_and_order_of_examples_does_not_matter():
    rng = np.random.default_rng(1)
    values, contexts, order = (
        rng.random(30),
        np.array([f"c{i % 9}" for i in range(30)]),
        rng.permutation(30),
    )
    assert np.array_equal(
        Bootstrap(contexts, 4, 50).means(values), Bootstrap(contexts, 4, 50).means(values)
    )
    assert np.allclose(
        Bootstrap(contexts, 4, 50).means(values),
        Bootstrap(contexts[order], 4, 50).means(values[order]),
    )
    assert not np.array_equal(
        Bootstrap(contexts, 5, 50).means(values), Bootstrap(contexts, 4, 50).means(values)
    )


# ---- signed ranks and correlations


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(-9, 9), min_size=1, max_size=8)
    | st.lists(st.integers(-9, 9), min_size=18, max_size=24)
)  # scipy counts all signs up to 13, which takes long
def test_signed_ranks_are_scipys_and_turn_their_sign_with_the_models(differences):
    from scipy.stats import rankdata, wilcoxon

    found, turned = signed_rank(differences), signed_rank([-d for d in differences])
    d = np.array([x for x in differences if x], float)
    assert (
        found.n == len(d)
        and turned.effect == pytest.approx(-found.effect)
        and turned.p == pytest.approx(found.p)
    )
    if not len(d):
        return
    ranks = rankdata(abs(d))
    assert found.p == pytest.approx(wilcoxon(d).pvalue)
    assert found.effect == pytest.approx((ranks[d > 0].sum() - ranks[d < 0].sum()) / ranks.sum())


def test_a_context_counts_once_however_many_replies_it_has():
    once, often = (
        signed_rank([0.1, -0.2, 0.3]),
        signed_rank([0.1] * 50 + [-0.2, 0.3], ["a"] * 50 + ["b", "c"]),
    )
    assert (once.p, once.n) == (often.p, often.n)
    assert math.isnan(signed_rank([math.nan]).p) and math.isnan(signed_rank([]).effect)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(SCORE, SCORE), max_size=20))
def test_correlations_are_scipys_or_nan(pairs):
    from scipy.stats import pearsonr, spearmanr

    x, y = (np.array([p[i] for p in pairs], float) for i in (0, 1))
    found, known = association(x, y, resamples=50), ~(np.isnan(x) | np.isnan(y))
    x, y = x[known], y[known]
    assert {i.n for i in found} == {len(x)}
    for i, reference in zip(found, (pearsonr, spearmanr)):
        if len(x) > 1 and x.std() > 1e-4 and y.std() > 1e-4:
            assert i.value == pytest.approx(reference(x, y).statistic, abs=1e-5)
        assert math.isnan(i.low) or -1 - 1e-9 <= i.low <= i.high <= 1 + 1e-9


# ---- seeds and contexts


def test_crossed_means_by_hand():
    values = np.array([[[0.0], [0.2]], [[0.4], [0.6]]])
    drawn = crossed_means(values, ["x", "y"], resamples=4000)[:, 0]
    possible = sorted(
        {round(s + c, 3) for s in (0, 0.2, 0.4) for c in (0, 0.1, 0.2)}
    )  # means of seeds plus means of contexts
    assert sorted(set(drawn.round(3))) == possible
    assert abs((drawn.round(3) == 0.0).mean() - 1 / 16) < 0.02


# ---- agreement

STEPS = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=2, max_size=30)


@settings(deadline=None, max_examples=50)
@given(STEPS)
def test_agreement_equals_the_libraries(pairs):
    x, y = np.array(pairs).T / 10
    found = agreement(x, y, resamples=20)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(found.spearman.value)
    else:
        assert found.spearman.value == pytest.approx(
            scipy.stats.spearmanr(x, y).statistic, abs=1e-9
        )
    assert found.gap.value == pytest.approx(np.abs(x - y).mean())


# ---- many tests


@pytest.mark.parametrize("n, ties", [(14, True), (30, False), (50, False), (51, False), (80, True)])
def test_signed_ranks_of_many_clusters_are_scipys(n, ties):
    from scipy.stats import wilcoxon

    d = np.random.default_rng(n).normal(0.2, 1, n)
    d = np.round(d, 1) + (np.round(d, 1) == 0) * 0.1 if ties else d
    assert signed_rank(d).p == pytest.approx(wilcoxon(d.round(9)).pvalue)


def test_missing_scores_and_few_of_them():
    nan = math.nan
    assert agreement([0.1, nan, 0.9], [0.2, 0.3, nan]).gap.n == 1
    for pair in (([], []), ([nan], [0.5]), ([0.5], [0.5])):
        assert all(math.isnan(e.low) for e in agreement(*pair))


def test_a_detectable_difference_is_seen_four_times_in_five():
    rng, error = np.random.default_rng(0), 0.05
    effect = detectable(0.3 - 1.959964 * error, 0.3 + 1.959964 * error)
    seen = rng.normal(effect, error, 20_000) > 1.959964 * error
    assert seen.mean() == pytest.approx(0.8, abs=0.01) and effect == pytest.approx(
        2.8 * error, 1e-3
    )
    assert math.isnan(detectable(0.1, 0.1)) and math.isnan(detectable(math.nan, math.nan))
