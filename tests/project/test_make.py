"""What a newcomer meets first: the Makefile says what is missing, and installs only once."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import check

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run(["make", "UV=", *args], cwd=ROOT, capture_output=True, text=True)


def interpreter(folder: Path, body: str) -> str:
    "A stand-in for `python3` that answers as `body` says"
    path = folder / "python-stand-in"
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return f"PYTHON={path}"


def environment(folder: Path) -> str:
    "A stand-in for an environment in which everything is installed already"
    (folder / "bin").mkdir()
    for name in ("bin/python", ".humanlm-train", ".humanlm-dev", ".humanlm-docs"):
        (folder / name).touch()
    return f"VENV={folder}"


def test_a_missing_interpreter_is_named(tmp_path):
    out = make("demo", f"VENV={tmp_path}/env", "PYTHON=python-that-is-not-here")
    assert (
        out.returncode
        and "No 'python-that-is-not-here' here" in out.stdout
        and "Next:" in out.stdout
    )


def test_an_old_interpreter_is_refused_with_its_version(tmp_path):
    old = interpreter(tmp_path, 'case "$1" in -V) echo "Python 3.9.2";; *) exit 1;; esac\n')
    out = make("test", f"VENV={tmp_path}/env", old)
    assert out.returncode and "3.11 or newer" in out.stdout and "Python 3.9.2" in out.stdout


@pytest.mark.parametrize("target", ["demo", "world", "people", "check", "test", "numbers", "docs"])
def test_a_second_call_installs_nothing(tmp_path, target):
    out = make("-n", target, environment(tmp_path))
    assert out.returncode == 0 and "pip" not in out.stdout


def test_the_demo_resumes_unless_told_to_start_anew(tmp_path):
    env = environment(tmp_path)
    again, anew = make("-n", "demo", env).stdout, make("-n", "demo", env, "FRESH=1").stdout
    assert (
        "--config configs/people-mini.yaml" in again
        and "--resume" in again
        and "fresh" not in again
    )
    assert "--fresh" in anew and "--resume" not in anew


def test_a_check_runs_the_rooms_that_changed_and_only_commands_that_did():
    house = check.rooms.pages()
    paths = [
        Path(p)
        for p in (
            "nbs/rewards/02_scoring.ipynb",
            "humanlm/train.py",
            "nbs/tom/13_runs.ipynb",
            "nbs/00_data.ipynb",
            "tests/social/test_timeline.py",
            "README.md",
            "docs/build.py",
        )
    ]
    found, commands = check.touched(paths, house)
    assert (found, commands) == ({"rewards", "core", "social", "tom"}, {"train"})
    pages, tests = check.chosen(found, commands, house)
    assert {p.room for p in pages} == found | {"commands"} and {
        p.module for p in pages if p.room == "commands"
    } == commands
    assert {Path(t).relative_to(ROOT).as_posix() for t in tests} == {
        "tests/core",
        "tests/rewards",
        "tests/social",
        "tests/commands/test_train.py",
        "tests/tom",
    }
    assert check.chosen(*check.touched([Path("README.md")], house), house) == ([], [])
