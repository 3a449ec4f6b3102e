"""The frame: settings agree, export is in sync, notebooks are clean, imports point down."""

import ast
import configparser
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
NBS = sorted((ROOT / "nbs").rglob("[0-9][0-9]_*.ipynb"))
PAGES = NBS + sorted((ROOT / "nbs").glob("index.ipynb"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# Modules that may load a deep-learning library when they are imported. All others form the light
# layer: they can be read,
# imported and tested without one. `models` and `train` belong to it, since their settings are
# parsed before anything loads.
TENSORS = {
    "training.advantages",
    "training.losses",
    "training.sft",
    "training.trainer",
    "training.policy",
    "alignment.grpo",
    "sdpo.method",
    "classmate.method",
    "engines.cpu",
}
HEAVY = {
    "torch",
    "transformers",
    "trl",
    "accelerate",
    "peft",
    "vllm",
    "verl",
    "ray",
    "pandas",
    "datasets",
    "pyarrow",
    "openai",
    "anthropic",
    "matplotlib",
    "ipywidgets",
    "wandb",
    "scipy",
    "sklearn",
}
sys.path.insert(0, str(ROOT / "docs"))
import rooms


def source(cell: dict) -> str:
    return "".join(cell["source"])


@cache
def cells(notebook: Path) -> list[dict]:
    return json.loads(notebook.read_text("utf-8"))["cells"]


def module(notebook: Path) -> str:
    "The dotted module that a notebook exports, without the package; its stem if none"
    found = re.match(r"#\| default_exp (\S+)", source(cells(notebook)[0]))
    return found[1] if found else notebook.stem[3:]


def code_cells(notebook: Path) -> list[dict]:
    return [c for c in cells(notebook) if c["cell_type"] == "code"]


def exported(notebook: Path) -> bool:
    return (ROOT / "humanlm" / f"{module(notebook).replace('.', '/')}.py").exists()


each_notebook = pytest.mark.parametrize(
    "notebook", PAGES, ids=lambda p: p.relative_to(ROOT / "nbs").with_suffix("").as_posix()
)


# ---- settings


def test_settings_agree():
    config = configparser.ConfigParser()
    config.read(ROOT / "settings.ini")
    ini, project, nbdev = config["DEFAULT"], PROJECT["project"], PROJECT["tool"]["nbdev"]
    assert ini["lib_name"] == ini["repo"] == project["name"]
    assert ini["description"] == project["description"]
    assert ini["license"] == project["license"]
    assert ">=" + ini["min_python"] == project["requires-python"]
    assert ini["requirements"].split() == project["dependencies"]
    for extra, wanted in project["optional-dependencies"].items():
        assert ini[f"{extra}_requirements"].split() == wanted
    assert (
        dict(line.split("=") for line in ini["console_scripts"].split("\n")) == project["scripts"]
    )
    assert {k: ini[k] for k in nbdev} == {k: str(v) for k, v in nbdev.items()}


def test_one_version_everywhere():
    version = re.search(r'__version__ = "(.+)"', (ROOT / "humanlm/__init__.py").read_text())[1]
    assert f"version = {version}\n" in (ROOT / "settings.ini").read_text()
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version


def test_every_dependency_has_a_tested_version():
    def plain(name):
        return re.split(r"[\[<>=]", name)[0].lower().replace("_", "-")

    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and line[0] != "#"
    ]
    pins = {plain(line): line for line in lines}
    project = PROJECT["project"]
    extras = {
        name: lines
        for name, lines in project["optional-dependencies"].items()
        if name not in ("vllm", "verl")
    }  # in environments of their own
    for name in (
        line
        for line in sum(extras.values(), project["dependencies"])
        if not line.startswith("humanlm[")
    ):
        assert plain(name) in pins, f"{name}: add the tested version to constraints.txt"
        if "==" in name:
            assert pins[plain(name)] == name


def test_commands_exist():
    from importlib.metadata import entry_points

    ours = {
        e.name: e
        for e in entry_points(group="console_scripts")
        if e.name in PROJECT["project"]["scripts"]
    }
    assert set(ours) == set(PROJECT["project"]["scripts"])
    for name, entry in ours.items():
        assert callable(entry.load()), name


# ---- the law of rooms


def test_rooms_import_only_rooms_below():
    house = rooms.pages()
    assert rooms.law_problems({page.module: rooms.tree(page) for page in house}, house) == [], (
        "see the table of rooms in CONTRIBUTING.md"
    )


def test_light_modules_import_nothing_heavy():
    names = [module(nb) for nb in NBS if exported(nb) and module(nb) not in TENSORS]
    code = (
        "import importlib, json, sys\nfound = {}\nfor name in sys.argv[1].split():\n"
        "    importlib.import_module('humanlm.' + name)\n"
        "    found[name] = sorted(set(sys.argv[2].split()) & {m.split('.')[0] for m in "
        "sys.modules})\n"
        "print(json.dumps(found))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, " ".join(names), " ".join(HEAVY)],
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stderr
    first = next(((name, heavy) for name, heavy in json.loads(out.stdout).items() if heavy), None)
    assert first is None, (
        f"importing humanlm.{first[0]} loads {', '.join(first[1])}: move the import "
        "into the function"
    )


@pytest.mark.parametrize("command", ["train", "eval"])
def test_help_answers_without_torch(command):
    out = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", f"humanlm.{command}", "--help"],
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0 and "--config" in out.stdout
    loaded = {
        line.rsplit("|", 1)[1].strip().split(".")[0]
        for line in out.stderr.splitlines()
        if "|" in line
    }
    assert loaded & {"torch", "transformers", "trl", "pandas", "datasets"} == set()


# ---- notebooks


@each_notebook
def test_a_title_stands_alone_with_its_sentence(notebook):
    title = next(
        (
            source(c)
            for c in cells(notebook)
            if c["cell_type"] == "markdown" and source(c).startswith("# ")
        ),
        "",
    )
    assert len(title.strip().split("\n\n")) <= 2, (
        "nbdev's docs drop what else stands in the cell of a title: give it a cell of its own"
    )


@pytest.fixture(scope="module")
def fresh(tmp_path_factory) -> Path:
    "A copy of the project, exported and cleaned anew"
    copy = tmp_path_factory.mktemp("project")
    for name in ("pyproject.toml", "nbs", "humanlm"):
        there = copy / name
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, there)
        else:
            shutil.copytree(
                ROOT / name,
                there,
                ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"),
            )
    for old in (copy / "humanlm").rglob("*.py"):
        if old.name not in ("__init__.py", "__main__.py"):
            old.unlink()
    code = (
        "from functools import cache\nfrom nbdev import clean, config, doclinks\n"
        "config._load_toml = cache(config._load_toml)\n"  # read once, not for every notebook
        "doclinks.nbdev_export(); clean.nbdev_clean()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=copy, check=True)
    return copy


def test_export_is_in_sync(fresh):
    made = {
        p.relative_to(fresh).as_posix(): p.read_text("utf-8")
        for p in (fresh / "humanlm").rglob("*.py")
    }
    here = {
        p.relative_to(ROOT).as_posix(): p.read_text("utf-8")
        for p in (ROOT / "humanlm").rglob("*.py")
    }
    differ = sorted(name for name in made.keys() | here.keys() if made.get(name) != here.get(name))
    assert differ == [], (
        "notebooks and modules differ. Next: run `make export` and commit the result"
    )


def test_notebooks_are_clean(fresh):
    dirty = [
        nb.name for nb in PAGES if nb.read_bytes() != (fresh / nb.relative_to(ROOT)).read_bytes()
    ]
    assert dirty == [], "Next: run `make export` and commit the result"


@cache
def parsed(code: str) -> tuple[str, ast.Module]:
    "The code of a cell without the notebook commands (%, !) that Python cannot parse, and its tree"
    try:
        return code, ast.parse(code)
    except SyntaxError:
        return (bare := re.sub(r"^[%!].*$", "", code, flags=re.M)), ast.parse(bare)


def tree(cell: dict) -> ast.Module:
    return parsed(source(cell))[1]


def name(cell: dict) -> str:
    return f"cell {cell['id']}"


@each_notebook
def test_stored_outputs_are_small(notebook):
    sizes = {name(c): len(json.dumps(c.get("outputs", []))) for c in code_cells(notebook)}
    assert [f"{cell}: {size:,} bytes" for cell, size in sizes.items() if size > 150_000] == [], (
        "at most 150 kB: show less"
    )


def is_picture(output: dict) -> bool:
    "Whether an output holds a picture, whose text viewers do not show"
    return any(kind.startswith("image/") for kind in output.get("data", {}))


@each_notebook
def test_stored_outputs_hold_no_error_and_no_machine_path(notebook):
    outputs = [(name(c), o) for c in code_cells(notebook) for o in c.get("outputs", [])]
    assert [cell for cell, o in outputs if o["output_type"] == "error"] == []
    assert [cell for cell, o in outputs if str(ROOT) in json.dumps(o)] == []
    useless = (
        "/tmp/",
        ".venv/",
        "site-packages",
        "Figure size ",
        "application/vnd.jupyter.widget-view+json",
    )
    texts = [(cell, json.dumps(o)) for cell, o in outputs if not is_picture(o)]
    found = [f"{cell}: {word}" for cell, text in texts for word in useless if word in text]
    assert found == [], (
        "show what reads the same everywhere: a path without its folder, a picture, a table"
    )


@each_notebook
def test_links_lead_somewhere(notebook):
    texts = [source(c) for c in cells(notebook) if c["cell_type"] == "markdown"]
    prose = [re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S) for text in texts]
    targets = [
        t
        for text in prose
        for t in re.findall(r"\]\(([^()\s#]+)[^()]*\)", text)
        if not re.match(r"[a-z]+:", t)
    ]
    assert [t for t in targets if not (notebook.parent / t).exists()] == [], (
        "link to a file: [words](00_data.ipynb)"
    )


@pytest.mark.parametrize(
    "notebook", NBS, ids=lambda p: p.relative_to(ROOT / "nbs").with_suffix("").as_posix()
)
def test_a_notebook_opens_with_its_module_and_title(notebook):
    first = cells(notebook)[0]
    title = next(cell for cell in cells(notebook) if cell["cell_type"] == "markdown")
    assert source(first).strip() == f"#| default_exp {module(notebook)}" or not exported(notebook)
    assert re.match(r"# \S.*\n\n> \S", source(title)), "begin with a title and a summary line"
    assert len(cells(notebook)) > 5, "an empty notebook is not committed"


# ---- README and the package


def test_readme_is_made_from_the_index():
    out = subprocess.run(
        [sys.executable, "docs/build.py", "readme", "--check", "true"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stderr


def built(what: str, clone: Path) -> Path:
    "Copy the package into a folder and build a `wheel`, an `sdist` or an `editable` of it"
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, clone)
    for name in ("humanlm", "configs", *(["nbs"] if what == "sdist" else [])):
        shutil.copytree(
            ROOT / name,
            clone / name,
            ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"),
        )
    code = f"from setuptools.build_meta import build_{what} as build; print(build('dist'))"
    out = subprocess.run([sys.executable, "-c", code], cwd=clone, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return next((clone / "dist").glob("*.tar.gz" if what == "sdist" else "*.whl"))


def test_the_wheel_holds_modules_types_fixtures_and_settings_files(tmp_path):
    wheel = zipfile.ZipFile(built("wheel", tmp_path))
    files = [
        p for p in (ROOT / "humanlm").rglob("*") if p.is_file() and "__pycache__" not in p.parts
    ]
    configs = {
        f"humanlm/{p.relative_to(ROOT).as_posix()}" for p in (ROOT / "configs").rglob("*.yaml")
    }
    assert {p.relative_to(ROOT).as_posix() for p in files} | configs <= set(wheel.namelist())
    said = wheel.read(
        next(name for name in wheel.namelist() if name.endswith("/METADATA"))
    ).decode()
    assert (
        "Description-Content-Type: text/markdown" in said
        and "# humanlm" in said
        and "Author: " in said
        and "Project-URL: " in said
    )


def test_the_source_archive_holds_notebooks_and_settings_files(tmp_path):
    held = tarfile.open(built("sdist", tmp_path)).getnames()
    wanted = [
        p
        for p in (*(ROOT / "nbs").rglob("*.ipynb"), *(ROOT / "configs").rglob("*.yaml"))
        if ".ipynb_checkpoints" not in p.parts
    ]
    assert {p.relative_to(ROOT).as_posix() for p in wanted} <= {
        name.partition("/")[2] for name in held
    }


def test_every_dependency_names_its_oldest_version_and_every_extra_is_there():
    project, extras = PROJECT["project"], PROJECT["project"]["optional-dependencies"]
    used = [
        *project["dependencies"],
        *(line for name, lines in extras.items() if name not in ("dev", "docs") for line in lines),
    ]
    assert [line for line in used if ">=" not in line and not line.startswith("humanlm[")] == []
    assert {"vllm", "verl", "texts", "serve", "classmate", "8bit", "all"} <= set(extras)
    mine = {re.split(r"[\[>=<]", line)[0] for line in project["dependencies"]}
    assert not mine & {
        "torch",
        "anthropic",
        "ipywidgets",
        "matplotlib",
        "bert-score",
        "scipy",
        "pandas",
        "datasets",
    }, "the light core holds none of these"
