"""Build the docs site and README.md from the notebooks.

    python docs/build.py site                   nbs/ -> _docs/ (HTML for any static host)
    python docs/build.py readme                 nbs/index.ipynb -> README.md
    python docs/build.py readme --check true    fail if README.md is not what `readme` would write

nbdev turns the notebooks into pages (`proc_nbs`: hidden and exported cells go, signatures come
in), this script turns those pages into Markdown, and MkDocs Material renders them. The finished
site asks nothing of another host and every link leads somewhere: `site_problems` sees to it.
"""

import ast
import base64
import gc
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Container, Iterable, Mapping
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from api import room_pages
from rooms import ROOMS

ROOT = Path(__file__).resolve().parent.parent
NBS, WORK, SITE = ROOT / "nbs", ROOT / "_site", ROOT / "_docs"
NOTE = "<!-- Made from nbs/index.ipynb by `make readme`: edit the notebook, not this file. -->\n\n"
_directive = re.compile(r"^[ \t]*#\|[ \t]*([\w-]+)[ \t]*:?[ \t]*(.*)$", re.M)
_code_or_link = re.compile(
    r"""^(?:```|~~~).*?^(?:```|~~~)[ \t]*$      # a fenced block
    # [words](target "title"), also over two lines
    | (!?\[(?:[^\]\n]|\n(?!\s*\n))*\])\(([^()\s]+)(\s+"[^"]*")?\)
    | `[^`\n]+`  # code in a line
    """,
    re.M | re.S | re.X,
)
_not_linked = re.compile(
    r"""(^```.*?^```[ \t]*$ | ^[ ]{4}[^\n]*$         # code
    | `_[^`\n]*`  # a helper, which has no anchor
    # a link
    | !?\[(?:[^\[\]]|\[[^\[\]]*\])*\](?:\([^()\s]*(?:\s+"[^"]*")?\)|\[[^\[\]]*\]))
    """,
    re.M | re.S | re.X,
)
_formula = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
_figure = re.compile(r"^!\[figure\]\((\S*?([\w-]+)\.(?:png|svg))\)$", re.M)
_figure_or_heading = re.compile(r"^(#{1,6}) (.+)$|^!\[figure\]\((\S+)\)\{ #([\w-]+) \}$", re.M)
_slot = re.compile(r'<div data-output="(\d+)"></div>')


# ---- cells to Markdown


class Target(NamedTuple):
    "Where the Markdown will be read: how links, figures and outputs are written there"

    link: Callable[
        [str], str | None
    ]  # link target as the notebook has it -> as the page needs it (None: no link)
    image: Callable[[bytes, str], str]  # (PNG or SVG content, file suffix) -> link target
    html: Callable[[str], str]  # HTML output -> Markdown
    plain: str  # info string of fenced plain output
    prefer: tuple[str, ...]  # MIME types of one output, the best first
    fold: bool = False  # whether cells that only import or only check are shown closed


def _text_of(source: str | list[str]) -> str:
    "Join what nbformat stores as one string or as a list of lines"
    return source if isinstance(source, str) else "".join(source)


def directives(source: str) -> dict[str, str]:
    "The `#| name: value` lines of a cell"
    return {m[1]: m[2].strip().lower() for m in _directive.finditer(source)}


def fence(code: str, info: str = "") -> str:
    "Put `code` between fences that no run of backticks inside it can close"
    ticks = "`" * max([3, *(len(m) + 1 for m in re.findall(r"`{3,}", code))])
    return f"{ticks}{info}\n{code.rstrip()}\n{ticks}"


def relink(text: str, link: Callable[[str], str | None]) -> str:
    "Rewrite the link targets of prose, leaving code alone"

    def one(m: re.Match) -> str:
        if not m[1]:
            return m[0]
        new = link(m[2])
        return m[1].lstrip("!")[1:-1] if new is None else f"{m[1]}({new}{m[3] or ''})"

    return _code_or_link.sub(one, text)


