"""The docs build: cells, links, outputs and formulas; nothing is fetched from elsewhere."""

import ast
import importlib.util
import json
import re
import sys
from itertools import takewhile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))
spec = importlib.util.spec_from_file_location(
    "build", Path(__file__).resolve().parents[2] / "docs" / "build.py"
)
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)
import api

ALL = ("text/html", "text/markdown", "image/png", "text/plain")
TO = build.Target(
    link=lambda t: None if t == "gone" else f"to/{t}",
    image=lambda content, suffix: f"fig{suffix}",
    html=lambda h: f"HTML:{h}",
    plain="",
    prefer=ALL,
)


def code(source: str, *outputs: dict) -> dict:
    return {"cell_type": "code", "source": source, "outputs": list(outputs)}


def shown(**data: str) -> dict:
    return {
        "output_type": "execute_result",
        "data": {k.replace("_", "/", 1): v for k, v in data.items()},
    }


def stream(text: str, name: str = "stdout") -> dict:
    return {"output_type": "stream", "name": name, "text": text}


# ---- cells


@pytest.mark.parametrize(
    "source", ["#| hide\nx = 1", "#| default_exp data", "#| include: false\nx"]
)
def test_hidden_cells_disappear(source):
    assert build.code_md(code(source, stream("out")), TO) == []


def test_directives_are_not_shown():
    assert build.code_md(code("#| slow\nx = 1"), TO) == ["```python\nx = 1\n```"]


def test_the_best_form_of_an_output_is_chosen():
    assert build.code_md(code("x", shown(text_plain="p", text_html="<b>")), TO)[1] == "HTML:<b>"
    assert build.code_md(code("x", shown(text_plain="p", text_markdown="**m**")), TO)[1] == "**m**"
    assert (
        build.code_md(code("x", shown(text_plain="p", image_png="aGk=")), TO)[1]
        == "![figure](fig.png)"
    )


def test_output_cannot_close_its_fence():
    assert build.fence("a\n```\nb") == "````\na\n```\nb\n````"
    assert build.fence("`````") == "``````\n`````\n``````"


# ---- links and signatures


def test_links_change_in_prose_only():
    text = "see [`x`](a.ipynb) and `[x](a)`\n\n```\n[x](a)\n```\n[words](gone)"
    assert build.relink(text, TO) == "see [`x`](to/a.ipynb) and `[x](a)`\n\n```\n[x](a)\n```\nwords"


@pytest.mark.parametrize(
    "target, page",
    [
        ("00_data.ipynb", "data.md"),
        ("00_data.ipynb#errors", "data.md#errors"),
        ("/data.html#shorten", "data.md#shorten"),
        ("../CONTRIBUTING.md", "CONTRIBUTING.md"),
        ("https://example.org/x", "https://example.org/x"),
        ("#here", "#here"),
    ],
)
def test_links_lead_to_pages(target, page):
    assert build.site_link(target, "") == page


def test_links_of_the_front_page_lead_somewhere_also_where_their_words_stand_on_two_lines():
    targets = re.findall(r"\]\(([^()\s#]+)[^()]*\)", build.readme_text())
    assert [
        t for t in targets if not re.match(r"[a-z]+:", t) and not (build.ROOT / t).exists()
    ] == []
    assert (
        build.relink("see [two\nlines](x.md), [one](y.md)", TO)
        == "see [two\nlines](to/x.md), [one](to/y.md)"
    )


def test_links_to_sources_need_a_repository():
    assert build.site_link("/blob/main/humanlm/data/records.py#L3", "") is None
    assert (
        build.site_link("/blob/main/data.py#L3", "https://host/me")
        == "https://host/me/blob/main/data.py#L3"
    )
    assert build.site_link("../Makefile", "https://host/me") == "https://host/me/blob/main/Makefile"


def test_how_to_pages_open_in_colab_where_the_repository_lies_on_github():
    line = build.colab(Path("howto/02_own_data.ipynb"), "https://github.com/some/fork.git")
    assert (
        "(https://colab.research.google.com/github/some/fork/blob/main/nbs/howto/02_own_data.ipynb)"
        in line
        and "git+https://github.com/some/fork'" in line
    )
    assert not build.colab(Path("howto/02_own_data.ipynb"), "") and not build.colab(
        Path("core/01_basics.ipynb"), "https://github.com/some/fork"
    )
    assert not build.colab(Path("howto/02_own_data.ipynb"), "https://git.example.org/some/fork")


