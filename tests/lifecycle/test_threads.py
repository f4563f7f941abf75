"""One semaphore in several event loops: in turn, and at once in several threads."""

import asyncio
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import pytest

from redsem_async import AnySemaphore, FairSemaphore, Permit
from redsem_async.testing import MemoryBackend

InThread = Callable[[Callable[[], Any]], Any]


def test_a_permit_belongs_to_one_loop(client: MemoryBackend) -> None:
    """What it would wait for elsewhere never comes there."""
    sem = FairSemaphore(client, "jobs", 1)
    with asyncio.Runner() as own, asyncio.Runner() as foreign:
        acquire: Any = sem.acquire()
        permit: Permit = own.run(acquire)

        async def enter() -> None:
            async with permit:
                pytest.fail("entered in another loop")

        for use in (permit.release, permit.refresh, permit.wait_lost, permit.detach, enter):
            with pytest.raises(RuntimeError, match="loop"):
                foreign.run(use())
        assert own.run(permit.release()) is True


@pytest.fixture
def there() -> Iterator[InThread]:
    """Calls a function in the event loop of another thread, and waits until it has returned."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(function: Callable[[], Any]) -> Any:
        async def called() -> Any:
            result = function()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(called(), loop).result(20)

    try:
        yield call
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def interrupted(code: CodeType, step: int, turn: Callable[[], object]) -> Generator[list[int]]:
    """Call *turn* before instruction *step* of *code*, where another thread may run as well.

    Gives the instructions that were reached.
    """
    reached: list[int] = []

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            reached.append(len(reached))
            if reached[-1] == step:
                turn()
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 has no such events otherwise
    sys.settrace(trace)
    try:
        yield reached
    finally:
        sys.settrace(before)


async def test_threads_that_share_a_semaphore_keep_to_their_own_loops(there: InThread) -> None:
    """A permit of one loop that another refreshes is lost when that one ends, or is busy."""
    semaphore = FairSemaphore(MemoryBackend(), "shared", 1)
    loop, code = asyncio.get_running_loop(), AnySemaphore._bound.__code__
    for used_last in (semaphore._bound, lambda: there(semaphore._bound)):
        step, reached = 0, [0]
        while reached:
            used_last()
            with interrupted(code, step, lambda: there(semaphore._bound)) as reached:
                bound = semaphore._bound()
            assert bound.identity.loop is loop
            assert bound._refresher._loop is loop
            reached, step = reached[step:], step + 1
        assert step > 10, "nothing was interrupted"


async def test_a_block_that_another_task_leaves_is_of_its_own_loop(there: InThread) -> None:
    """The exit may come in a task that entered nothing, but not for another thread's block."""
    semaphore = FairSemaphore(MemoryBackend(), "shared", 2)

    async def enter() -> object:
        await semaphore.__aenter__()
        return asyncio.current_task()

    elsewhere = there(enter)
    with pytest.raises(RuntimeError, match="entered"):
        await semaphore.__aexit__(None, None, None)
    entered = await asyncio.create_task(enter())
    assert await semaphore.available() == 0
    await semaphore.__aexit__(None, None, None)
    assert await semaphore.available() == 1
    there(lambda: semaphore.__aexit__(None, None, None))
    assert await semaphore.available() == 2
    assert entered is not elsewhere  # both are kept until here: what a task entered goes with it