@lru_cache
def class_fields() -> dict[str, str]:
    "Map each class made of fields to its source down to the last annotated field"
    sources = {}
    for path in (ROOT / "humanlm").rglob("*.py"):
        lines = path.read_text("utf-8").splitlines()
        for node in ast.parse("\n".join(lines)).body:
            fields = (
                [n for n in node.body if isinstance(n, ast.AnnAssign)]
                if isinstance(node, ast.ClassDef)
                else []
            )
            if fields and not any(getattr(n, "name", "") == "__init__" for n in node.body):
                sources[node.name] = "\n".join(lines[node.lineno - 1 : fields[-1].end_lineno])
    return sources


def signature(text: str, to: Target) -> str:
    "Tidy what `show_doc` wrote: no rule above, one anchor, classes with their fields"
    text = re.sub(r"\A\s*---\s*", "", text).replace("__main__.", "")
    text = re.sub(r"\{target=[^}]*\}", "", text)
    text = re.sub(
        r"\b(?:collections\.abc|pathlib|typing|humanlm(?:\.\w+)+)\.(?=[A-Z])", "", text
    )  # where a type comes from
    if (m := re.match(r"\[source\]\(([^)]*)\)\s*", text)) and to.link(m[1]) is None:
        text = text[m.end() :]
    text = re.sub(
        r"^(#{2,6}) (\S+)[ \t]*$",
        lambda m: f"{m[1]} {m[2]} {{ #{m[2].lower()} }}",
        text,
        flags=re.M,
    )

    def declared(m: re.Match) -> str:
        bare = "class " + m[1] if "*args, **kwargs" in m[0] else m[0]
        return class_fields().get(m[1], bare)

    text = re.sub(r"^def ([A-Z]\w*)\(\n(?:    .*\n)*\)(?:->None)?:$", declared, text, flags=re.M)
    return relink(re.sub(r"^def ([A-Z])", r"class \1", text, flags=re.M), to.link)


def output_md(out: dict, to: Target) -> str:
    "One stored output as Markdown ('' for what is not shown, such as warnings)"
    if out["output_type"] == "stream":
        return (
            fence(_no_ansi(_text_of(out["text"])), to.plain) if out.get("name") != "stderr" else ""
        )
    if out["output_type"] == "error":
        return fence(_no_ansi("\n".join(out["traceback"])), to.plain)
    data = {k: v if k.endswith("json") else _text_of(v) for k, v in out["data"].items()}
    kind = next((k for k in to.prefer if k in data), None)
    if kind == "text/html":
        return to.html(data[kind])
    if kind == "text/markdown":
        return relink(data[kind], to.link)
    if kind == "image/png":
        return f"![figure]({to.image(base64.b64decode(data[kind]), '.png')})"
    if kind == "image/svg+xml":
        return f"![figure]({to.image(data[kind].encode(), '.svg')})"
    return fence(_no_ansi(data[kind]), to.plain) if kind else ""


def _no_ansi(text: str) -> str:
    return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", text)


def code_md(cell: dict, to: Target) -> list[str]:
    "A code cell as Markdown blocks: its source without directives, then its outputs"
    source = _text_of(cell["source"])
    flags = directives(source)
    code = _directive.sub("", source).strip("\n")
    if flags.keys() & {"hide", "default_exp"} or flags.get("include") == "false":
        return []
    if "show_doc(" in code and flags.get("echo") == "false":
        docs = [
            _text_of(o["data"].get("text/markdown", ""))
            for o in cell.get("outputs", [])
            if "data" in o
        ]
        return [signature(d, to) for d in docs]
    blocks = [fence(code, "python")] if code and flags.get("echo") != "false" else []
    results = (
        [md for o in cell.get("outputs", []) if (md := output_md(o, to))]
        if flags.get("output") != "false"
        else []
    )
    if blocks and to.fold and not results and (words := summary(code)):
        blocks = [
            '<details class="fold" '
            f'markdown="1">\n<summary>{words}</summary>\n\n{blocks[0]}\n\n</details>'
        ]
    return blocks + results


