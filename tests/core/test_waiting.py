"""What a program waits for shares one loop, in a script as in a notebook, and nothing runs on
behind its back."""

import asyncio
import multiprocessing

from humanlm.core.basics import run_sync


class Judge:
    "Has two places, made once"

    def __init__(self):
        self.places = asyncio.Semaphore(2)

    async def ask(self):
        async with self.places:
            await asyncio.sleep(0.001)

    async def step(self):
        await asyncio.gather(*(self.ask() for _ in range(8)))


async def in_a_notebook(work):
    "Call from inside a running loop, as a cell does"
    return work()


def three_steps():
    judge, loops = Judge(), set()

    async def step():
        loops.add(asyncio.get_running_loop())
        await judge.step()

    for _ in range(3):
        run_sync(step())
    return len(loops)


def test_a_semaphore_made_once_serves_every_step():
    assert three_steps() == 1


def test_a_semaphore_made_once_serves_every_step_of_a_notebook():
    assert asyncio.run(in_a_notebook(three_steps)) == 1


def test_calls_inside_calls_get_through():
    async def deep(n):
        await asyncio.sleep(0)
        return n if n == 0 else run_sync(deep(n - 1))

    assert run_sync(deep(4)) == 0


def _forked(queue):
    async def work():
        await asyncio.sleep(0.001)
        return "done"

    queue.put(run_sync(work()))


def test_a_forked_process_has_a_loop_of_its_own():
    run_sync(asyncio.sleep(0))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_forked, args=(queue,))
    child.start()
    assert queue.get(timeout=20) == "done"
    child.join(20)
    run_sync(asyncio.sleep(0))
