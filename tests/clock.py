"""Time for tests: a loop whose clock jumps to the next timer, so that pauses take no time and a
busy machine moves none; and waiting for what happens."""

import asyncio
import contextlib
import selectors
import time


class VirtualLoop(asyncio.SelectorEventLoop):
    "A loop for code that only sleeps: no threads, no sockets"

    def __init__(self):
        super().__init__(selectors.SelectSelector())
        self.now, select = 1000.0, self._selector.select

        def jump(timeout=None):
            if timeout is None:
                raise RuntimeError("nothing is left that could wake the loop")
            self.now += timeout
            return select(0)

        self._selector.select = jump

    def time(self):
        return self.now


def virtual(work, monkeypatch):
    "Run a coroutine in virtual time, in which `time.monotonic` and `time.time` are the loop's"
    with contextlib.closing(VirtualLoop()) as loop, monkeypatch.context() as patch:
        for name in ("monotonic", "time"):
            patch.setattr(time, name, loop.time)
        return loop.run_until_complete(work)


def wait_until(holds, seconds=60.0, pause=0.01):
    "Wait for what must happen, long enough for a busy machine"
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(pause)


async def until(holds, seconds=60.0):
    "The same in a loop, which goes on meanwhile"
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.001)
