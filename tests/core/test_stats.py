"Intervals cover what they promise, pairs stay paired, and every test and measure of agreement is what the libraries say."

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

import humanlm
from humanlm.core.basics import DataError
from humanlm.core.stats import (
    Bootstrap,
    _bin_scores,
    _weighted_kappa,
    agreement,
    association,
    crossed_means,
    holm,
    known_mean,
    mean_interval,
    signed_rank,
    spearman,
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


def test_intervals_cover_the_true_mean():
    rng = np.random.default_rng(0)
    found = [mean_interval(rng.beta(2, 5, 60), seed=s, resamples=500) for s in range(300)]
    assert 0.90 <= np.mean([i.low <= 2 / 7 <= i.high for i in found]) <= 0.98


def test_intervals_over_contexts_cover_although_examples_depend():
    rng, contexts = np.random.default_rng(0), np.repeat(np.arange(60), 5)

    def draw():
        return np.repeat(rng.normal(0.5, 0.1, 60), 5) + rng.normal(0, 0.05, 300)

    data = [draw() for _ in range(200)]

    def covered(c):
        return np.mean(
            [i.low <= 0.5 <= i.high for i in (mean_interval(d, c, resamples=300) for d in data)]
        )

    assert covered(contexts) >= 0.89 and covered(None) < 0.8


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


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=1, max_size=8)
    | st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=20, max_size=24)
)
def test_scores_in_tenths_rank_as_whole_numbers_do(pairs):
    "Ties are ties, whatever a computer makes of 0.8 - 0.7"
    from scipy.stats import rankdata, wilcoxon

    a, b = np.array(pairs).T
    found, whole = signed_rank(a / 10 - b / 10), (a - b)[a != b]
    assert found.n == len(whole)
    if not len(whole):
        return
    ranks = rankdata(abs(whole))
    assert found.p == pytest.approx(wilcoxon(whole).pvalue)
    assert found.effect == pytest.approx(
        (ranks[whole > 0].sum() - ranks[whole < 0].sum()) / ranks.sum()
    )


def test_a_tie_by_hand():
    found = signed_rank(np.array([0.8, 0.7, 0.6]) - np.array([0.7, 0.6, 0.7]))
    assert (found.p, found.effect, found.n) == (pytest.approx(1.0), pytest.approx(1 / 3), 3)


def test_a_context_counts_once_however_many_replies_it_has():
    once, often = (
        signed_rank([0.1, -0.2, 0.3]),
        signed_rank([0.1] * 50 + [-0.2, 0.3], ["a"] * 50 + ["b", "c"]),
    )
    assert (once.p, once.n) == (often.p, often.n)
    assert math.isnan(signed_rank([math.nan]).p) and math.isnan(signed_rank([]).effect)


def test_signed_rank_keeps_its_promise_under_no_difference():
    "At 5 %, about one test in twenty is fooled"
    rng = np.random.default_rng(0)
    fooled = np.mean([signed_rank(rng.normal(size=30)).p < 0.05 for _ in range(600)])
    assert 0.02 < fooled < 0.085


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


def test_intervals_of_correlations_cover_the_truth():
    "About 95 of 100 intervals hold the correlation that the numbers were drawn with"
    rng = np.random.default_rng(1)
    draws = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], (200, 80))
    held = [p.low <= 0.5 <= p.high for p, _ in (association(*d.T, resamples=300) for d in draws)]
    assert 0.87 <= np.mean(held) <= 0.99


def test_a_difference_counts_only_what_both_have():
    d = mean_interval(np.subtract([0.9, 0.5, math.nan, 0.1], [0.8, 0.4, 0.9, math.nan]))
    assert (d.n, round(d.value, 9), round(d.low, 9)) == (2, 0.1, 0.1)
    with pytest.raises(DataError, match="2 clusters for 1 examples"):
        mean_interval([1.0], ["a", "b"])


def test_importing_statistics_loads_no_heavy_library():
    code = (
        "import sys, humanlm.core.stats; "
        "print(sorted({'torch','scipy','pandas','sklearn','matplotlib'} & "
        "set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
        == "[]"
    )


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


@settings(deadline=None, max_examples=60)
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
    a, b = _bin_scores(x), _bin_scores(y)
    if len({*a, *b}) == 1:
        assert math.isnan(found.kappa.value)
    else:
        assert found.kappa.value == pytest.approx(
            sklearn.metrics.cohen_kappa_score(a, b, weights="quadratic", labels=range(5)), abs=1e-9
        )
    assert found.gap.value == pytest.approx(np.abs(x - y).mean())
    assert agreement(y, x, resamples=20).kappa.value == pytest.approx(
        found.kappa.value, nan_ok=True
    )


