"""One semaphore in several threads at once, each with an event loop of its own.

Threads take turns where the interpreter likes. Here one is given its turn at every single
instruction of what the other does, so that nothing is left to luck.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, TypeVar

import pytest

from redsem_async import AnySemaphore
from redsem_async.testing import MemoryBackend

pytestmark = pytest.mark.one_mode

Result = TypeVar("Result")
InThread = Callable[[Callable[[], Any]], Any]


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
    """Have *turn* taken before instruction *step* of *code*. Gives those that were reached."""
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
    sys.settrace(trace)
    try:
        yield reached
    finally:
        sys.settrace(before)


async def test_threads_that_share_a_semaphore_keep_to_their_own_loops(
    kind: type[AnySemaphore], there: InThread
) -> None:
    """A permit of one loop that another refreshes is lost when that one ends, or is busy."""
    semaphore = kind(MemoryBackend(), "shared", 1)
    loop, code = asyncio.get_running_loop(), AnySemaphore._bound.__code__
    for used_last in (semaphore._bound, lambda: there(semaphore._bound)):
        step, reached = 0, [0]
        while reached:
            used_last()
            with interrupted(code, step, lambda: there(semaphore._bound)) as reached:
                bound = semaphore._bound()
            assert bound.remote.identity.loop is loop
            assert bound.refresher._loop is loop
            reached, step = reached[step:], step + 1
        assert step > 10, "nobody was interrupted"


async def test_a_block_that_another_task_leaves_is_of_its_own_loop(
    kind: type[AnySemaphore], there: InThread
) -> None:
    """The exit may come in a task that entered nothing, but never in another thread's stead."""
    semaphore = kind(MemoryBackend(), "shared", 2)

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
