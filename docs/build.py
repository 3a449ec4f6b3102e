"""Build the docs site and README.md from the notebooks.

    python docs/build.py site                   nbs/ -> _docs/ (HTML for any static host)
    python docs/build.py readme                 nbs/index.ipynb -> README.md
    python docs/build.py readme --check true    fail if README.md is not what `readme` would write

nbdev turns the notebooks into pages (`proc_nbs`: hidden and exported cells go, signatures come in), this script turns
those pages into Markdown, and MkDocs Material renders them. Quarto is not needed, and the finished site asks nothing of
any other host: `offline_problems` fails the build otherwise.
"""
import ast, base64, json, logging, os, re, shutil, sys
from collections.abc import Callable
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NBS, WORK, SITE = ROOT / "nbs", ROOT / "_site", ROOT / "_docs"
SECTIONS = {0: "Ground", 1: "Interaction", 2: "Signal", 3: "Methods", 4: "Methods", 5: "Methods", 6: "Worlds and measures",
            7: "Backends", 8: "Commands", 9: "Evaluation"}
NOTE = "<!-- Made from nbs/index.ipynb by `make readme`: edit the notebook, not this file. -->\n\n"
_directive = re.compile(r"^[ \t]*#\|[ \t]*([\w-]+)[ \t]*:?[ \t]*(.*)$", re.M)
_code_or_link = re.compile(r"""^(?:```|~~~).*?^(?:```|~~~)[ \t]*$      # a fenced block
                               | (!?\[[^\]\n]*\])\(([^()\s]+)(\s+"[^"]*")?\)   # [words](target "title")
                               | `[^`\n]+`                              # code in a line""", re.M | re.S | re.X)
_formula = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
_slot = re.compile(r'<div data-output="(\d+)"></div>')


# ---- cells to Markdown

class Target(NamedTuple):
    "Where the Markdown will be read: how links, figures, HTML outputs and plain outputs are written there"
    link: Callable[[str], str | None]   # link target as the notebook has it -> as the page needs it (None: no link)
    image: Callable[[bytes, str], str]  # (PNG or SVG content, file suffix) -> link target
    html: Callable[[str], str]          # HTML output -> Markdown
    plain: str                          # info string of fenced plain output
    prefer: tuple[str, ...]             # MIME types of one output, the best first


def text_of(source: str | list[str]) -> str:
    "Join what nbformat stores as one string or as a list of lines"
    return source if isinstance(source, str) else "".join(source)


def directives(source: str) -> dict[str, str]:
    "The `#| name: value` lines of a cell"
    return {m[1]: m[2].strip().lower() for m in _directive.finditer(source)}


def fence(code: str, info: str = "") -> str:
    "Put `code` between fences that no run of backticks inside it can close"
    ticks = "`" * max([3, *(len(m) + 1 for m in re.findall(r"`{3,}", code))])
    return f"{ticks}{info}\n{code.rstrip()}\n{ticks}"


def relink(text: str, to: Target) -> str:
    "Rewrite the link targets of prose, leaving code alone"
    def one(m: re.Match) -> str:
        if not m[1]: return m[0]
        new = to.link(m[2])
        return m[1].lstrip("!")[1:-1] if new is None else f"{m[1]}({new}{m[3] or ''})"
    return _code_or_link.sub(one, text)


@lru_cache
def class_fields() -> dict[str, str]:
    "Class name -> its source down to the last annotated field, for the exported classes made of fields"
    found = {}
    for path in (ROOT / "humanlm").rglob("*.py"):
        lines = path.read_text("utf-8").splitlines()
        for node in ast.parse("\n".join(lines)).body:
            fields = [n for n in node.body if isinstance(n, ast.AnnAssign)] if isinstance(node, ast.ClassDef) else []
            if fields and not any(getattr(n, "name", "") == "__init__" for n in node.body):
                found[node.name] = "\n".join(lines[node.lineno - 1:fields[-1].end_lineno])
    return found


