"The frame of a report: numbers of any system, missing apart from zero, faults named."

import json
import math
import sys

import pytest
from pages import read

from humanlm.core.basics import DataError, atomic_write, to_json
from humanlm.core.html import tag
from humanlm.evaluation.measured import (
    ALL,
    PairedDifference,
    Result,
    load_results,
    paired_table,
)
from humanlm.evaluation.report import (
    _paired_html,
    standard_sections,
    write_report,
)


def test_a_system_brings_its_own_section_and_its_own_pieces(tmp_path):
    atomic_write(tmp_path / "games.json", "[1, 2]")

    def games(run):
        return tag(
            "p",
            f"{sum(run.piece('games.json', lambda path: json.loads(path.read_text()), []))} "
            "won <b>",
        )

    def lost(run):
        return tag("p", run.piece("lost.json", json.loads, "none"))

    own = {
        "first": standard_sections()["first"],
        "games": ("Games", "What was won.", games),
        "lost": ("Lost", "What was not.", lost),
    }
    page = write_report(tmp_path, own).read_text("utf-8")
    assert "<p>3 won &lt;b&gt;</p>" in page and 'href="#games"' in page and read(page)
    assert page.index("lost.json: not there") < page.index("<h2"), (
        "the first screen names what a later section could not read"
    )


def test_the_p_values_of_a_table_are_adjusted_and_it_says_so():
    pairs = [
        PairedDifference("m", ALL, "a", name, 9, 0.1, 0.0, 0.2, p, 0.5)
        for name, p in (("b", 0.01), ("c", 0.04), ("d", 0.03))
    ]
    shown, alone = _paired_html(pairs), _paired_html(pairs[1:2])
    assert "Wilcoxon p (Holm)" in shown and [p in shown for p in ("0.030", "0.060", "0.040")] == [
        True,
        True,
        False,
    ]
    assert "Holm" not in alone and "0.040" in alone
    table = paired_table(pairs, most=1)
    assert "Wilcoxon p (Holm)" in table and "0.030" in table and len(table.splitlines()) == 3, (
        "what is left out counts, too"
    )


@pytest.mark.parametrize(
    ("low", "high", "seen"),
    [
        (0.01, 0.09, "0.06"),
        (-0.05, 0.05, "0.07"),
        (-0.9, -0.1, "0.57"),
        (0.0, 0.0, "–"),
        (0.2, 0.2, "–"),
        (math.nan, math.nan, "–"),
    ],
)
def test_a_difference_says_what_it_could_have_seen_and_not_yes_beside_a_high_p(low, high, seen):
    pair = PairedDifference("m", ALL, "a", "b", 20, (low + high) / 2, low, high, 1.0, 0.1)
    head, _, line = paired_table([pair]).splitlines()
    cells = dict(zip(*([cell.strip() for cell in row.split("|")] for row in (head, line))))
    assert cells["could see"] == seen and cells["Wilcoxon p"] in ("1.000", "–")
    page = _paired_html([pair])
    for word in ("zero outside", "above 0", "below 0", "holds 0", "yes"):
        assert word not in head + line + page


@pytest.mark.parametrize("gone", [True, False])
def test_a_report_comes_out_without_matplotlib_and_says_so_once(tmp_path, monkeypatch, gone):
    rows = [Result("m", "x", level, 9, 0.2, 0.1, 0.3) for level in (ALL, "stance", "goal")]
    atomic_write(tmp_path / "results.json", to_json({"rows": rows, "paired": []}))
    log = [{"stage": "a", "step": step, "loss": 1 / step} for step in (1, 2)]
    atomic_write(tmp_path / "metrics.jsonl", "".join(f"{to_json(line)}\n" for line in log))
    if gone:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = write_report(tmp_path).read_text("utf-8")
    assert page.count("No pictures") == gone and page.count("<figure") == 2 * (not gone)
    assert "0.10 to 0.30" in page and (not gone or read(page))


def test_a_wrong_result_row_is_named(tmp_path):
    atomic_write(
        tmp_path / "results.json",
        json.dumps({"rows": [{"model": "a", "mean": "high"}], "paired": []}),
    )
    with pytest.raises(DataError, match="rows 1"):
        load_results(tmp_path / "results.json")