def summary(code: str) -> str:
    "Name what a cell that readers may skip holds: `Imports` or `Checks`; '' for other cells"
    try:
        body = ast.parse(code).body
    except SyntaxError:
        return ""
    if body and all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in body):
        return "Imports"
    rest = [node for node in body if not _checks(node)]
    return (
        "Checks"
        if body and body[-1] not in rest and all(isinstance(node, ast.Assign) for node in rest)
        else ""
    )


def _checks(node: ast.stmt) -> bool:
    "Whether a statement only states what must hold"

    def name(call):
        return getattr(getattr(call, "func", None), "id", "")

    if isinstance(node, ast.With):
        return any(name(item.context_expr) == "expect_fail" for item in node.items)
    if isinstance(node, ast.For):
        return all(map(_checks, node.body))
    return isinstance(node, ast.Assert) or (
        isinstance(node, ast.Expr) and name(node.value).startswith("test_")
    )


def notebook_md(nb: dict, to: Target) -> str:
    "A whole notebook as Markdown"
    blocks = []
    for cell in nb["cells"]:
        source = _text_of(cell["source"])
        if cell["cell_type"] == "code":
            blocks += code_md(cell, to)
        elif cell["cell_type"] == "raw":
            blocks.append(_front_matter(source))
        elif not source.startswith("<!-- WARNING"):
            blocks.append(relink(source, to.link))
    return "\n\n".join(b.strip("\n") for b in blocks if b.strip()) + "\n"


def _front_matter(source: str) -> str:
    "nbdev moves title and summary into YAML; write them as a heading and a quote again"
    import yaml

    meta = yaml.safe_load(source.strip().strip("-")) or {}
    if not isinstance(meta, dict) or "title" not in meta:
        return ""
    return f"# {meta['title']}\n\n" + (
        f"> {meta['description']}" if meta.get("description") else ""
    )


# ---- README


def _repo_path(target: str, folder: str = "") -> Path | None:
    "The file of this repository that a link in a notebook means, if it is one"
    if re.match(r"[a-z]+:|#|/", target):
        return None
    path = (NBS / folder / target.split("#")[0]).resolve()
    return path.relative_to(ROOT) if path.exists() and path.is_relative_to(ROOT) else None


def readme_text() -> str:
    "What README.md shall hold, made from the index notebook"

    def image(content: bytes, suffix: str) -> str:
        raise ValueError(
            "README cannot hold a figure that only a cell output has: save it under "
            "nbs/images/ and show "
            "it with ![what it is](images/NAME.png)"
        )

    def link(target: str) -> str:
        path = _repo_path(target)
        return target if path is None else path.as_posix() + target[len(target.split("#")[0]) :]

    to = Target(
        link, image, lambda h: h, "", ("text/markdown", "text/plain", "text/html", "image/png")
    )
    return NOTE + notebook_md(json.loads((NBS / "index.ipynb").read_text("utf-8")), to)


def readme(check: bool = False) -> None:
    """Write README.md from nbs/index.ipynb.

    Args:
        check: write nothing, and fail if README.md differs from what would be written
    """
    path, new = ROOT / "README.md", readme_text()
    if path.exists() and path.read_text("utf-8") == new:
        return print("README.md is up to date")
    if check:
        sys.exit(
            "README.md differs from nbs/index.ipynb. Next: run `make readme` and commit the result."
        )
    path.write_text(new, "utf-8")
    print("README.md written")


# ---- site


def page_name(notebook: str) -> str:
    "`00_data.ipynb` -> `data.md`, as nbdev names pages and links them"
    path = Path(notebook)
    return (
        path.parent
        / (re.sub(r"^\d+[a-z0-9]*_", "", path.name.lower()).removesuffix(".ipynb") + ".md")
    ).as_posix()


