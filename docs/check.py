"""What every commit needs (`make check`): layout, the frame, then the rooms that changed.

    python docs/check.py          changed against main; on main against the last commit
    python docs/check.py BASE     changed against another commit

Tests marked `long` are left to `make test`. Of the commands, only those that changed are tested.
"""

import subprocess
import sys
from pathlib import Path

import rooms

ROOT = rooms.ROOT


def git(*words: str) -> list[str]:
    "The lines that git answers"
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.split(
        "\n"
    )[:-1]


def base() -> str:
    "The commit to compare with"
    head, common = git("rev-parse", "HEAD"), git("merge-base", "HEAD", "main")
    if common and common != head:
        return common[0]
    return "HEAD" if git("status", "--porcelain") else "HEAD~1"


def changed(commit: str) -> list[Path]:
    "Files that differ from a commit, new ones included"
    return [
        Path(line)
        for line in git("diff", "--name-only", commit)
        + git("ls-files", "--others", "--exclude-standard")
    ]


def touched(paths: list[Path], house: list[rooms.Page]) -> tuple[set[str], set[str]]:
    "The rooms, and the commands, that files belong to"
    room_names, commands = set(), set()
    pages = {page.notebook.name: page for page in house if page.notebook.parent == ROOT / "nbs"}
    modules = {page.module for page in house if page.room == "commands"}
    for path in paths:
        top, *rest = path.parts
        if top in ("nbs", "humanlm", "tests") and rest and rest[0] in rooms.ROOMS:
            room_names.add(rest[0])
        elif top == "nbs" and path.name in pages:
            page = pages[path.name]
            (commands if page.room == "commands" else room_names).add(
                page.module if page.room == "commands" else page.room
            )
        elif path.stem.removeprefix("test_") in modules and top in ("humanlm", "tests"):
            commands.add(path.stem.removeprefix("test_"))
    return room_names, commands


def chosen(
    room_names: set[str], commands: set[str], house: list[rooms.Page]
) -> tuple[list[rooms.Page], list[str]]:
    "Pages, and folders or files of tests"
    tests = [ROOT / "tests" / room for room in rooms.ROOMS if room in room_names] + [
        ROOT / "tests/commands" / f"test_{name}.py" for name in sorted(commands)
    ]
    return [page for page in house if page.room in room_names or page.module in commands], [
        str(p) for p in tests if p.exists()
    ]


def run(title: str, command: str, *words: str) -> bool:
    "Run a command of this environment; whether it passed"
    print(f"\n== {title} ==", flush=True)
    return subprocess.run(
        [Path(sys.executable).with_name(command), *words], cwd=ROOT
    ).returncode in (0, 5)  # 5: pytest found only long tests


def main(commit: str = "") -> int:
    house = rooms.pages()
    pytest = ("pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
    room_names, commands = touched(changed(commit or base()), house)
    notebooks, tests = chosen(room_names, commands, house)
    passed = [
        run("Layout", "ruff", "format", "--check", "--quiet"),
        run("Names, imports, lines", "ruff", "check", "--quiet"),
        run("The frame: export in sync, links, the law of rooms, README", *pytest, "tests/project"),
    ]
    if notebooks:
        title = f"Notebooks of what changed: {', '.join(sorted(room_names | commands))}"
        only = ("--path-re", rooms.pattern(notebooks))
        passed.append(run(title, "nbdev_test", "--n-workers", "2", *only))
    if tests:
        passed.append(run("Their tests", *pytest, "-m", "not long", *tests))
    if not notebooks:
        print("\nNo room has changed.")
    return not all(passed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
