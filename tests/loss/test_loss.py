"""A permit that is lost stops the work that it guarded, once, and says so."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress

import anyio
import pytest

from redsem_async import AnySemaphore, Permit, PermitLost
from tests.harness.clients import MakePair
from tests.harness.holder import Holder, forever, nothing_is_left
from tests.harness.wait import all_free, soon


@pytest.fixture
async def holder(pair: MakePair) -> Holder:
    """A holder that learns of a loss by a message, for its lease is long."""
    return Holder(*pair(2, lease=60.0))


# -- every form of a block


def _entered(sem: AnySemaphore) -> AbstractAsyncContextManager[Permit]:
    return sem


def _acquired(sem: AnySemaphore) -> AbstractAsyncContextManager[Permit]:
    return sem.acquire()


@asynccontextmanager
async def _afterwards(sem: AnySemaphore) -> AsyncGenerator[Permit]:
    permit = await sem.acquire()
    async with permit as entered:
        assert entered is permit
        yield permit


@asynccontextmanager
async def _adopted(sem: AnySemaphore) -> AsyncGenerator[Permit]:
    permit_id = await (await sem.acquire()).detach(60)
    async with sem.adopt(permit_id) as permit:
        yield permit


@asynccontextmanager
async def _in_a_context_manager(sem: AnySemaphore) -> AsyncGenerator[Permit]:
    async with sem as permit:
        try:
            yield permit
        finally:
            await asyncio.sleep(0)


Form = Callable[[AnySemaphore], AbstractAsyncContextManager[Permit]]
FORMS: list[Form] = [_entered, _acquired, _afterwards, _adopted, _in_a_context_manager]


@pytest.mark.parametrize("form", FORMS)
async def test_loss_cancels_the_body_once_and_leaves_as_permit_lost(
    holder: Holder, form: Form
) -> None:
    """Its clean-up may await: the cancellation is not repeated, as a cancel scope's would be."""
    cleaned_up = False

    async def work() -> None:
        nonlocal cleaned_up
        async with form(holder.sem) as permit:
            try:
                await holder.body(permit)
            finally:
                for _ in range(20):
                    await asyncio.sleep(0.001)
                cleaned_up = True

    with pytest.raises(PermitLost) as caught:
        await holder.lose_during(work)
    permit = holder.entered.result()
    assert (caught.value.name, caught.value.permit_id) == (holder.sem.name, permit.id)
    assert permit.lost
    assert cleaned_up
    assert holder.cancellations == 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("of_acquire", [False, True])
async def test_cancel_on_loss_false_only_says_so(
    pair: MakePair, form: Form, of_acquire: bool
) -> None:
    """Where the limit caps load, an outage should not stop the work."""
    sem, elsewhere = pair(1, lease=60.0, cancel_on_loss=of_acquire)
    block = sem.acquire(cancel_on_loss=False) if of_acquire else form(sem)
    async with block as permit:
        await elsewhere.release(permit.id)
        await soon(permit.wait_lost())
        await asyncio.sleep(0)
        with pytest.raises(PermitLost):
            permit.check()
    await nothing_is_left()
    await all_free(sem)


# -- what the body does then


@pytest.mark.fault(10)
async def test_a_body_that_swallows_the_cancellation_leaves_as_permit_lost(holder: Holder) -> None:
    """Code after the block relies on it that the work was guarded."""

    async def work() -> None:
        async with holder.sem as permit:
            with suppress(asyncio.CancelledError):
                await holder.body(permit)
            await asyncio.sleep(0)

    with pytest.raises(PermitLost):
        await holder.lose_during(work)


async def test_an_error_of_the_bodys_own_wins(holder: Holder) -> None:
    async def work() -> None:
        async with holder.sem as permit:
            try:
                await holder.body(permit)
            finally:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        await holder.lose_during(work)
    assert isinstance(caught.value.__context__, asyncio.CancelledError)


@pytest.mark.parametrize("first", ["loss", "cancellation"])
async def test_a_cancellation_from_outside_wins(holder: Holder, first: str) -> None:
    """Either comes during the clean-up after the other, and ends that."""
    cleaning = asyncio.Event()

    async def work() -> None:
        async with holder.sem as permit:
            try:
                await holder.body(permit)
            finally:
                cleaning.set()
                await forever()

    async def both(permit: Permit) -> None:
        if first == "loss":
            await holder.take(permit)
            await soon(cleaning.wait())
            holder.task.cancel()
        else:
            holder.task.cancel()
            await soon(cleaning.wait())
            await holder.take(permit)

    with pytest.raises(asyncio.CancelledError):
        await holder.lose_during(work, both, cancelling=1)


# -- beside what else cancels

Block = Callable[[Holder], Awaitable[object]]