@settings(deadline=None, max_examples=40)
@given(STEPS, st.randoms(use_true_random=False))
def test_resampled_agreement_equals_that_of_copied_rows(pairs, rng):
    x, y = np.array(pairs, float).T  # whole numbers, as bins are
    times = np.array([rng.randint(0, 3) for _ in pairs])
    if times.sum() < 2:
        return
    copies = [np.repeat(v, times) for v in (x, y)]
    for formula in (spearman, _weighted_kappa):
        copied = formula(*copies, np.ones((1, times.sum())))
        assert formula(x, y, times[None].astype(float)) == pytest.approx(
            copied, abs=1e-6, nan_ok=True
        )


def test_intervals_cover_and_respect_cases():
    rng = np.random.default_rng(0)

    def pair(n):
        return (z := rng.normal(size=n)), z + rng.normal(size=n)

    x, y = pair(200_000)
    true = scipy.stats.spearmanr(x, y).statistic

    def to_unit(v):
        return 1 / (1 + np.exp(-v))

    held = [agreement(*map(to_unit, pair(80)), seed=i, resamples=300).spearman for i in range(150)]
    assert 0.88 <= np.mean([e.low <= true <= e.high for e in held]) <= 0.99
    a, b = (np.repeat(to_unit(v), 6) for v in pair(30))
    wide, narrow = agreement(a, b, np.repeat(range(30), 6)).spearman, agreement(a, b).spearman
    assert wide.value == narrow.value and wide.high - wide.low > 1.8 * (narrow.high - narrow.low)


def test_agreement_of_many_scores_is_quick():
    import time

    rng = np.random.default_rng(0)
    a = rng.random(20_000).round(2)
    start = time.process_time()
    agreement(a, np.clip(a + rng.normal(0, 0.1, 20_000), 0, 1), resamples=100)
    assert time.process_time() - start < 5


def test_missing_scores_and_few_of_them():
    nan = math.nan
    assert agreement([0.1, nan, 0.9], [0.2, 0.3, nan]).n == 1
    for pair in (([], []), ([nan], [0.5]), ([0.5], [0.5])):
        assert all(math.isnan(e.low) for e in agreement(*pair))
    with pytest.raises(DataError, match="2 scores against 1"):
        agreement([0.1, 0.2], [0.1])
    with pytest.raises(DataError, match="1 clusters"):
        agreement([0.1, 0.2], [0.1, 0.3], ["a"])


def test_nobody_else_draws_resamples_or_takes_percentiles():
    sources = {
        p: p.read_text("utf-8")
        for p in Path(humanlm.__file__).parent.rglob("*.py")
        if p.name != "_modidx.py"
    }
    found = {
        str(p.relative_to(Path(humanlm.__file__).parent))
        for p, text in sources.items()
        if re.search(r"percentile\(|quantile\(|bincount\(cells", text)
    }
    assert found == {"core/stats.py", "fidelity/fingerprint.py"}, (
        "the second cuts bins, and says how far halves of the people lie apart"
    )


# ---- many tests


@settings(deadline=None, max_examples=100)
@given(st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), max_size=12))
def test_holm_never_lowers_a_p_and_keeps_their_order(ps):
    found, known = holm(ps), [i for i, p in enumerate(ps) if p == p]
    assert [math.isnan(p) for p in found] == [math.isnan(p) for p in ps]
    assert all(
        ps[i] <= found[i] <= min(1, ps[i] * len(known))
        or found[i] == pytest.approx(max(found[j] for j in known if ps[j] <= ps[i]))
        for i in known
    )
    ordered = sorted(known, key=lambda i: ps[i])
    assert [found[i] for i in ordered] == sorted(found[i] for i in known)
    for cut in (0.01, 0.05, 0.3):  # as he wrote it: step down, and stop at the first that holds
        rejected = next(
            (k for k, i in enumerate(ordered) if ps[i] * (len(ordered) - k) > cut), len(ordered)
        )
        assert {i for i in known if found[i] <= cut} == set(ordered[:rejected])


@pytest.mark.parametrize("n, ties", [(14, True), (30, False), (50, False), (51, False), (80, True)])
def test_signed_ranks_of_many_clusters_are_scipys(n, ties):
    from scipy.stats import wilcoxon

    d = np.random.default_rng(n).normal(0.2, 1, n)
    d = np.round(d, 1) + (np.round(d, 1) == 0) * 0.1 if ties else d
    assert signed_rank(d).p == pytest.approx(wilcoxon(d.round(9)).pvalue)
