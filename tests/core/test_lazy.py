"""The names that the package and its rooms offer: each leads somewhere, none hides a module, and
none is loaded before it is wanted."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = sorted((ROOT / "humanlm").rglob("__init__.py"))
HEAVY = (
    "torch transformers trl pandas datasets pyarrow scipy sklearn numpy matplotlib "
    "ipywidgets starlette openai anthropic"
).split()
each_room = pytest.mark.parametrize(
    "file", ROOMS, ids=lambda p: ".".join(p.parent.relative_to(ROOT).parts)
)


def package(file):
    return ".".join(file.parent.relative_to(ROOT).parts)


def offered(file):
    "Module → names: as editors see them, and as they are found at run time"
    tree = ast.parse(file.read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        "." * (node.level if node.level > 1 else 0) + node.module: [a.name for a in node.names]
        for node in block.body
    }
    return seen, ast.literal_eval(
        next(
            n for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)
        ).value.args[1]
    )


@each_room
def test_editors_and_python_find_the_same_names_and_they_exist(file):
    room, (seen, found) = importlib.import_module(package(file)), offered(file)
    assert seen == found
    for module, names in found.items():
        relative = module if module.startswith(".") else f".{module}"
        there = importlib.import_module(relative, package(file))
        assert [getattr(room, name) is getattr(there, name) for name in names] == [True] * len(
            names
        )
        assert set(names) <= set(dir(room))


@each_room
def test_no_name_is_that_of_a_module_which_would_take_its_place(file):
    modules = {p.stem for p in file.parent.glob("*.py")} | {
        p.name for p in file.parent.iterdir() if p.is_dir()
    }
    names = [name for found in offered(file)[1].values() for name in found]
    assert set(names) & modules == set() and len(set(names)) == len(names)


def test_importing_the_package_or_a_room_loads_nothing_else():
    code = (
        "import importlib, json, sys\nfor name in sys.argv[1].split(): "
        "importlib.import_module(name)\n"
        "print(json.dumps([m for m in sys.modules if m.split('.')[0] in "
        "sys.argv[2].split() or m.count('.') > 1 and m.startswith('humanlm')]))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, " ".join(map(package, ROOMS)), " ".join(HEAVY)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert sorted(json.loads(out.stdout)) == ["humanlm.core.basics", "humanlm.core.plugins"], (
        out.stderr
    )