def test_signatures_get_one_anchor_and_the_word_class():
    text = (
        '---\n\n[source](gone){target="_blank"}\n\n### DataError\n\n'
        "```python\ndef DataError(\n    *args, **kwargs\n):\n```"
    )
    assert (
        build.signature(text, TO)
        == "### DataError { #dataerror }\n\n```python\nclass DataError\n```"
    )


def test_a_class_made_of_fields_shows_their_comments():
    text = (
        "### Turn { #turn }\n\n```python\ndef Turn(\n    role:str, # who\n    "
        "seed:int=0\n)->None:\n```"
    )
    shown, declared = build.signature(text, TO), build.class_fields()["Turn"]
    assert (
        shown.endswith(f"```python\n{declared}\n```")
        and declared.startswith("class Turn")
        and "  # " in declared
    )


def prose(notebook: Path) -> str:
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@pytest.fixture(scope="module")
def symbols():
    return pytest.importorskip("nbdev.doclinks", reason="needs the dev extra").NbdevLookup()


def test_no_page_links_a_symbol_inside_a_link(symbols):
    pages = {
        path: prose(path)
        for path in build.NBS.rglob("*.ipynb")
        if ".ipynb_checkpoints" not in path.parts
    }
    linked = {
        path.name: build.link_symbols(text, symbols.link_line) for path, text in pages.items()
    }
    assert {
        name
        for name, text in linked.items()
        if re.search(r"\[[^\[\]]*\[`[^`]+`\]\([^)]*\)[^\[\]]*\]\(", text)
    } == set()


def test_the_menu_leads_from_pages_to_learn_from_to_the_reference():
    books = [path.relative_to(build.NBS) for path in build.NBS.rglob("*.ipynb")]
    home, learn, do, understand, reference = build.navigation(
        book for book in books if ".ipynb_checkpoints" not in book.parts
    )
    assert home == {"Home": "index.md"}
    assert learn["Learn"][0] == {"1. Five minutes (5 min)": "howto/five_minutes.md"}
    assert all(inside for group in do["Do"] for inside in group.values())
    assert understand["Understand"][:2] == ["howto/design.md", "howto/glossary.md"]
    rooms = reference["Reference"][0]["Rooms"]
    assert [next(iter(room)) for room in rooms][:2] == ["Core", "Clients"]


def test_every_page_stands_in_the_menu():
    books = [
        path.relative_to(build.NBS)
        for path in build.NBS.rglob("*.ipynb")
        if ".ipynb_checkpoints" not in path.parts
    ]
    made = {"CHANGELOG.md", "CONTRIBUTING.md", "gallery.md"}
    assert {build.page_name(book.as_posix()) for book in books} == {
        p for p in build.listed(build.navigation(books)) if not p.startswith("api/")
    } - made


@pytest.fixture(scope="module")
def names():
    address = {
        path: f"../{build.page_name(path.relative_to(build.NBS).as_posix())}"
        for path in build.NBS.rglob("*.ipynb")
    }
    return build.room_pages(address), {page: path for path, page in address.items()}


def test_every_public_name_stands_on_the_page_of_its_room(names):
    for page in api.pages():
        public = re.search(r"^__all__ = (\[.*?\])", page.path.read_text("utf-8"), re.M | re.S)
        text = names[0].get(f"api/{page.room}.md", "")
        missing = [
            name
            for name in ast.literal_eval(public[1])
            if f"\n### {name} {{ #{page.module.split('.')[-1]}.{name} }}\n" not in text
        ]
        assert not missing, page.module


DOORS = sorted(path for path in build.NBS.glob("[0-7]*_*.ipynb"))


