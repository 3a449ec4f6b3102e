"""The docs build: what becomes of cells, links, outputs and formulas, and that nothing is fetched from elsewhere."""
import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("build", Path(__file__).resolve().parents[2] / "docs" / "build.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)

ALL = ("text/html", "text/markdown", "image/png", "text/plain")
TO = build.Target(link=lambda t: None if t == "gone" else f"to/{t}", image=lambda content, suffix: f"fig{suffix}",
                  html=lambda h: f"HTML:{h}", plain="", prefer=ALL)


def code(source: str, *outputs: dict) -> dict:
    return {"cell_type": "code", "source": source, "outputs": list(outputs)}


def shown(**data: str) -> dict:
    return {"output_type": "execute_result", "data": {k.replace("_", "/", 1): v for k, v in data.items()}}


def stream(text: str, name: str = "stdout") -> dict: return {"output_type": "stream", "name": name, "text": text}


# ---- cells

@pytest.mark.parametrize("source", ["#| hide\nx = 1", "#| default_exp data", "#| include: false\nx"])
def test_hidden_cells_disappear(source): assert build.code_md(code(source, stream("out")), TO) == []


def test_directives_are_not_shown():
    assert build.code_md(code("#| slow\nx = 1"), TO) == ["```python\nx = 1\n```"]


def test_echo_and_output_can_be_switched_off():
    assert build.code_md(code("#| echo: false\nx", stream("out")), TO) == ["```\nout\n```"]
    assert build.code_md(code("#| output: false\nx", stream("out")), TO) == ["```python\nx\n```"]


def test_the_best_form_of_an_output_is_chosen():
    assert build.code_md(code("x", shown(text_plain="p", text_html="<b>")), TO)[1] == "HTML:<b>"
    assert build.code_md(code("x", shown(text_plain="p", text_markdown="**m**")), TO)[1] == "**m**"
    assert build.code_md(code("x", shown(text_plain="p", image_png="aGk=")), TO)[1] == "![figure](fig.png)"


def test_warnings_and_colours_are_dropped():
    assert build.code_md(code("x", stream("careful", "stderr"), stream("\x1b[31mred\x1b[0m")), TO)[1:] == ["```\nred\n```"]


def test_output_cannot_close_its_fence():
    assert build.fence("a\n```\nb") == "````\na\n```\nb\n````"
    assert build.fence("`````") == "``````\n`````\n``````"


def test_title_and_summary_come_back_from_front_matter():
    raw = {"cell_type": "raw", "source": "---\ntitle: Data\ndescription: Records\n---\n"}
    assert build.notebook_md({"cells": [raw]}, TO) == "# Data\n\n> Records\n"


# ---- links and signatures

def test_links_change_in_prose_only():
    text = "see [`x`](a.ipynb) and `[x](a)`\n\n```\n[x](a)\n```\n[words](gone)"
    assert build.relink(text, TO) == "see [`x`](to/a.ipynb) and `[x](a)`\n\n```\n[x](a)\n```\nwords"


@pytest.mark.parametrize("target, page", [
    ("00_data.ipynb", "data.md"), ("00_data.ipynb#errors", "data.md#errors"), ("/data.html#shorten", "data.md#shorten"),
    ("../CONTRIBUTING.md", "CONTRIBUTING.md"), ("https://example.org/x", "https://example.org/x"), ("#here", "#here")])
def test_links_lead_to_pages(target, page): assert build.site_link(target, "") == page


def test_links_to_sources_need_a_repository():
    assert build.site_link("/blob/main/humanlm/data/records.py#L3", "") is None
    assert build.site_link("/blob/main/data.py#L3", "https://host/me") == "https://host/me/blob/main/data.py#L3"
    assert build.site_link("../Makefile", "https://host/me") == "https://host/me/blob/main/Makefile"


def test_signatures_get_one_anchor_and_the_word_class():
    text = ("---\n\n[source](gone){target=\"_blank\"}\n\n### DataError\n\n"
            "```python\ndef DataError(\n    *args, **kwargs\n):\n```")
    assert build.signature(text, TO) == "### DataError { #dataerror }\n\n```python\nclass DataError\n```"


def test_a_class_made_of_fields_shows_their_comments():
    text = "### Turn { #turn }\n\n```python\ndef Turn(\n    role:str, # who\n    seed:int=0\n)->None:\n```"
    shown, declared = build.signature(text, TO), build.class_fields()["Turn"]
    assert shown.endswith(f"```python\n{declared}\n```") and declared.startswith("class Turn") and "  # " in declared


def test_the_sidebar_follows_the_tens_digit():
    nav = build.navigation([Path("00_data.ipynb"), Path("16_judges.ipynb"), Path("20_rewards.ipynb"), Path("index.ipynb")])
    assert [list(entry)[0] for entry in nav] == ["Home", "Ground", "Interaction", "Signal", "Project"]
    assert nav[1] == {"Ground": ["data.md"]}


# ---- the finished pages

def test_formulas_become_mathml():
    pytest.importorskip("latex2mathml", reason="needs the docs extra")
    html = build.on_page_content(r'<span class="arithmatex">\(a &lt; b\)</span>')
    assert html.startswith("<math") and "&#x0003C;" in html and "arithmatex" not in html


@pytest.mark.parametrize("html", [
    '<script src="https://cdn.example/x.js"></script>', '<img src="//cdn.example/x.png">',
    '<div style="background:url(http://a/b)">', '<link rel="stylesheet" href="https://fonts.example/css">'])
def test_what_a_page_would_fetch_is_found(tmp_path, html):
    (tmp_path / "page.html").write_text(html)
    assert len(build.offline_problems(tmp_path)) == 1


def test_links_that_people_follow_are_allowed(tmp_path):
    (tmp_path / "page.html").write_text('<a href="https://example.org">there</a><img src="figures/x.png">'
                                        '<link rel="canonical" href="https://h/p">')
    (tmp_path / "page.css").write_text("a { background: url(data:image/png;base64,AA) }")
    assert build.offline_problems(tmp_path) == []
