"""What tools find before anything runs: names that nobody uses or defines, and, in `make types`, types that do not fit; hooks hold them."""

import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def tool(*words: str) -> subprocess.CompletedProcess:
    path = shutil.which(words[0], path=str(Path(sys.executable).parent))
    assert path, f"{words[0]} is not in this environment: make .venv/.humanlm-dev"
    return subprocess.run([path, *words[1:]], cwd=ROOT, capture_output=True, text=True)


def test_names_are_used_and_defined():
    done = tool("ruff", "check", "--output-format", "concise")
    assert done.returncode == 0, done.stdout


def test_the_type_checker_finds_what_does_not_fit(tmp_path):
    (tmp_path / "wrong.py").write_text("def half(x: int) -> int:\n    return str(x)\n")
    done = tool("basedpyright", str(tmp_path / "wrong.py"), "--pythonpath", sys.executable)
    assert done.returncode == 1 and "reportReturnType" in done.stdout


def test_hooks_run_these_tools():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["entry"].split()[0] for hook in hooks} == {
        "nbdev_clean",
        "python",
        "ruff",
        "basedpyright",
    }
