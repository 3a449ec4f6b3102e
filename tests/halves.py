"""Checkpoints as a kill leaves them while they are written."""

import shutil
from pathlib import Path


def parts(checkpoint: Path) -> list[Path]:
    "The files of a whole checkpoint, in the order in which they were written"
    return sorted(checkpoint.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def stop_writing(checkpoint: Path, at: int, share: float = 0.5) -> None:
    "Leave of part `at` a share of its bytes, and nothing of what was written after it"
    files = parts(checkpoint)
    files[at].write_bytes((data := files[at].read_bytes())[: int(share * len(data))])
    for path in files[at:][1:]:
        path.unlink()


def stop_in_the_first(stage: Path, at: int, share: float = 0.5) -> Path:
    "Leave of a stage's checkpoints the first one, half written; give its place"
    first, *later = sorted(
        stage.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1])
    )
    for path in later:
        shutil.rmtree(path)
    stop_writing(first, at, share)
    return first