def signature(text: str, to: Target) -> str:
    "Tidy what `show_doc` wrote: no rule above, one anchor as nbdev links it, classes as classes with their fields"
    text = re.sub(r"\A\s*---\s*", "", text).replace("__main__.", "")
    text = re.sub(r"\{target=[^}]*\}", "", text)
    if (m := re.match(r"\[source\]\(([^)]*)\)\s*", text)) and to.link(m[1]) is None: text = text[m.end():]
    text = re.sub(r"^(#{2,6}) (\S+)[ \t]*$", lambda m: f"{m[1]} {m[2]} {{ #{m[2].lower()} }}", text, flags=re.M)
    def declared(m: re.Match) -> str:
        bare = "class " + m[1] if "*args, **kwargs" in m[0] else m[0]
        return class_fields().get(m[1], bare)
    text = re.sub(r"^def ([A-Z]\w*)\(\n(?:    .*\n)*\)(?:->None)?:$", declared, text, flags=re.M)
    return relink(re.sub(r"^def ([A-Z])", r"class \1", text, flags=re.M), to)


def output_md(out: dict, to: Target) -> str:
    "One stored output as Markdown ('' for what is not shown, such as warnings)"
    if out["output_type"] == "stream":
        return fence(_no_ansi(text_of(out["text"])), to.plain) if out.get("name") != "stderr" else ""
    if out["output_type"] == "error":
        return fence(_no_ansi("\n".join(out["traceback"])), to.plain)
    data = {k: v if k.endswith("json") else text_of(v) for k, v in out["data"].items()}
    kind = next((k for k in to.prefer if k in data), None)
    if kind == "text/html": return to.html(data[kind])
    if kind == "text/markdown": return relink(data[kind], to)
    if kind == "image/png": return f"![figure]({to.image(base64.b64decode(data[kind]), '.png')})"
    if kind == "image/svg+xml": return f"![figure]({to.image(data[kind].encode(), '.svg')})"
    return fence(_no_ansi(data[kind]), to.plain) if kind else ""


def _no_ansi(text: str) -> str:
    return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", text)


def code_md(cell: dict, to: Target) -> list[str]:
    "A code cell as Markdown blocks: its source without directives, then its outputs"
    source = text_of(cell["source"])
    flags = directives(source)
    code = _directive.sub("", source).strip("\n")
    if flags.keys() & {"hide", "default_exp"} or flags.get("include") == "false": return []
    if "show_doc(" in code and flags.get("echo") == "false":
        docs = [text_of(o["data"].get("text/markdown", "")) for o in cell.get("outputs", []) if "data" in o]
        return [signature(d, to) for d in docs]
    blocks = [fence(code, "python")] if code and flags.get("echo") != "false" else []
    if flags.get("output") == "false": return blocks
    return blocks + [md for o in cell.get("outputs", []) if (md := output_md(o, to))]


def notebook_md(nb: dict, to: Target) -> str:
    "A whole notebook as Markdown"
    blocks = []
    for cell in nb["cells"]:
        source = text_of(cell["source"])
        if cell["cell_type"] == "code": blocks += code_md(cell, to)
        elif cell["cell_type"] == "raw": blocks.append(_front_matter(source))
        elif not source.startswith("<!-- WARNING"): blocks.append(relink(source, to))
    return "\n\n".join(b.strip("\n") for b in blocks if b.strip()) + "\n"


def _front_matter(source: str) -> str:
    "nbdev moves title and summary into YAML; write them as a heading and a quote again"
    import yaml
    meta = yaml.safe_load(source.strip().strip("-")) or {}
    if not isinstance(meta, dict) or "title" not in meta: return ""
    return f"# {meta['title']}\n\n" + (f"> {meta['description']}" if meta.get("description") else "")


# ---- README

def _repo_path(target: str, folder: str = "") -> Path | None:
    "The file of this repository that a link in a notebook means, if it is one"
    if re.match(r"[a-z]+:|#|/", target): return None
    path = (NBS / folder / target.split("#")[0]).resolve()
    return path.relative_to(ROOT) if path.exists() and path.is_relative_to(ROOT) else None


def readme_text() -> str:
    "What README.md shall hold, made from the index notebook"
    def image(content: bytes, suffix: str) -> str:
        raise ValueError("README cannot hold a figure that only a cell output has: save it under nbs/images/ and show "
                         "it with ![what it is](images/NAME.png)")
    def link(target: str) -> str:
        path = _repo_path(target)
        return target if path is None else path.as_posix() + target[len(target.split("#")[0]):]
    to = Target(link, image, lambda h: h, "", ("text/markdown", "text/plain", "text/html", "image/png"))
    return NOTE + notebook_md(json.loads((NBS / "index.ipynb").read_text("utf-8")), to)


