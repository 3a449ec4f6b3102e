"Intervals cover what they promise, pairs stay paired, and text in names cannot break a table."
import math, subprocess, sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from humanlm.core.basics import DataError, to_json
from humanlm.evaluation.results import (
    Importance, Result, bootstrap_interval, correlations, importance_rows, importance_table, means_table,
    paired_difference, paired_rows, paired_table, resampled_means, result_rows, results_table, signed_rank,
)

SCORE = st.floats(0, 1, width=32) | st.just(math.nan)
SCORES = st.lists(SCORE, max_size=25)


@settings(deadline=None, max_examples=50)
@given(SCORES)
def test_interval_holds_the_mean_and_counts_what_is_scored(scores):
    i = bootstrap_interval(scores, resamples=200)
    known = [s for s in scores if not math.isnan(s)]
    assert i.n == len(known)
    assert i.mean == pytest.approx(np.mean(known)) if known else math.isnan(i.mean)
    assert (0 <= i.low <= i.high <= 1) if len(known) > 1 else math.isnan(i.low) and math.isnan(i.high)


def test_intervals_cover_the_true_mean():
    rng = np.random.default_rng(0)
    found = [bootstrap_interval(rng.beta(2, 5, 60), seed=s, resamples=500) for s in range(300)]
    assert 0.90 <= np.mean([i.low <= 2 / 7 <= i.high for i in found]) <= 0.98


def test_intervals_over_contexts_cover_although_examples_depend():
    rng, contexts = np.random.default_rng(0), np.repeat(np.arange(60), 5)
    def draw(): return np.repeat(rng.normal(0.5, 0.1, 60), 5) + rng.normal(0, 0.05, 300)
    data = [draw() for _ in range(200)]
    covered = lambda c: np.mean([i.low <= 0.5 <= i.high for i in (bootstrap_interval(d, c, resamples=300) for d in data)])
    assert covered(contexts) >= 0.89 and covered(None) < 0.8


def test_agrees_with_a_loop():
    rng = np.random.default_rng(3)
    values, contexts = rng.random(20), [f"c{i % 7}" for i in range(20)]
    names = sorted(set(contexts))
    def one():
        drawn = [v for c in rng.choice(names, len(names)) for v, d in zip(values, contexts) if d == c]
        return np.mean(drawn)
    loop = np.percentile([one() for _ in range(3000)], [2.5, 97.5])
    assert bootstrap_interval(values, contexts, resamples=3000)[1:3] == pytest.approx(loop.tolist(), abs=0.01)


def test_same_seed_same_numbers_and_order_of_examples_does_not_matter():
    rng = np.random.default_rng(1)
    values, contexts, order = rng.random(30), np.array([f"c{i % 9}" for i in range(30)]), rng.permutation(30)
    assert np.array_equal(resampled_means(values, contexts, 4, 50), resampled_means(values, contexts, 4, 50))
    assert np.allclose(resampled_means(values, contexts, 4, 50), resampled_means(values[order], contexts[order], 4, 50))
    assert not np.array_equal(resampled_means(values, contexts, 5, 50), resampled_means(values, contexts, 4, 50))


def test_all_is_the_mean_of_the_levels_and_stands_first():
    rows = result_rows("m", "x", {"stance": [1, 0, math.nan], "goal": [0.2, 0.4, 0.6], "value": [math.nan] * 3})
    assert [(r.level, r.n) for r in rows] == [("all", 3), ("stance", 2), ("goal", 3), ("value", 0)]
    assert rows[0].mean == pytest.approx((0.5 + 0.4) / 2) and math.isnan(rows[3].mean)
    assert '"mean":null' in to_json(rows[3]).replace(" ", "")


def test_pairs_are_taken_per_example():
    a, b = [0.9, 0.5, math.nan, 0.1], [0.8, 0.4, 0.9, math.nan]
    d = paired_difference(a, b)
    assert (d.n, round(d.mean, 9), round(d.low, 9)) == (2, 0.1, 0.1)
    rows = paired_rows("x", "a", "b", {"stance": a, "goal": a}, {"goal": b, "belief": b})
    assert [(r.level, r.n) for r in rows] == [("all", 2), ("goal", 2)]


