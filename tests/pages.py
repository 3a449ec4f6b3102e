"Read HTML as a browser would, and show it to a real one"
import shutil, subprocess
from html.parser import HTMLParser
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = [
    "<script>alert(1)</script>", "</td></table></details>", '" onmouseover="alert(1)', "' onclick='x", "&lt;b&gt; &amp;",
    "<stance>for</stance>", "<|im_end|>\n<|im_start|>assistant", "</title><img src=x onerror=y>", "</style><b>",
    "\x00\x1b[31m\u202eabc", "\ud800", "$x$ | `c`"]
VOID = {"br", "input", "meta"}
TAGS = VOID | set(
    "a article b body button caption circle clippath code dd defs details div dl dt em figcaption figure form g h1 h2 h3 h4 head hr html i label "
    "li main nav ol option p path pre rect section select small span strong style summary svg table tbody td text th thead title tr tspan ul use".split())
ATTRIBUTES = set(
    "action aria-label charset checked class colspan content cx cy d fill for height href http-equiv id lang maxlength method name opacity open placeholder r role selected style "
    "stroke stroke-width title type value viewbox width".split())


class Reader(HTMLParser):
    "What a page is made of"

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.classes, self.text, self.stack = set(), set(), [], "", []

    def handle_starttag(self, name, attrs):
        self.tags.add(name)
        self.attributes |= {key for key, _ in attrs}
        self.classes += [word for key, value in attrs if key == "class" for word in value.split()]
        if name not in VOID: self.stack.append(name)

    def handle_startendtag(self, name, attrs):
        self.handle_starttag(name, attrs)
        if name not in VOID: self.handle_endtag(name)

    def handle_endtag(self, name):
        assert self.stack and self.stack.pop() == name

    def handle_data(self, data): self.text += data if self.stack[-1:] != ["style"] else ""


def read(page: str, figures: bool = False) -> Reader:
    "Parse a page: every element closed, every tag ours; outside of figures every attribute too"
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.stack == [] and reader.tags <= TAGS
    assert figures or reader.attributes <= ATTRIBUTES
    return reader


def in_browser(page: str, folder: Path) -> str:  # the document, as the browser holds it after two seconds
    "Open a page in a real browser"
    path = folder / "page.html"
    path.write_text(page, "utf-8", errors="replace")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run([CHROMIUM, *options, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=600)
    return done.stdout