def readme(check: bool = False) -> None:
    """Write README.md from nbs/index.ipynb.

    Args:
        check: write nothing, and fail if README.md differs from what would be written
    """
    path, new = ROOT / "README.md", readme_text()
    if path.exists() and path.read_text("utf-8") == new: return print("README.md is up to date")
    if check: sys.exit("README.md differs from nbs/index.ipynb. Next: run `make readme` and commit the result.")
    path.write_text(new, "utf-8")
    print("README.md written")


# ---- site

def page_name(notebook: str) -> str:
    "`00_data.ipynb` -> `data.md`, as nbdev names pages and links them"
    path = Path(notebook)
    return (path.parent / (re.sub(r"^\d+[a-z0-9]*_", "", path.name.lower()).removesuffix(".ipynb") + ".md")).as_posix()


def site_link(target: str, repo_url: str, folder: str = "") -> str | None:
    "Where a notebook's link leads on the site (None: nowhere, keep the words only)"
    if m := re.fullmatch(r"/blob/[^/]+/(.*)", target): return f"{repo_url}/blob/main/{m[1]}" if repo_url else None
    near = lambda page: os.path.relpath(page, folder or ".")
    if m := re.fullmatch(r"/([\w/-]+)\.html(#.*)?", target): return near(f"{m[1]}.md") + (m[2] or "")
    if (path := _repo_path(target, folder)) is None: return target
    rest = target[len(target.split("#")[0]):]
    if path.suffix == ".ipynb": return near(page_name("/".join(path.parts[1:]))) + rest
    if path.parts[0] == "nbs": return near("/".join(path.parts[1:])) + rest
    if path.name in ("CHANGELOG.md", "CONTRIBUTING.md"): return near(path.name) + rest
    return f"{repo_url}/blob/main/{path.as_posix()}" if repo_url else None


class Outputs:
    "HTML outputs and figures of all pages; HTML bypasses Markdown and is put back by `on_page_content`"
    def __init__(self): self.html = []

    def put_html(self, html: str) -> str:
        self.html.append(html)
        return f'<div data-output="{len(self.html) - 1}"></div>'

    def save(self) -> None: (WORK / "outputs.json").write_text(json.dumps(self.html), "utf-8")


def write_pages(processed: Path, repo_url: str) -> list[Path]:
    "Turn nbdev's processed notebooks into Markdown pages and return the notebooks in reading order"
    pages, outputs = WORK / "pages", Outputs()
    shutil.rmtree(WORK, ignore_errors=True)
    (pages / "figures").mkdir(parents=True)
    books = sorted(processed.rglob("*.ipynb"))
    for book in books:
        where = book.relative_to(processed)
        name, folder, count = page_name(where.as_posix()), where.parent.as_posix().removeprefix("."), iter(range(10_000))
        def image(content: bytes, suffix: str) -> str:
            path = Path("figures") / f"{name.removesuffix('.md').replace('/', '-')}-{next(count)}{suffix}"
            (pages / path).write_bytes(content)
            return os.path.relpath(path, folder or ".")
        to = Target(lambda t, folder=folder: site_link(t, repo_url, folder), image, outputs.put_html, " { .text .output }",
                    ("text/html", "text/markdown", "image/svg+xml", "image/png", "text/plain"))
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        (pages / name).write_text(notebook_md(json.loads(book.read_text("utf-8")), to), "utf-8")
    if (NBS / "images").exists(): shutil.copytree(NBS / "images", pages / "images")
    for extra in ("CHANGELOG.md", "CONTRIBUTING.md"): shutil.copy(ROOT / extra, pages / extra)
    shutil.copy(ROOT / "docs" / "site.css", pages / "site.css")
    outputs.save()
    return books


