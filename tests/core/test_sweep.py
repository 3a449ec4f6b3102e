"""What a killed process leaves of files is gone after the next start, and nothing of another
process that lives."""

import signal
import subprocess
import sys

import pytest

from humanlm.core.runs import alone, open_run

KILLED = """
import os, signal, sys
from pathlib import Path
from humanlm.core.basics import atomic_path, atomic_write
where = Path(sys.argv[1])
with atomic_path(where / "models" / "humanlm") as new:
    new.mkdir()
    (new / "weights").write_text("half")
    with atomic_path(where / "run.json") as other:
        other.write_text("{")
        os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_a_killed_writer_leaves_nothing_behind_the_next_start(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.html").write_text("whole")
    assert (
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "run")]).returncode
        == -signal.SIGKILL
    )
    assert sum(name.rpartition("/")[2].startswith(".") for name in names(tmp_path / "run")) == 2
    open_run(tmp_path, "run", "")
    assert names(tmp_path / "run") == ["models", "report.html"]


def test_a_folder_at_work_is_left_alone(tmp_path):
    (tmp_path / "run" / "trial" / ".run.json.89abcdef" / "new").mkdir(parents=True)
    with alone(tmp_path / "run" / "trial"):
        open_run(tmp_path, "run", "")
    assert (tmp_path / "run" / "trial" / ".run.json.89abcdef" / "new").exists()
    open_run(tmp_path, "run", "")
    assert names(tmp_path / "run" / "trial") == []


CUT = """
import os, signal, sys
from pathlib import Path
from humanlm.core.basics import atomic_path
move = os.replace
def cut(old, new):
    move(old, new)
    os.replace = move
    os.kill(os.getpid(), signal.Signals[sys.argv[2]])
with atomic_path(Path(sys.argv[1])) as new:
    new.mkdir()
    os.replace = cut
"""


@pytest.mark.parametrize("sign", ["SIGINT", "SIGKILL"])
def test_a_folder_survives_an_interruption_between_the_two_moves(tmp_path, sign):
    (tmp_path / "run/model").mkdir(parents=True)
    (tmp_path / "run/model/weights").write_text("whole")
    assert subprocess.run([sys.executable, "-c", CUT, tmp_path / "run/model", sign]).returncode
    open_run(tmp_path, "run", "")
    assert names(tmp_path / "run") == ["model", "model/weights"]