async def _timeout_inside(holder: Holder) -> None:
    async with holder.sem as permit, asyncio.timeout(30):
        await holder.body(permit)


async def _task_group_inside(holder: Holder) -> None:
    async with holder.sem as permit, asyncio.TaskGroup() as group:
        group.create_task(holder.body(permit))
        group.create_task(forever())


async def _anyio_group_inside(holder: Holder) -> None:
    async with holder.sem as permit, anyio.create_task_group() as group:
        group.start_soon(holder.body, permit)
        group.start_soon(forever)


@pytest.mark.parametrize("block", [_timeout_inside, _task_group_inside, _anyio_group_inside])
async def test_a_loss_passes_through_what_else_cancels(holder: Holder, block: Block) -> None:
    """Nothing takes the cancellation for its own, and what runs inside the block ends."""
    with pytest.raises(PermitLost):
        await holder.lose_during(lambda: block(holder))
    assert holder.cancellations == 1


@pytest.mark.parametrize("where", ["inside", "outside", "scope"])
async def test_loss_and_a_deadline_in_the_same_turn(holder: Holder, where: str) -> None:
    """Either may win, but one of them has to own the cancellation: alone, it ends the task."""
    loop = asyncio.get_running_loop()

    async def work() -> None:
        if where == "inside":
            async with holder.sem as permit, asyncio.timeout(0.02):
                await holder.body(permit)
        elif where == "outside":
            async with asyncio.timeout(None) as timeout, holder.sem as permit:
                timeout.reschedule(loop.time() + 0.02)
                await holder.body(permit)
        else:
            with anyio.CancelScope() as scope:
                async with holder.sem as permit:
                    scope.deadline = anyio.current_time() + 0.02
                    await holder.body(permit)
            assert scope.cancelled_caught
            raise TimeoutError

    with pytest.raises((PermitLost, TimeoutError)):
        await holder.lose_during(
            work, lambda permit: holder.take_at_once(permit, until=loop.time() + 0.03)
        )
    assert holder.cancellations == 1


# -- several permits


@pytest.mark.parametrize("taken", [("outer",), ("inner",), ("outer", "inner")], ids="-".join)
@pytest.mark.parametrize("caught", [False, True], ids=["left", "caught between"])
async def test_of_two_blocks_each_is_left_by_the_loss_of_its_own_permit(
    holder: Holder, taken: tuple[str, ...], caught: bool
) -> None:
    """One task, up to two cancellations: all have to be uncounted."""
    permits: dict[str, Permit] = {}

    async def work() -> None:
        async with holder.sem as permits["outer"]:
            with suppress(PermitLost) if caught else nullcontext():
                async with holder.sem as permits["inner"]:
                    await holder.body(permits["inner"])
            if "outer" in taken:
                await forever()
            permits["outer"].check()

    leaves = "outer" in taken or not caught
    with pytest.raises(PermitLost) if leaves else nullcontext() as raised:
        await holder.lose_during(
            work, lambda _: holder.take_at_once(*(permits[name] for name in taken))
        )
    if raised is not None:
        assert raised.value.permit_id == permits[taken[0]].id
    assert {name for name, permit in permits.items() if permit.lost} == {*taken}
    assert holder.cancellations == 1


# -- at the edges of the block


@pytest.mark.parametrize("runs", [False, True])
async def test_loss_on_the_way_while_the_body_ends(holder: Holder, runs: bool) -> None:
    """The message is in the socket when the block is left: no cancellation comes after it.

    Or it is read when what the body waits for has happened, and the body has not run yet.
    """

    async def ends(permit: Permit) -> None:
        await holder.take_at_once(permit)
        if runs:
            asyncio.get_running_loop().call_soon(holder.may_end.set)
        else:
            holder.may_end.set()

    with pytest.raises(PermitLost) if runs else suppress(PermitLost):
        await holder.lose_during(holder.block, ends)


@pytest.mark.fault(11)
@pytest.mark.parametrize("lost", [True, False])
async def test_a_block_that_is_left_in_another_task(holder: Holder, lost: bool) -> None:
    """Its cancellations are not ours to uncount, and PermitLost is due all the same."""
    context = _in_a_context_manager(holder.sem)
    permit = await asyncio.create_task(context.__aenter__())
    if lost:
        await holder.take(permit)
        await soon(permit.wait_lost())

    async def leave() -> None:
        leaving.cancel()
        with suppress(asyncio.CancelledError):
            await forever()
        with pytest.raises(PermitLost) if lost else nullcontext():
            await context.__aexit__(None, None, None)
        await nothing_is_left(cancelling=1)

    leaving = asyncio.create_task(leave())
    await leaving
    await all_free(holder.sem)