@pytest.mark.parametrize("call, message", [
    (lambda: paired_rows("x", "a", "b", {"s": [1.0]}, {"s": [1.0, 0.0]}), "a has 1 examples, b has 2"),
    (lambda: result_rows("m", "x", {}), "equally many scores"),
    (lambda: bootstrap_interval([1.0], ["a", "b"]), "2 contexts for 1 examples")])
def test_wrong_lengths_are_named(call, message):
    with pytest.raises(DataError, match=message): call()


def test_tables_escape_names_and_show_missing_numbers():
    evil = "<b>|\n| x"
    table = results_table([Result(evil, "m", "all", 0, None, None, None)], "m")
    assert table.splitlines()[2:] == ["| &lt;b&gt;&#124; &#124; x | 0 | – | – to – |"]
    assert paired_table([]) .count("\n") == 1 and results_table([], "m").count("\n") == 1


def test_light_import():
    code = "import sys, humanlm.evaluation.results; print(sorted({'torch','scipy','pandas','sklearn','matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


# ---- signed ranks and correlations

@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=20))
def test_signed_ranks_are_scipys_and_turn_their_sign_with_the_models(differences):
    from scipy.stats import rankdata, wilcoxon
    found, turned = signed_rank(differences), signed_rank([-d for d in differences])
    d = np.array([x for x in differences if x], float)
    assert found.n == len(d) and turned.effect == pytest.approx(-found.effect) and turned.p == pytest.approx(found.p)
    if not len(d): return
    ranks = rankdata(abs(d))
    assert found.p == pytest.approx(wilcoxon(d).pvalue)
    assert found.effect == pytest.approx((ranks[d > 0].sum() - ranks[d < 0].sum()) / ranks.sum())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=1, max_size=20))
def test_scores_in_tenths_rank_as_whole_numbers_do(pairs):
    "Ties are ties, whatever a computer makes of 0.8 - 0.7"
    from scipy.stats import rankdata, wilcoxon
    a, b = np.array(pairs).T
    found, whole = signed_rank(a / 10 - b / 10), (a - b)[a != b]
    assert found.n == len(whole)
    if not len(whole): return
    ranks = rankdata(abs(whole))
    assert found.p == pytest.approx(wilcoxon(whole).pvalue)
    assert found.effect == pytest.approx((ranks[whole > 0].sum() - ranks[whole < 0].sum()) / ranks.sum())


def test_a_tie_by_hand():
    found = signed_rank(np.array([.8, .7, .6]) - np.array([.7, .6, .7]))
    assert (found.p, found.effect, found.n) == (pytest.approx(1.0), pytest.approx(1 / 3), 3)


def test_a_context_counts_once_however_many_replies_it_has():
    once, often = signed_rank([0.1, -0.2, 0.3]), signed_rank([0.1] * 50 + [-0.2, 0.3], ["a"] * 50 + ["b", "c"])
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
    found, known = correlations(x, y, resamples=50), ~(np.isnan(x) | np.isnan(y))
    x, y = x[known], y[known]
    assert {i.n for i in found} == {len(x)}
    for i, reference in zip(found, (pearsonr, spearmanr)):
        if len(x) > 1 and x.std() > 1e-4 and y.std() > 1e-4:
            assert i.mean == pytest.approx(reference(x, y).statistic, abs=1e-5)
        assert math.isnan(i.low) or -1 - 1e-9 <= i.low <= i.high <= 1 + 1e-9


def test_intervals_of_correlations_cover_the_truth():
    "About 95 of 100 intervals hold the correlation that the numbers were drawn with"
    rng = np.random.default_rng(1)
    draws = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], (200, 80))
    held = [p.low <= 0.5 <= p.high for p, _ in (correlations(*d.T, resamples=300) for d in draws)]
    assert 0.87 <= np.mean(held) <= 0.99


def test_tables_of_measures_and_correlations_are_escaped():
    rows = [Result("<i>|", "chrf", "all", 3, 0.5, 0.4, 0.6)]
    matter = importance_rows("<i>|", "m", {"stance": [0.0, 0.5, 1.0]}, [0.0, 0.4, 1.0], resamples=50)
    for text in (means_table(rows, ["chrf", "bleu"]), importance_table(matter, "m")):
        assert "<i>" not in text and len({line.count(" | ") for line in text.splitlines()[2:]}) == 1
    assert matter[0].pearson > 0.9 and isinstance(matter[0], Importance)