def navigation(books: list[Path]) -> list[dict]:
    "The sidebar: doors and commands first, then one group per room"
    nav, root = {}, ROOT / "_proc"
    for book in books:
        where = book.relative_to(root)
        if re.match(r"\d\d_", where.name): nav.setdefault(where.parent.name.capitalize() or "Doors and commands", []).append(page_name(where.as_posix()))
    project = {"Project": [{"Changelog": "CHANGELOG.md"}, {"Contributing": "CONTRIBUTING.md"}]}
    return [{"Home": "index.md"}, *({k: v} for k, v in nav.items()), project]


def mathml(m: re.Match) -> str:
    "A formula as MathML, which browsers draw without a script"
    from html import unescape
    from latex2mathml.converter import convert
    return convert(unescape(m[2]), display="inline" if m[1] == "span" else "block")


def on_page_content(html: str, **kwargs) -> str:
    "MkDocs hook: formulas become MathML, and HTML outputs go where their slots are"
    html = _formula.sub(mathml, html)
    if not _slot.search(html): return html
    stored = json.loads((WORK / "outputs.json").read_text("utf-8"))
    return _slot.sub(lambda m: f'<div class="html-output">{stored[int(m[1])]}</div>', html)


class _Loads(HTMLParser):
    "Collect what a page makes the browser fetch by itself"
    keys = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src",
            "embed": "src", "object": "data", "link": "href"}

    def __init__(self):
        super().__init__()
        self.urls = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        attrs = dict(attrs)
        if tag == "link" and attrs.get("rel") in ("canonical", "prev", "next"): return
        self.urls += [attrs.get(self.keys.get(tag, ""), "") or ""]
        self.urls += re.findall(r"url\(['\"]?([^'\")]+)", attrs.get("style") or "")


def offline_problems(site: Path) -> list[str]:
    "Every address on another host that a page or style sheet of the site would fetch"
    found = []
    for page in site.rglob("*.html"):
        loads = _Loads()
        loads.feed(page.read_text("utf-8"))
        found += [f"{page.relative_to(site)}: {u}" for u in loads.urls if re.match(r"(https?:)?//", u)]
    for sheet in site.rglob("*.css"):
        urls = re.findall(r"(?:url\(|@import\s+)['\"]?((?:https?:)?//[^'\")\s]+)", sheet.read_text("utf-8"))
        found += [f"{sheet.relative_to(site)}: {u}" for u in urls]
    return found


def allow_unknown_types() -> None:
    "Let `show_doc` write a type as it stands in the source when it is imported for type checkers only"
    import fastcore.docments as docments
    def lenient(signature: Callable) -> Callable:
        def read(symbol: object, eval_str: bool = False):
            try: return signature(symbol, eval_str=eval_str)
            except NameError: return signature(symbol)
        return read
    docments.signature, docments.signature_ex = lenient(docments.signature), lenient(docments.signature_ex)


def skip_examples() -> None:
    "Let nbdev run exported cells and signatures only: examples keep the outputs they were stored with"
    import nbdev.processors as processors
    run, needed = processors._do_eval, {"export", "exports", "exporti", "exec_doc"}
    processors._do_eval = lambda cell: ("show_doc(" in cell.source or needed & cell.directives_.keys()) and run(cell)


def site(repo_url: str = os.environ.get("REPO_URL", "")) -> None:
    """Build the whole site into _docs/.

    Args:
        repo_url: address of the repository, for links to sources (none: no such links)
    """
    os.chdir(ROOT)
    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")
    logging.basicConfig(format="%(levelname)s %(message)s")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from nbdev.quarto import nbdev_sidebar, refresh_quarto_yml
    from nbdev.serve import proc_nbs
    refresh_quarto_yml()
    nbdev_sidebar.__wrapped__()
    allow_unknown_types()
    skip_examples()
    books = write_pages(proc_nbs(n_workers=0), repo_url)  # in this process, where the two lines above hold
    build(load_config(str(ROOT / "mkdocs.yml"), nav=navigation(books), strict=True))
    if problems := offline_problems(SITE): sys.exit("The site would fetch from other hosts:\n  " + "\n  ".join(problems))
    print(f"{len(books)} notebooks -> _docs/. Next: python -m http.server -d _docs, then open http://localhost:8000")


if __name__ == "__main__":
    from jsonargparse import auto_cli
    auto_cli([site, readme])
