"""``async with sem`` in an async generator, whose steps may run in any task."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest

from redsem_async import AnySemaphore, Permit, PermitLost
from tests.harness.clients import Make
from tests.harness.wait import all_free, available, cancelled, soon, until

Stream = AsyncGenerator[Permit]


async def stream(block: AbstractAsyncContextManager[Permit]) -> Stream:
    async with block as permit:
        while True:
            yield permit


async def step(generator: Stream) -> Permit:
    """By a task that ends at once."""
    return await asyncio.ensure_future(anext(generator))


async def close_elsewhere(generator: Stream) -> None:
    """It is closed by a task that never stepped it."""
    await asyncio.create_task(generator.aclose())


@pytest.mark.parametrize("first", [0, 1])
async def test_each_of_two_streams_gives_its_own_permit_back(make: Make, first: int) -> None:
    """Whichever task closes them: the permit of the one that goes on stays held."""
    sem = make(2)
    streams = [stream(sem), stream(sem)]
    permits = [await step(each) for each in streams]
    await close_elsewhere(streams[first])
    await available(sem, 1)
    assert permits[first].expires_in <= 0
    permits[1 - first].check()
    await close_elsewhere(streams[1 - first])
    await all_free(sem)


async def test_break_gives_the_permit_back_while_its_task_runs_on(make: Make) -> None:
    """A dropped generator is closed by a task of its own, which entered no block."""
    sem = make(3)

    async def work() -> None:
        async for permit in stream(sem):
            left.append(permit)
            break
        await asyncio.get_running_loop().create_future()

    left: list[Permit] = []
    workers = [asyncio.create_task(work()) for _ in range(3)]
    await until(lambda: len(left) == 3)
    await all_free(sem)
    await cancelled(*workers)


@pytest.mark.parametrize("cancel_on_loss", [True, False])
async def test_a_block_whose_task_has_ended_is_not_refreshed_for_ever(
    make: Make, caplog: pytest.LogCaptureFixture, cancel_on_loss: bool
) -> None:
    """A stream that nobody closes ends with its lease. One warning says what would not."""
    sem = make(2, lease=0.3, cancel_on_loss=cancel_on_loss)
    kept, left = stream(sem.acquire()), stream(sem)
    stays, permit = await step(kept), await step(left)
    lost = await soon(permit.wait_lost())
    assert "async with sem.acquire()" in str(lost)
    [warning] = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "async with sem.acquire()" in warning
    with pytest.raises(PermitLost):
        permit.check()
    stays.check()  # refreshed as before
    await kept.aclose()
    await left.aclose()
    await all_free(sem)


async def test_the_exit_of_a_lost_block_leaves_other_blocks_alone(make: Make) -> None:
    """Its permit is gone, and that of the only other block is another task's."""
    sem = make(1, lease=0.3)
    late = stream(sem)
    await soon((await step(late)).wait_lost())
    async with sem.acquire(timeout=5):
        pass
    async with sem as permit:
        await close_elsewhere(late)
        permit.check()
        assert await sem.available() == 0
    await all_free(sem)


async def test_calls_of_the_methods_are_known_by_their_task(make: Make) -> None:
    """As a class with a semaphore inside makes them, among blocks of the statement."""
    sem = make(6)

    async def nest(sem: AnySemaphore) -> None:
        outer = await sem.__aenter__()
        async with sem as block:
            inner = await sem.__aenter__()
            await sem.__aexit__(None, None, None)
            assert inner.expires_in <= 0 < min(outer.expires_in, block.expires_in)
        assert block.expires_in <= 0 < outer.expires_in
        await sem.__aexit__(None, None, None)

    await soon(asyncio.gather(nest(sem), nest(sem)))
    await all_free(sem)


async def test_who_looks_for_an_exit_enters_no_block(make: Make) -> None:
    """A container asks with hasattr() what it has to close. Its exit stack still gives it back."""
    sem = make(2)
    async with AsyncExitStack() as stack:
        assert hasattr(sem, "__aexit__")
        permit = await stack.enter_async_context(sem)
        assert hasattr(sem, "__aexit__")
        async with sem as block:
            pass
        assert block.expires_in <= 0 < permit.expires_in
    await all_free(sem)
