"""Processes that a test started and that outlive it: each carries a mark in its environment, so
those of other tests are not counted."""

import time
from pathlib import Path

MARK = "HUMANLM_TEST_MARK"  # in the environment of all that a test starts


def left(mark: str) -> list[str]:
    "Commands of the processes that carry a mark and live"
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (place / "environ").read_bytes().split(b"\0"):
                found.append((place / "cmdline").read_bytes().decode().replace("\0", " ")[:80])
        except OSError:
            pass
    return found


def nobody_left(
    mark: str, seconds: float = 90
) -> bool:  # behind a kill -9 two agents of Ray try for a minute to report it
    end = time.monotonic() + seconds
    while (some := left(mark)) and time.monotonic() < end:
        time.sleep(0.5)
    assert not some, some
    return True
