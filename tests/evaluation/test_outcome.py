"""Outcomes of experiments: seeds crossed with contexts, by hand."""

import math

import numpy as np

from humanlm.evaluation.measured import (
    ALL,
    Measurement,
    load_results,
    means_table,
    results,
    results_table,
    save_results,
)
from humanlm.evaluation.outcome import (
    Arms,
    _crossed_intervals,
    _crossed_means,
    _differences,
    _seed_means,
)


def test_one_context_leaves_only_the_seeds_and_one_seed_only_the_contexts():
    values = np.array([[[0.1]], [[0.5]]])
    assert set(_crossed_means(values, ["x"], resamples=200).round(3).ravel()) == {0.1, 0.3, 0.5}
    alone = _crossed_intervals(["a"], np.array([[[0.25], [0.75]]]), ["x", "y"])[ALL]
    assert (alone.value, alone.low, alone.high, alone.n) == (0.5, 0.25, 0.75, 2)


def test_missing_scores_are_left_out_and_none_is_nan():
    values = np.array([[[0.2, math.nan], [math.nan, math.nan]]])
    found = _crossed_intervals(["a", "b"], values, ["x", "y"])
    assert (found["a"].value, found["a"].n, found[ALL].value, found[ALL].n) == (0.2, 1, 0.2, 1)
    assert math.isnan(found["b"].value) and math.isnan(found["b"].low)


def table(*values):
    return {"m": {"a": list(values), "b": [v + 0.2 for v in values]}}


def test_differences_are_paired_by_seed_and_example():
    rng = np.random.default_rng(0)
    noise = rng.random((2, 6))
    found = Arms(
        list("uvwxyz"),
        {"one": [table(*row) for row in noise], "other": [table(*(row + 0.3)) for row in noise]},
        [],
    )
    wide = next(r for r in found.means(200) if r.model == "one" and r.level == ALL)
    pair = next(p for p in _differences(found, [("other", "one")], 200) if p.level == ALL)
    assert wide.high - wide.low > 0.05
    assert np.allclose([pair.diff, pair.low, pair.high], 0.3)
    assert np.allclose(list(_seed_means(found, [3, 9])[0]["means"].values()), noise.mean(1) + 0.1)


def test_a_mean_of_zero_says_that_nothing_could_be_read(tmp_path):
    def unit(i, **texts):
        return Measurement(f"u{i}", f"c{i}", {"state": {"goal": 0.0, "value": 0.0}}, texts)

    models = {
        "mute": [unit(i, goal="", value="", response="hi") for i in range(4)],
        "wrong": [unit(i, goal="", value="fairness") for i in range(4)],
        "numbers": [unit(i) for i in range(4)],
    }
    save_results(tmp_path / "results.json", results(models, 50))
    rows = load_results(tmp_path / "results.json").rows
    means = means_table(rows, ["state"]).splitlines()[2:]
    assert [line.split(" | ")[2].strip(" |") for line in means] == [
        "nothing readable",
        "0.00 (0.00 to 0.00)",
        "0.00 (0.00 to 0.00)",
    ]
    assert "| mute | 4 | nothing readable | – |" in results_table(rows, "state")