def site_link(target: str, repo_url: str, folder: str = "") -> str | None:
    "Where a notebook's link leads on the site (None: nowhere, keep the words only)"
    if m := re.fullmatch(r"/blob/[^/]+/(.*)", target):
        return f"{repo_url}/blob/main/{m[1]}" if repo_url else None

    def near(page):
        return os.path.relpath(page, folder or ".")

    if m := re.fullmatch(r"/([\w/-]+)\.html(#.*)?", target):
        return near(f"{m[1]}.md") + (m[2] or "")
    if (path := _repo_path(target, folder)) is None:
        return target
    rest = target[len(target.split("#")[0]) :]
    if path.suffix == ".ipynb":
        return near(page_name("/".join(path.parts[1:]))) + rest
    if path.parts[0] == "nbs":
        return near("/".join(path.parts[1:])) + rest
    if path.name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        return near(path.name) + rest
    return f"{repo_url}/blob/main/{path.as_posix()}" if repo_url else None


def colab(page: Path, repo_url: str) -> str:
    "A line that opens a how-to page in Colab, where the repository lies on GitHub"
    m = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(\.git)?/?", repo_url)
    if not m or page.parent != Path("howto"):
        return ""
    install = f"`!pip install 'humanlm[train] @ git+https://github.com/{m[1]}'`"
    return (
        "[Open in "
        f"Colab](https://colab.research.google.com/github/{m[1]}/blob/main/nbs/{page.as_posix()}) "
        f"and begin there with {install}."
    )


class Outputs:
    "HTML outputs and figures of all pages; `on_page_content` puts the HTML back"

    def __init__(self):
        self.html = []

    def put_html(self, html: str) -> str:
        self.html.append(html)
        return f'<div data-output="{len(self.html) - 1}"></div>'

    def save(self) -> None:
        (WORK / "outputs.json").write_text(json.dumps(self.html), "utf-8")


def write_pages(processed: Path, repo_url: str) -> list[Path]:
    "Turn nbdev's processed notebooks into Markdown pages; return their paths in nbs/"
    pages, outputs, texts = WORK / "pages", Outputs(), {}
    shutil.rmtree(WORK, ignore_errors=True)
    (pages / "figures").mkdir(parents=True)
    books = sorted(book.relative_to(processed) for book in processed.rglob("*.ipynb"))
    for where in books:
        name, folder, count = (
            page_name(where.as_posix()),
            where.parent.as_posix().removeprefix("."),
            iter(range(10_000)),
        )

        def image(content: bytes, suffix: str) -> str:
            path = (
                Path("figures")
                / f"{name.removesuffix('.md').replace('/', '-')}-{next(count)}{suffix}"
            )
            (pages / path).write_bytes(content)
            return os.path.relpath(path, folder or ".")

        to = Target(
            lambda t, folder=folder: site_link(t, repo_url, folder),
            image,
            outputs.put_html,
            " { .text .output }",
            ("text/html", "text/markdown", "image/svg+xml", "image/png", "text/plain"),
            fold=True,
        )
        text = notebook_md(json.loads((processed / where).read_text("utf-8")), to)
        texts[name] = re.sub(
            r"^(# .*\n\n(?:> .*\n)?)",
            lambda m, line=colab(where, repo_url): m[0] + (f"\n{line}\n" if line else ""),
            text,
            count=1,
        )
    texts = {name: _figure.sub(r"![figure](\1){ #\2 }", text) for name, text in texts.items()}
    texts |= room_pages(
        {NBS / book: os.path.relpath(page_name(book.as_posix()), "api") for book in books}
    ) | {"gallery.md": gallery(texts, books)}
    for name, text in texts.items():
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        front = _front(name) if text[:3] != "---" else ""
        (pages / name).write_text(front + link_classes(text, name, texts), "utf-8")
    for code in NBS.glob("howto/*.py"):
        shutil.copy(code, pages / "howto")
    shutil.copytree(NBS / "images", pages / "images")
    shutil.copy(ROOT / "docs/site.css", pages)
    for extra in ("CHANGELOG.md", "CONTRIBUTING.md"):
        text = (ROOT / extra).read_text("utf-8").replace("](nbs/", "](")
        text = relink(text, lambda target: site_link(target, repo_url))
        (pages / extra).write_text(_front(extra) + text, "utf-8")
    outputs.save()
    return books


