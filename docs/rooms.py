"""The rooms of the package, measured.

python docs/rooms.py            a table of the rooms, and the imports that break the law
python docs/rooms.py --light    the notebooks that run without torch, for `nbdev_test --path-re`
"""

import ast
import json
import re
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

# From the ground up: a room imports only rooms before it. Systems never import each other.
ROOMS = (
    "core clients models hierarchy data worlds rewards evaluation "
    "training alignment sdpo classmate social gyms tom serving engines"
).split()
SYSTEMS = {"alignment", "sdpo", "classmate", "gyms", "social"}
LIGHT = (
    "core data clients worlds hierarchy evaluation social gyms tom"
).split()  # their pages run where torch is not installed
ONLY_IN = {"trl": "training", "verl": "engines", "ray": "engines"}
DOOR = 50  # the number of a door's module in its room; pages that build on it start at 51

# What each room is for, in a line of the map (docs/map.py), in the same order.
ABOUT = {
    "core": "what every room needs",
    "clients": "ask chat models, within limits and a budget",
    "models": "weights: build, load, write, score",
    "hierarchy": "which latent states there are, and asking",
    "data": "people and what they wrote, up to training sets",
    "worlds": "made-up people whose truth is known",
    "rewards": "from text to a number with a reason",
    "evaluation": "compare anything, with intervals; how human",
    "training": "rollout, reward, advantage, loss: one trainer",
    "alignment": "HumanLM",
    "sdpo": "SDPO",
    "classmate": "Classmate",
    "social": "social worlds",
    "gyms": "UserRL",
    "tom": "Theory-of-Mind question sets, asked",
    "serving": "trained simulators for other people",
    "engines": "the same methods on many machines",
    "commands": "humanlm train, eval, serve …",
}


class Page(NamedTuple):
    "A notebook that exports a module"

    notebook: Path
    module: str  # without the package: `core.records`, or `train` for a command

    @property
    def room(self) -> str:
        return self.module.partition(".")[0] if "." in self.module else "commands"

    @property
    def path(self) -> Path:
        return ROOT / "humanlm" / (self.module.replace(".", "/") + ".py")

    @property
    def place(self) -> tuple[int, int]:
        "Room, then number within the room; commands stand above all rooms"
        number = int(self.notebook.name[:2])
        if self.room == "commands":
            return len(ROOMS), number
        door = self.notebook.parent.name != self.room
        return ROOMS.index(self.room), DOOR if door else number


def cells(notebook: Path) -> list[dict]:
    return json.loads(notebook.read_text("utf-8"))["cells"]


@cache
def tree(page: Page) -> ast.Module:
    return ast.parse(page.path.read_text("utf-8"))


@cache
def pages(folder: Path = ROOT / "nbs") -> list[Page]:
    "Every notebook that exports a module, in the order of the house"
    house = []
    for notebook in folder.rglob("[0-9][0-9]_*.ipynb"):
        if ".ipynb_checkpoints" in notebook.parts:
            continue
        if m := re.match(r"#\| default_exp (\S+)", "".join(cells(notebook)[0]["source"])):
            house.append(Page(notebook, m[1]))
    return sorted(house, key=lambda page: (page.place, page.notebook.name))


def imports(tree: ast.AST, module: str = "") -> set[str]:
    "Every module or name that the code imports, at the top or inside a function, as dotted names"
    names, package = set(), ["humanlm", *module.split(".")[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            up = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            names |= {base} | {f"{base}.{a.name}" for a in node.names}
    return names


def law_problems(trees: dict[str, ast.AST], house: list[Page]) -> list[str]:
    "Every import that breaks the law of rooms"
    problems, by_name = [], {page.module: page for page in house}
    for name, tree in trees.items():
        page, used = by_name[name], imports(tree, name)
        for other in sorted({n.removeprefix("humanlm.") for n in used} & by_name.keys() - {name}):
            there = by_name[other]
            if {page.room, there.room} <= SYSTEMS and page.room != there.room:
                problems.append(f"{name} imports {other}: systems do not import each other")
            elif there.room == "commands" and page.room == "commands":
                problems.append(f"{name} imports {other}: commands do not import each other")
            elif there.place >= page.place:
                problems.append(f"{name} imports {other}, which stands higher")
        for package, room in ONLY_IN.items():
            if page.room != room and any(n.split(".")[0] == package for n in used):
                problems.append(f"{name} imports {package}, which only the room {room} may")
    return problems


class Room(NamedTuple):
    "What `python docs/rooms.py` counts of a room"

    name: str
    pages: int
    imported: str  # rooms it imports, with the number of arrows from page to page
    classes: int  # public ones
    functions: int  # public ones
    lines: int


def survey(house: list[Page]) -> tuple[list[Room], dict[str, list[str]]]:
    "Every room in numbers, and the names of classes that stand in more than one room"
    by_name, rooms, classes = {p.module: p for p in house}, [], defaultdict(set)
    for room in [*ROOMS, "commands"]:
        arrows, count, group = Counter(), Counter(), [p for p in house if p.room == room]
        for page in group:
            used = {
                n.removeprefix("humanlm.") for n in imports(tree(page), page.module)
            } & by_name.keys() - {page.module}
            arrows.update(by_name[n].room for n in used if by_name[n].room != room)
            for node in tree(page).body:
                if isinstance(node, ast.ClassDef):
                    classes[node.name].add(room)
                if (
                    isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
                    and node.name[0] != "_"
                ):
                    count["classes" if isinstance(node, ast.ClassDef) else "functions"] += 1
            count["lines"] += len(page.path.read_text("utf-8").splitlines())
        imported = ", ".join(f"{name} {arrows[name]}" for name in ROOMS if arrows[name]) or "–"
        rooms.append(
            Room(room, len(group), imported, count["classes"], count["functions"], count["lines"])
        )
    return rooms, {name: sorted(where) for name, where in sorted(classes.items()) if len(where) > 1}


def table(rooms: list[Room]) -> str:
    "The survey as a table"
    total = Room("all", *(sum(r[i] for r in rooms) if i != 2 else "" for i in range(1, 6)))
    rows = [("room", "pages", "imports", "classes", "functions", "lines"), *rooms, total]
    return "\n".join(f"{r[0]:<13}{r[1]:>6}{r[3]:>9}{r[4]:>11}{r[5]:>8}  {r[2]}" for r in rows)


def pattern(house: list[Page]) -> str:
    "What `nbdev_test --path-re` takes to run these pages alone"
    return (
        "/("
        + "|".join(re.escape(p.notebook.relative_to(ROOT / "nbs").as_posix()) for p in house)
        + ")$"
    )


def main() -> int:
    house = pages()
    if "--light" in sys.argv:
        print(pattern([p for p in house if p.room in LIGHT and not p.module.endswith(".recipe")]))
        return 0
    rooms, twice = survey(house)
    problems = law_problems({p.module: tree(p) for p in house}, house)
    lines = [
        table(rooms),
        f"\nClasses of one name in two rooms: {len(twice)}",
        *(f"- {name}: {', '.join(where)}" for name, where in twice.items()),
        f"\nImports that break the law: {len(problems)}",
        *(f"- {problem}" for problem in problems),
    ]
    print("\n".join(lines))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
