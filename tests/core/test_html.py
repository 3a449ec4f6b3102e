"Text stays text, wherever it is put; what is HTML is put together without losing that."

import csv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import CHROMIUM, HOSTILE, in_browser, read

from humanlm.core.html import (
    Html,
    Table,
    fold,
    markdown_html,
    page,
    tag,
)
from humanlm.study import _write_csv


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_is_shown_as_text(inside, attribute):
    found = read(tag("p", inside, title=attribute))
    assert found.tags == {"p"} and found.attributes <= {"title"}
    assert read(page(inside, fold(inside, attribute), tag("b", attribute) + inside)).stack == []


@pytest.mark.parametrize("text", HOSTILE)
def test_cells_and_headings_of_tables_stay_text(text):
    table = Table([text, "n"], [[text, 1], [tag("td", text, class_="x"), tag("b", text)]])
    assert read(table.html()).tags <= {
        "div",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "b",
    }
    lines = table.markdown().split("\n")
    assert len(lines) == 4 and {line.count("|") for line in lines} == {3}
    assert "<script" not in table.markdown() and len(str(table).split("\n")) == 4


@pytest.mark.parametrize(
    "text",
    [
        "[a](javascript:alert(1))",
        "![a](//x.org/a.png)",
        "<//x.org>",
        "<https://x.org>",
        "[a]: //x.org\n\n[a]",
        "<b onclick=x>",
        "<script>\nx\n</script>",
        "&#60;script&#62;",
    ],
)
def test_markdown_of_strangers_gets_no_links_no_pictures_no_html(text):
    found = read(markdown_html(f"# {text}\n\n{text}\n\n| a |\n|---|\n| {text} |"))
    assert not found.tags & {"a", "img", "script", "b"} and not found.attributes & {
        "href",
        "src",
        "onclick",
    }


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium or Chrome: apt install chromium")
def test_a_page_runs_nothing_even_if_a_tag_gets_through(tmp_path):
    held = in_browser(
        page(
            "quiet",
            Html("<script>document.title = 'ran'</script>"),
            "<script>document.title = 'ran'</script>",
        ),
        tmp_path,
    )
    assert "<title>quiet</title>" in held and "&lt;script&gt;" in held


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(["=", "+", "-", "@", "\t", "\r"]), st.text(st.characters(codec="utf-8")))
def test_no_cell_of_a_csv_file_is_a_formula_and_none_is_lost(tmp_path_factory, sign, text):
    formula = f"{sign}{text}x"
    path = _write_csv(
        tmp_path_factory.mktemp("csv") / "table.csv",
        ["text", "number"],
        [[formula, -0.5], ["-1.25e-3", -2], ["plain", "-inf"]],
    )
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["text", "number"],
        [f"'{formula}", "-0.5"],
        ["-1.25e-3", "-2"],
        ["plain", "-inf"],
    ]