def _front(page: str) -> str:
    "The weight of a page in the search: doors, then pages for people, commands, rooms and names"
    weights = {"CHANGELOG.md": 1, "CONTRIBUTING.md": 6}
    weights |= {page_name(book.name): 4 for book in NBS.glob("[89]*.ipynb")}
    weights |= {"": 16, "howto": 6, "papers": 6, "api": 0.1}
    boost = weights.get(page, weights.get(page.rpartition("/")[0], 1))
    return f"---\nsearch: {{boost: {boost}}}\n---\n\n"


def rank_headings(index: Path) -> None:
    "Put sections with words as a title before those that show one function"
    content = json.loads(index.read_text("utf-8"))
    for entry in content["docs"]:
        if "#" in entry["location"] and entry["title"][:1].islower():
            entry["boost"] = entry.get("boost", 1) / 10
    index.write_text(json.dumps(content), "utf-8")


def gallery(texts: dict[str, str], books: Iterable[Path]) -> str:
    "Show every figure of the site, small, with a link to the section it stands in"
    cards = []
    for name in (name for name in listed(navigation(books)) if name in texts):
        title = section = ""
        for m in _figure_or_heading.finditer(
            re.sub(r"^(```+).*?^\1", "", texts[name], flags=re.M | re.S)
        ):
            if m[1]:
                words = re.sub(r"\[([^\]]*)\]\([^)]*\)| \{ #.*", r"\1", m[2])
                title, section = (words, "") if m[1] == "#" else (title, words)
            else:
                picture = os.path.normpath(Path(name).parent / m[3])
                cards.append(
                    f"[![{title}]({picture}){{ loading=lazy }} **{title}** "
                    f"{section}]({name}#{m[4]})"
                )
    return (
        "---\nhide: [toc]\n---\n\n# Gallery\n\n> The figures of this book. A click "
        "leads to the page and the cell that drew one.\n\n"
        '<div class="gallery" markdown="1">\n\n' + "\n\n".join(cards) + "\n\n</div>\n"
    )


def link_classes(text: str, page: str, texts: dict[str, str]) -> str:
    "Let links to methods without a heading of their own lead to the class"

    def one(m: re.Match) -> str:
        there = texts.get(os.path.normpath(Path(page).parent / m[1]), "")
        return m[0] if f"{{ #{m[2]}.{m[3]} }}" in there else f"]({m[1]}#{m[2]})"

    return re.sub(r"\]\(([\w./-]+\.md)#(\w+)\.(\w+)\)", one, text)


# Pages to learn from, in order, with the minutes that one takes to read and to run.
LEARN = {
    "howto/01_five_minutes": 5,
    "howto/02_own_data": 30,
    "howto/06_inspect_a_run": 10,
    "howto/10_one_step": 10,
    "howto/03_own_judge": 15,
}

# Pages for one task each; a page of `nbs/howto` that stands nowhere else comes first.
DO = {
    "Train and measure": ["80_train", "81_experiment", "90_eval", "88_judges", "92_view"],
    "Make training sets": ["82_build", "87_parsers", "89_levels"],
    "Use a model": ["86_talk", "85_serve", "84_push", "93_study"],
    "Theory of Mind": ["83_tom"],
}

UNDERSTAND = ["howto/11_design", "howto/12_glossary"]