@pytest.mark.parametrize("door", DOORS, ids=lambda path: path.stem)
def test_a_door_opens_with_purpose_picture_use_and_the_pages_of_its_room(door):
    def exported(cell):
        return "".join(cell["source"]).startswith("#| export")

    cells = list(
        takewhile(lambda cell: not exported(cell), json.loads(door.read_text("utf-8"))["cells"])
    )[1:]
    text = ["".join(cell["source"]) for cell in cells]
    assert len(cells) <= 10, (
        "purpose, picture, use and links stand in the first ten cells, before any source"
    )
    kinds = [
        kind for cell in cells for out in cell.get("outputs", []) for kind in out.get("data", {})
    ]
    assert {"image/png", "image/svg+xml", "text/html"} & set(kinds), "show a picture"
    uses = [
        i for i, cell in enumerate(cells) if cell.get("outputs") and not text[i].startswith("fig")
    ]
    assert uses, "show a use, with what it gives"
    room = rooms_of()[door.name]
    pages = {path.name for path in (build.NBS / room).glob("*.ipynb")}
    assert pages & set(re.findall(rf"\((?:{room})/(\w+\.ipynb)", "".join(text))), (
        "link the pages of the room"
    )


def test_the_front_page_shows_the_map_which_is_drawn_from_the_table_of_rooms():
    import map as house_map
    import rooms

    assert [name for name in rooms.ABOUT if name in rooms.ROOMS] == rooms.ROOMS, (
        "docs/rooms.py: ABOUT describes each room, in the order of ROOMS"
    )
    assert house_map.FILE.read_text("utf-8") == house_map.drawing(), (
        "Next: run `python docs/map.py`"
    )
    assert "(images/rooms.svg)" in prose(build.NBS / "index.ipynb")
    wide = max(len(rooms.ABOUT[room]) for room in rooms.ABOUT if room not in rooms.SYSTEMS)
    assert house_map.LABEL + 7.2 * wide < house_map.WIDTH - house_map.LEFT, (
        "a line leaves its box in DejaVu: make the map wider"
    )
    assert (
        22 + 9.1 * max(len(room) for room in rooms.ABOUT if room not in rooms.SYSTEMS)
        < house_map.LABEL
    ), "a name runs into its line"


def rooms_of() -> dict[str, str]:
    import rooms

    return {page.notebook.name: page.room for page in rooms.pages()}


# ---- the finished pages


def test_formulas_become_mathml():
    pytest.importorskip("latex2mathml", reason="needs the docs extra")
    html = build.on_page_content(r'<span class="arithmatex">\(a &lt; b\)</span>')
    assert html.startswith("<math") and "&#x0003C;" in html and "arithmatex" not in html


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<img src="//cdn.example/x.png">',
        '<a href="gone.html">x</a>',
        '<div style="background:url(http://a/b)">',
        '<link rel="stylesheet" href="https://fonts.example/css">',
        '<a href="page.html#gone">x</a>',
        '<a href="#gone">x</a>',
        '<img src="gone.png">',
    ],
)
def test_what_a_page_would_fetch_and_links_that_lead_nowhere_are_found(tmp_path, html):
    (tmp_path / "page.html").write_text(html)
    assert len(build.site_problems(tmp_path)) == 1


def test_links_that_lead_somewhere_are_allowed(tmp_path):
    (tmp_path / "f g.png").touch()
    (tmp_path / "page.html").write_text(
        '<a href="https://example.org">there</a><img src="f%20g.png"><link '
        'rel="canonical" href="https://h/p">'
        '<h2 id="a">A</h2><a href="#a">a</a><a href="page.html#a">a</a><a '
        'href="mailto:x@y.z">m</a><a href="/page.html">p</a>'
    )
    (tmp_path / "page.css").write_text("a { background: url(data:image/png;base64,AA) }")
    assert build.site_problems(tmp_path) == []


def test_an_aborted_build_names_the_page_and_the_reason(tmp_path, monkeypatch):
    pytest.importorskip("material", reason="needs the docs extra")
    (tmp_path / "_site/pages").mkdir(parents=True)
    (tmp_path / "_site/pages/index.md").write_text("# Home\n\n[words](gone.md)")
    config = (build.ROOT / "mkdocs.yml").read_text().replace("hooks: [docs/build.py]", "")
    (tmp_path / "mkdocs.yml").write_text(config.replace("extra_css: [site.css]", ""))
    monkeypatch.setattr(build, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="index.md.*gone.md"):
        build.render([])
