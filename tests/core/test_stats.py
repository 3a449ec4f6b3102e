"""Intervals cover what they promise, pairs stay paired, and every test and measure of agreement is
what the libraries say."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanlm.evaluation.correlation import association
from humanlm.evaluation.measured import _signed_rank

SCORE = st.floats(0, 1, width=32) | st.just(math.nan)


# ---- signed ranks and correlations


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(-9, 9), min_size=1, max_size=8)
    | st.lists(st.integers(-9, 9), min_size=18, max_size=24)
)  # scipy counts all signs up to 13, which takes long
def test_signed_ranks_are_scipys_and_turn_their_sign_with_the_models(differences):
    from scipy.stats import rankdata, wilcoxon

    found, turned = _signed_rank(differences), _signed_rank([-d for d in differences])
    d = np.array([x for x in differences if x], float)
    assert (turned.effect, turned.p) == (pytest.approx(-found.effect), pytest.approx(found.p))
    if not len(d):
        return
    ranks = rankdata(abs(d))
    assert found.p == pytest.approx(wilcoxon(d).pvalue)
    assert found.effect == pytest.approx((ranks[d > 0].sum() - ranks[d < 0].sum()) / ranks.sum())


def test_a_context_counts_once_however_many_replies_it_has():
    once, often = (
        _signed_rank([0.1, -0.2, 0.3]),
        _signed_rank([0.1] * 50 + [-0.2, 0.3], ["a"] * 50 + ["b", "c"]),
    )
    assert once == often
    assert math.isnan(_signed_rank([math.nan]).p) and math.isnan(_signed_rank([]).effect)


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


@pytest.mark.parametrize("n, ties", [(14, True), (30, False), (50, False), (51, False), (80, True)])
def test_signed_ranks_of_many_clusters_are_scipys(n, ties):
    from scipy.stats import wilcoxon

    d = np.random.default_rng(n).normal(0.2, 1, n)
    d = np.round(d, 1) + (np.round(d, 1) == 0) * 0.1 if ties else d
    assert _signed_rank(d).p == pytest.approx(wilcoxon(d.round(9)).pvalue)