def navigation(books: Iterable[Path]) -> list[dict]:
    "The menu: pages to learn from, tasks, papers and parts to understand, reference"
    names = {book.with_suffix("").as_posix(): page_name(book.as_posix()) for book in sorted(books)}
    names = {book: page for book, page in names.items() if re.match(r"\d\d_", Path(book).name)}

    def folder(name):
        return [book for book in names if Path(book).parent.as_posix() == name]

    def pages(wanted):
        return [names[book] for book in wanted if book in names]

    doors = [book for book in folder(".") if book < "80"]
    tasks = [book for book in folder("howto") if book not in {*LEARN, *UNDERSTAND}]
    groups = {
        "Learn": [
            {f"{n}. {title_of(book)} ({LEARN[book]} min)": names[book]}
            for n, book in enumerate((book for book in LEARN if book in names), 1)
        ],
        "Do": [{"Your own": pages(tasks)}, *({task: pages(books)} for task, books in DO.items())],
        "Understand": [
            *pages(UNDERSTAND),
            {"Papers": pages(folder("papers"))},
            {"Parts": pages(doors)},
            {"Results": pages(folder("results"))},
        ],
        "Reference": [
            {"Rooms": [{room.capitalize(): pages(folder(room))} for room in ROOMS if folder(room)]},
            {"API": [{room.capitalize(): f"api/{room}.md"} for room in [*ROOMS, "commands"]]},
            {"Gallery": "gallery.md"},
            {"Changelog": "CHANGELOG.md"},
            {"Contributing": "CONTRIBUTING.md"},
        ],
    }
    return [{"Home": "index.md"}, *({name: inside} for name, inside in groups.items() if inside)]


def title_of(book: str) -> str:
    "The title of a notebook of `nbs/`, without its ending in the path"
    nb = json.loads((NBS / f"{book}.ipynb").read_text("utf-8"))
    headings = (_text_of(c["source"]) for c in nb["cells"] if c["cell_type"] == "markdown")
    return next(line[2:] for text in headings for line in text.split("\n") if line[:2] == "# ")


def listed(menu: str | list | dict) -> list[str]:
    "The pages of a menu, in its order"
    return (
        [menu]
        if isinstance(menu, str)
        else [
            page
            for entry in (menu.values() if isinstance(menu, dict) else menu)
            for page in listed(entry)
        ]
    )


def mathml(m: re.Match) -> str:
    "A formula as MathML, which browsers draw without a script"
    from html import unescape

    from latex2mathml.converter import convert

    return convert(unescape(m[2]), display="inline" if m[1] == "span" else "block")


def on_page_content(html: str, **kwargs) -> str:
    "MkDocs hook: formulas become MathML, and HTML outputs go where their slots are"
    html = _formula.sub(mathml, html)
    if not _slot.search(html):
        return html
    stored = json.loads((WORK / "outputs.json").read_text("utf-8"))
    return _slot.sub(lambda m: f'<div class="html-output">{stored[int(m[1])]}</div>', html)


class _Page(HTMLParser):
    "Collect what a page fetches, where its links lead, and the anchors that it offers"

    keys = {
        "script": "src",
        "img": "src",
        "iframe": "src",
        "source": "src",
        "video": "src",
        "audio": "src",
        "embed": "src",
        "object": "data",
        "link": "href",
    }

    def __init__(self, text: str):
        super().__init__()
        self.loads, self.links, self.names = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        attrs = {name: value or "" for name, value in attrs}
        self.names |= {attrs.get("id"), attrs.get("name")}
        if tag == "a" and "href" in attrs:
            self.links.append(attrs["href"])
        if tag == "link" and attrs.get("rel") in ("canonical", "prev", "next"):
            return
        self.loads += [attrs.get(self.keys.get(tag, ""), "")]
        self.loads += re.findall(r"url\(['\"]?([^'\")]+)", attrs.get("style", ""))


def site_problems(site: Path) -> list[str]:
    "List what pages would fetch from other hosts, and links that lead nowhere"
    root = str(site.resolve())
    files = {str(path): path for path in Path(root).rglob("*") if path.is_file()}
    pages = {
        name: _Page(path.read_text("utf-8"))
        for name, path in files.items()
        if path.suffix == ".html"
    }
    problems = []
    for path, page in pages.items():
        name = os.path.relpath(path, root)
        problems += [
            f"{name}: would fetch {url}" for url in page.loads if re.match(r"(https?:)?//", url)
        ]
        local = [url for url in page.links + page.loads if url and not re.match(r"[a-z]+:|//", url)]
        problems += [
            f"{name}: {url} leads nowhere"
            for url in dict.fromkeys(local)
            if not _leads(url, path, root, pages, files)
        ]
    for sheet in site.rglob("*.css"):
        urls = re.findall(
            r"(?:url\(|@import\s+)['\"]?((?:https?:)?//[^'\")\s]+)", sheet.read_text("utf-8")
        )
        problems += [f"{sheet.relative_to(site)}: would fetch {url}" for url in urls]
    return problems


