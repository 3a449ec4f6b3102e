"""A page of the public names of every room, read from the source, for `docs/build.py site`."""

import ast
import html
import json
import re
import textwrap
import unicodedata
from pathlib import Path
from typing import NamedTuple

from rooms import ABOUT, ROOMS, Page, cells, pages

_place = re.compile(
    r"^# %% \S+ #(\S+)$"
)  # nbdev writes above each stretch of a module from which cell it comes


class Entry(NamedTuple):
    "A public name of a module"

    name: str
    code: str  # its signature; of a class also its fields and the signatures of its methods
    doc: str
    heading: str  # the last one above the cell that defines it ("": only the title)
    anchor: str  # of that heading on its page


def slug(words: str, used: dict[str, int]) -> str:
    "The anchor that Python-Markdown gives a heading; `used` counts those of the page"
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", words)
    plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
    anchor = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
    used[anchor] = used.get(anchor, -1) + 1
    return f"{anchor}_{used[anchor]}" if used[anchor] else anchor


def sections(notebook: Path) -> dict[str, tuple[str, str]]:
    "Cell id -> the heading above it, and that heading's anchor"
    headings, here, used = {}, ("", ""), {}
    for cell in cells(notebook):
        text = re.sub(r"^(```|~~~).*?^\1", "", "".join(cell["source"]), flags=re.M | re.S)
        for hashes, words in (
            re.findall(r"^(#{1,6}) +(.+?) *$", text, re.M)
            if cell["cell_type"] == "markdown"
            else []
        ):
            anchor = slug(words, used)
            here = (words, anchor) if len(hashes) > 1 else ("", "")
        headings[cell["id"]] = here
    return headings


def _before_body(node: ast.stmt, lines: list[str]) -> str:
    "Decorators, name and parameters as they stand in the source, with their comments"
    first, start = node.body[0], min([node.lineno, *(d.lineno for d in node.decorator_list)])
    if getattr(first, "decorator_list", []):
        first = first.decorator_list[0]
    head = lines[start - 1 : first.lineno - 1]
    same = (
        lines[first.lineno - 1].encode()[: first.col_offset].decode()
    )  # of a function on one line
    return "\n".join([*head, *([same] if same.strip() else [])]).rstrip().removesuffix("@").rstrip()


def _member(node: ast.stmt, lines: list[str]) -> str:
    "Show one statement of a class body: a field with its comment, a method with its docstring"
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        if node.name.startswith("_") and node.name not in ("__init__", "__call__"):
            return ""
        doc = ast.get_docstring(node)
        return _before_body(node, lines) + (
            f"\n{' ' * (node.col_offset + 4)}{json.dumps(doc, ensure_ascii=False)}" if doc else ""
        )
    assignment = isinstance(node, (ast.Assign, ast.AnnAssign)) and not ast.unparse(
        getattr(node, "target", None) or node.targets[0]
    ).startswith("_")
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)  # beside a field
    return "\n".join(lines[node.lineno - 1 : node.end_lineno]) if assignment or text else ""


def shown(node: ast.stmt, lines: list[str]) -> str:
    "The code that tells a reader how a name is used"
    if isinstance(node, ast.ClassDef):
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        return "\n".join(
            [_before_body(node, lines), *filter(None, (_member(n, lines) for n in body))]
        )
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return _before_body(node, lines)
    whole = lines[node.lineno - 1 : node.end_lineno]
    return "\n".join(whole if len(whole) <= 6 else [*whole[:5], "    ..."])


def entries(page: Page) -> list[Entry]:
    "The public names of one module in the order of its source, each where its notebook defines it"
    text, listing, cell = page.path.read_text("utf-8"), [], ""
    lines, tree, where = text.splitlines(), ast.parse(text), sections(page.notebook)
    public = next(
        (
            ast.literal_eval(n.value)
            for n in tree.body
            if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"
        ),
        [],
    )
    origin = [cell := m[1] if (m := _place.match(line)) else cell for line in lines]
    for node in tree.body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        names = (
            [node.name]
            if hasattr(node, "name")
            else [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        )
        heading = where.get(origin[node.lineno - 1], ("", ""))
        doc = ast.get_docstring(node) or "" if hasattr(node, "name") else ""
        listing += [
            Entry(name, shown(node, lines), doc, *heading) for name in names if name in public
        ]
    return list({entry.name: entry for entry in listing}.values())


def prose(doc: str) -> str:
    "A docstring as Markdown that shows what it says: outside code nothing in it is markup"
    parts = re.split(r"(`[^`]+`)", doc)
    return "".join(
        part if i % 2 else re.sub(r"([\\*_$\[\]])", r"\\\1", html.escape(part, quote=False))
        for i, part in enumerate(parts)
    )


def room_page(room: str, house: list[Page], address: dict[Path, str]) -> str:
    "The Markdown page of a room; `address` gives the site's page of a notebook, seen from this one"
    blocks = [f"# {room.capitalize()}: names", f"> {ABOUT[room]}"]
    for page in house:
        if not (listing := entries(page)):
            continue
        there = address[page.notebook]
        blocks += [
            f"## humanlm.{page.module}",
            f"{prose(ast.get_docstring(ast.parse(page.path.read_text('utf-8'))) or '')} "
            f"[Read the page]({there})",
        ]
        for entry in listing:
            ticks = "`" * max([3, *(len(m) + 1 for m in re.findall("`{3,}", entry.code))])
            blocks += [
                f"### {entry.name} {{ #{page.module.split('.')[-1]}.{entry.name} }}",
                f"{ticks}python\n{textwrap.dedent(entry.code)}\n{ticks}",
            ]
            words = re.sub(r"[\[\]]", "", entry.heading) or "Read where it is defined"
            place = f"[{words}]({there}{'#' + entry.anchor if entry.anchor else ''})"
            blocks.append(
                (prose(entry.doc) + " " if entry.doc else "") + f"→ {place}{{ .defined }}"
            )
    return "\n\n".join(blocks) + "\n"


def room_pages(address: dict[Path, str]) -> dict[str, str]:
    "`api/ROOM.md` -> its Markdown, rooms from the ground up and commands last"
    house = pages()
    return {
        f"api/{room}.md": room_page(room, group, address)
        for room in [*ROOMS, "commands"]
        if (group := [p for p in house if p.room == room])
    }
