"Levels are averaged, pairs stay paired, and text in names cannot break a table."

import math

import pytest

from humanlm.core.basics import to_json
from humanlm.evaluation.measured import (
    Result,
    _paired_rows,
    _result_rows,
    paired_table,
    results_table,
)


def test_all_is_the_mean_of_the_levels_and_stands_first():
    rows = _result_rows(
        "m", "x", {"stance": [1, 0, math.nan], "goal": [0.2, 0.4, 0.6], "value": [math.nan] * 3}
    )
    assert [(r.level, r.n) for r in rows] == [("all", 3), ("stance", 2), ("goal", 3), ("value", 0)]
    assert rows[0].mean == pytest.approx((0.5 + 0.4) / 2) and math.isnan(rows[3].mean)
    assert '"mean":null' in to_json(rows[3]).replace(" ", "")


def test_pairs_are_taken_per_example():
    a, b = [0.9, 0.5, math.nan, 0.1], [0.8, 0.4, 0.9, math.nan]
    rows = _paired_rows("x", "a", "b", {"stance": a, "goal": a}, {"goal": b, "belief": b})
    assert [(r.level, r.n) for r in rows] == [("all", 2)]


def test_tables_escape_names_and_show_missing_numbers():
    evil = "<b>|\n| x"
    table = results_table([Result(evil, "m", "all", 0, None, None, None)], "m")
    assert table.splitlines()[2:] == ["| &lt;b&gt;&#124; &#124; x | 0 | – | – |"]
    assert paired_table([]).count("\n") == 1 and results_table([], "m").count("\n") == 1
