"The frame of a report: numbers of any system, missing apart from zero, faults named."

import json
import math
import sys

import pytest
from pages import read

from humanlm.core.basics import DataError, atomic_write, to_json
from humanlm.core.html import figure_svg, tag
from humanlm.evaluation.figures import Names, results_bars
from humanlm.evaluation.measured import (
    ALL,
    PairedDifference,
    Result,
    Results,
    load_results,
    means_table,
    paired_table,
    results_table,
)
from humanlm.evaluation.report import (
    _headline,
    _results_html,
    _texts_html,
    load_log,
    paired_html,
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


def test_measures_of_texts_have_a_table_of_their_own():
    rows = [
        Result(m, name, ALL, 9, 0.5, 0.4, 0.6)
        for m in ("base", "<b>")
        for name in ("chrf", "bleu", "response_alignment")
    ]
    shown = _texts_html(rows)
    assert (
        "chrf" in shown
        and "response" not in shown
        and "<b><" not in shown.replace("<b>0", "")
        and _texts_html(rows[2:3]) == ""
    )


def test_the_p_values_of_a_table_are_adjusted_and_it_says_so():
    pairs = [
        PairedDifference("m", ALL, "a", name, 9, 0.1, 0.0, 0.2, p, 0.5)
        for name, p in (("b", 0.01), ("c", 0.04), ("d", 0.03))
    ]
    shown, alone = paired_html(pairs), paired_html(pairs[1:2])
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
    page = paired_html([pair])
    for word in ("zero outside", "above 0", "below 0", "holds 0", "yes"):
        assert word not in head + line + page


def test_means_over_few_scores_show_their_number():
    rows = [
        Result("m", "x", level, n, mean, 0.1, 0.3)
        for level, n, mean in (
            (ALL, 60, 0.2),
            ("stance", 23, 0.4),
            ("belief", 0, math.nan),
            ("goal", 60, 0.1),
        )
    ] + [Result("m", "y", ALL, 9, 0.5, 0.1, 0.9), Result("m", "z", ALL, 0, math.nan, 0, 0)]
    assert "| 0.40 (n 23) | – | 0.10 |" in results_table(rows, "x")
    assert "| 0.20 (0.10 to 0.30) | 0.50 (0.10 to 0.90, n 9) | – |" in means_table(rows, "xyz")
    assert "n = 23" in figure_svg(results_bars(rows, "x"), "bars")
    beside = [*rows, Result("chance", "x", ALL, 27, 0.15, 0.1, 0.2)]
    assert any("(n 27)" in line for line in _headline(Results(beside), "x", CHANCE)[1])


CHANCE = Names(references={"chance": "guesses"})


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


def test_a_log_that_was_cut_off_is_read(tmp_path):
    log = [{"stage": "a", "step": step, "loss": 1 / step} for step in (1, 2)]
    lines = [to_json(line) for line in log]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, lines[-1][:20]]))
    assert load_log(tmp_path / "metrics.jsonl") == log


def test_missing_numbers_stay_missing(tmp_path):
    rows = [Result("a", "m", ALL, 0, math.nan, math.nan, math.nan)]
    atomic_write(tmp_path / "results.json", to_json({"rows": rows, "paired": []}))
    found = load_results(tmp_path / "results.json").rows
    page = _results_html(found, {("m", ALL): "all"})
    assert math.isnan(found[0].mean) and ">–<" in page and "0.00" not in page
    assert "<svg" in figure_svg(results_bars(found, "m"), "no bar at all")


def test_a_wrong_result_row_is_named(tmp_path):
    atomic_write(
        tmp_path / "results.json",
        json.dumps({"rows": [{"model": "a", "mean": "high"}], "paired": []}),
    )
    with pytest.raises(DataError, match="rows 1"):
        load_results(tmp_path / "results.json")


def test_the_headline_turns_a_pair_round():
    rows = [Result(m, "m", ALL, 2, v, v, v) for m, v in (("cold-start", 0.2), ("humanlm", 0.6))]
    said = _headline(
        Results(rows, [PairedDifference("m", ALL, "cold-start", "humanlm", 2, -0.4, -0.5, -0.3)]),
        "m",
        Names(start="cold-start"),
    )
    assert said[0] == "0.60" and "+0.40 against cold-start (+0.30\u00a0to\u00a0+0.50)" in said[1]
