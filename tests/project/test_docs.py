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


def stream(text: str, name: str = "stdout") -> dict:
    return {"output_type": "stream", "name": name, "text": text}


# ---- cells


# ---- links and signatures


def test_links_of_the_front_page_lead_somewhere_also_where_their_words_stand_on_two_lines():
    targets = re.findall(r"\]\(([^()\s#]+)[^()]*\)", build.readme_text())
    assert [
        t for t in targets if not re.match(r"[a-z]+:", t) and not (build.ROOT / t).exists()
    ] == []
    assert (
        build.relink("see [two\nlines](x.md), [one](y.md)", TO.link)
        == "see [two\nlines](to/x.md), [one](to/y.md)"
    )


def prose(notebook: Path) -> str:
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


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
    figure = re.compile(r"(#\| echo: false\n)?fig")
    uses = [i for i, cell in enumerate(cells) if cell.get("outputs") and not figure.match(text[i])]
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