def _leads(
    url: str, path: str, root: str, pages: Mapping[str, _Page], files: Container[str]
) -> bool:
    "Whether a link of the page at `path` leads to a file of the site, and to a name in it"
    target, _, name = unquote(url).partition("#")
    target = target.partition("?")[0]
    there = (
        os.path.normpath(
            os.path.join(
                root if target.startswith("/") else os.path.dirname(path), target.lstrip("/")
            )
        )
        if target
        else path
    )
    if there not in files:
        there = os.path.join(there, "index.html")
    return there in files and (not name or there not in pages or name in pages[there].names)


def allow_unknown_types() -> None:
    "Let `show_doc` write types that are imported for type checkers only as in the source"
    import fastcore.docments as docments

    def lenient(signature: Callable) -> Callable:
        def read(symbol: object, eval_str: bool = False):
            try:
                return signature(symbol, eval_str=eval_str)
            except NameError:
                return signature(symbol)

        return read

    docments.signature, docments.signature_ex = (
        lenient(docments.signature),
        lenient(docments.signature_ex),
    )


def read_comments_of_settings() -> None:
    "Let `show_doc` give the comment beside `**settings` to it, and not to what is returned"
    import fastcore.docments as docments

    places = docments._param_locs
    docments._param_locs = lambda symbol, returns=True, **_: places(
        symbol, returns, args_kwargs=True
    )


def skip_examples() -> None:
    "Let nbdev run exported cells and signatures only, and read the settings once"
    import nbdev.processors as processors

    run, needed = processors._do_eval, {"export", "exports", "exporti", "exec_doc"}
    processors._do_eval = lambda cell: (
        ("show_doc(" in cell.source or needed & cell.directives_.keys()) and run(cell)
    )
    processors.get_config = lru_cache(processors.get_config)


def link_symbols(text: str, link: Callable[[str], str]) -> str:
    "Link symbols outside code and links; nbdev alone would put links into links"
    return "".join(part if i % 2 else link(part) for i, part in enumerate(_not_linked.split(text)))


def keep_links() -> None:
    "Let nbdev leave links as their authors wrote them"
    from nbdev.doclinks import NbdevLookup

    NbdevLookup.linkify = lambda self, text: text and link_symbols(text, self.link_line)


class Complaints(logging.Handler):
    "What MkDocs warned of, to be said again when it gives up"

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def render(books: Iterable[Path]) -> None:
    "Build _docs/ from the Markdown pages; a warning or a dead link ends it with page and reason"
    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    complaints = Complaints()
    logging.getLogger("mkdocs").addHandler(complaints)
    try:
        build(load_config(str(ROOT / "mkdocs.yml"), nav=navigation(books), strict=True))
        rank_headings(SITE / "search/search_index.json")
    except Abort as e:
        complaints.messages.append(str(e))
    if problems := complaints.messages or site_problems(SITE):
        sys.exit("The site was not built:\n  " + "\n  ".join(problems))


def site(repo_url: str = os.environ.get("REPO_URL", "")) -> None:
    """Build the whole site into _docs/.

    Args:
        repo_url: address of the repository, for links to sources (none: no such links)
    """
    os.chdir(ROOT)
    from nbdev.serve import proc_nbs

    allow_unknown_types()
    read_comments_of_settings()
    skip_examples()
    keep_links()
    gc.disable()  # the shells of all notebooks stay: collecting would look through all of them
    books = write_pages(
        proc_nbs(n_workers=0, force=True), repo_url
    )  # in this process, where the lines above hold
    render(books)
    gc.freeze()
    print(
        f"{len(books)} notebooks -> _docs/. Next: python -m http.server -d _docs, then "
        "open http://localhost:8000"
    )


if __name__ == "__main__":
    task, *options = sys.argv[1:]
    site() if task == "site" else readme(check=options == ["--check", "true"])
