"""A permit that is lost stops the work that it guarded, once, and says so.

Permits are lost for real here: released by another client, removed on the server, or not
refreshed because the server or the loop stood still.
"""

# ruff: noqa: PT017, PT031 - the block is what is tested, as users write it

import asyncio
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import anyio
import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, Permit, PermitLost
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client, Make
from tests.harness.servers import StartServer
from tests.harness.wait import all_free, cancelled, queue_up, soon, until

pytestmark = pytest.mark.one_mode

Take = Callable[[Permit], Awaitable[None]]
TakeNow = Callable[..., None]


@pytest.fixture
def take(make: Make, other: Client) -> Take:
    """Takes a permit away from its holder."""
    thief = make(1, client=other)

    async def take(permit: Permit) -> None:
        assert await thief.release(permit.id) is True

    return take


@pytest.fixture
def take_now(kind: type[AnySemaphore], client: Client, name: str, server_url: str) -> TakeNow:
    """Takes permits away while this loop stands still: it finds all messages at once."""

    async def take(permits: tuple[Permit, ...]) -> None:
        if isinstance(client, MemoryBackend):
            thief = kind(client.peer(), name, 1)
            assert all(await asyncio.gather(*(thief.release(permit.id) for permit in permits)))
        else:
            async with Redis.from_url(server_url) as redis:
                thief = kind(redis, name, 1)
                assert all(await asyncio.gather(*(thief.release(permit.id) for permit in permits)))
                await redis.ping()  # the server writes to all before it reads again

    def take_now(*permits: Permit) -> None:
        thread = threading.Thread(target=lambda: asyncio.run(take(permits)))
        thread.start()
        thread.join()

    return take_now


class Body:
    """A body that waits until it is cancelled, and counts how often that happens."""

    def __init__(self) -> None:
        self.cancellations = 0
        self.entered: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        self.may_end = asyncio.Event()

    async def wait(self, permit: Permit) -> None:
        self.entered.set_result(permit)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancellations += 1
            raise


async def _nothing_is_left(sem: AnySemaphore | None = None) -> None:
    """The task may go on as if nothing had been: no cancellation is counted or on its way."""
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    for _ in range(3):
        await asyncio.sleep(0)
    if sem is not None:
        await all_free(sem)


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
        yield permit


@asynccontextmanager
async def _in_a_tidy_context_manager(sem: AnySemaphore) -> AsyncGenerator[Permit]:
    async with sem.acquire() as permit:
        try:
            yield permit
        finally:
            await asyncio.sleep(0)


Form = Callable[[AnySemaphore], AbstractAsyncContextManager[Permit]]
FORMS: list[Form] = [
    _entered,
    _acquired,
    _afterwards,
    _adopted,
    _in_a_context_manager,
    _in_a_tidy_context_manager,
]

# -- once, and as PermitLost


@pytest.mark.parametrize("form", FORMS)
async def test_loss_cancels_the_body_once_and_leaves_as_permit_lost(
    make: Make, take: Take, form: Form
) -> None:
    """In every way in which a permit can guard a block."""
    sem, body = make(1, lease=60.0), Body()

    async def work() -> None:
        with pytest.raises(PermitLost) as caught:
            async with form(sem) as permit:
                await body.wait(permit)
        assert caught.value.permit_id == body.entered.result().id
        assert caught.value.name == sem.name
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    permit = await soon(body.entered)
    await take(permit)
    await soon(task)
    assert permit.lost
    assert body.cancellations == 1


async def test_the_bodys_clean_up_may_await(make: Make, take: Take) -> None:
    """The cancellation comes once, as `asyncio.timeout`'s, and is not repeated like a scope's."""
    sem, body = make(1, lease=60.0), Body()
    cleaned_up = False

    async def work() -> None:
        nonlocal cleaned_up
        async with sem as permit:
            try:
                await body.wait(permit)
            finally:
                for _ in range(20):
                    await asyncio.sleep(0.001)
                cleaned_up = True

    task = asyncio.create_task(work())
    await take(await soon(body.entered))
    with pytest.raises(PermitLost):
        await soon(task)
    assert cleaned_up
    assert body.cancellations == 1


async def test_a_body_that_swallows_the_cancellation_leaves_as_permit_lost(
    make: Make, take: Take
) -> None:
    """Whoever reads on after the block believes that the work was guarded."""
    sem, body = make(1, lease=60.0), Body()

    async def work() -> None:
        with pytest.raises(PermitLost):
            async with sem as permit:
                try:
                    await body.wait(permit)
                except asyncio.CancelledError:
                    await asyncio.sleep(0)
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    await take(await soon(body.entered))
    await soon(task)


async def test_a_body_that_returns_early_from_its_cancellation(make: Make, take: Take) -> None:
    """`return` in a `finally` swallows it as well."""
    sem, body = make(1, lease=60.0), Body()

    async def inner(permit: Permit) -> str:
        try:
            await body.wait(permit)
        except asyncio.CancelledError:
            return "early"
        return "late"

    async def work() -> str:
        async with sem as permit:
            return await inner(permit)

    task = asyncio.create_task(work())
    await take(await soon(body.entered))
    with pytest.raises(PermitLost):
        await soon(task)
    await all_free(sem)


async def test_an_error_of_the_bodys_own_wins(make: Make, take: Take) -> None:
    """It tells more, and an error of ours must not hide it."""
    sem, body = make(1, lease=60.0), Body()

    async def work() -> None:
        with pytest.raises(ZeroDivisionError) as caught:
            async with sem as permit:
                try:
                    await body.wait(permit)
                finally:
                    raise ZeroDivisionError
        assert isinstance(caught.value.__context__, asyncio.CancelledError)
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    await take(await soon(body.entered))
    await soon(task)


async def test_an_error_of_a_body_that_lost_nothing_is_its_own(make: Make) -> None:
    """The usual way to leave in a hurry."""
    sem = make(1)
    with pytest.raises(ZeroDivisionError):
        async with sem:
            raise ZeroDivisionError
    await _nothing_is_left(sem)


async def test_a_cancellation_from_outside_wins(make: Make, take: Take) -> None:
    """It came during the clean-up after the loss: whoever cancelled waits for its end."""
    sem, body, cleaning = make(1, lease=60.0), Body(), asyncio.Event()

    async def work() -> None:
        async with sem as permit:
            try:
                await body.wait(permit)
            finally:
                cleaning.set()
                await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await take(await soon(body.entered))
    await soon(cleaning.wait())
    task.cancel("from outside")
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    assert task.cancelled()
    assert task.cancelling() == 1
    await all_free(sem)


async def test_loss_and_cancellation_in_the_same_turn(make: Make, take_now: TakeNow) -> None:
    """Both are on their way when the loop comes to it: the one from outside wins."""
    sem, body = make(1, lease=60.0), Body()

    async def work() -> None:
        async with sem as permit:
            await body.wait(permit)

    task = asyncio.create_task(work())
    permit = await soon(body.entered)
    take_now(permit)
    task.cancel("from outside")
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    assert task.cancelling() == 1
    assert body.cancellations == 1
    await all_free(sem)


async def test_loss_during_the_clean_up_of_a_cancellation(make: Make, take: Take) -> None:
    """The clean-up is not guarded any more, and is told so; the cancellation goes on."""
    sem, body, cleaning = make(1, lease=60.0), Body(), asyncio.Event()
    stopped = False

    async def work() -> None:
        nonlocal stopped
        async with sem as permit:
            try:
                await body.wait(permit)
            finally:
                cleaning.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    stopped = True

    task = asyncio.create_task(work())
    permit = await soon(body.entered)
    task.cancel()
    await soon(cleaning.wait())
    await take(permit)
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    assert stopped
    assert task.cancelling() == 1


async def test_refreshing_goes_on_during_the_clean_up(make: Make, other: Client) -> None:
    """The clean-up of a cancelled body still works on what the permit guards."""
    sem, rival = make(1, lease=0.3), make(1, client=other, lease=0.3)
    body, cleaning, clean = Body(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with sem as permit:
            try:
                await body.wait(permit)
            finally:
                cleaning.set()
                await clean.wait()
                permit.check()

    task = asyncio.create_task(work())
    await soon(body.entered)
    task.cancel()
    await soon(cleaning.wait())
    end = time.monotonic() + 1.0  # more than three leases
    while time.monotonic() < end:
        assert await rival.try_acquire() is None
        await asyncio.sleep(0.05)
    clean.set()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    await all_free(sem)


# -- beside asyncio's own


@pytest.mark.parametrize("inside", [True, False], ids=["timeout inside", "timeout outside"])
async def test_loss_within_a_timeout_that_does_not_expire(
    make: Make, take: Take, inside: bool
) -> None:
    """A cancellation that is not its own passes through it."""
    sem, body = make(1, lease=60.0), Body()

    async def work() -> None:
        with pytest.raises(PermitLost):
            if inside:
                async with sem as permit, asyncio.timeout(30):
                    await body.wait(permit)
            else:
                async with asyncio.timeout(30), sem as permit:
                    await body.wait(permit)
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    await take(await soon(body.entered))
    await soon(task)
    assert body.cancellations == 1


@pytest.mark.parametrize("inside", [True, False], ids=["timeout inside", "timeout outside"])
async def test_a_timeout_that_expires_loses_no_permit(make: Make, inside: bool) -> None:
    """It is a TimeoutError, and nobody speaks of loss."""
    sem, body = make(1, lease=60.0), Body()
    with pytest.raises(TimeoutError):
        if inside:
            async with sem as permit, asyncio.timeout(0.02):
                await body.wait(permit)
        else:
            async with asyncio.timeout(None) as timeout, sem as permit:
                timeout.reschedule(asyncio.get_running_loop().time() + 0.02)
                await body.wait(permit)
    assert body.cancellations == 1
    await _nothing_is_left(sem)


@pytest.mark.parametrize("inside", [True, False], ids=["timeout inside", "timeout outside"])
async def test_loss_and_timeout_in_the_same_turn(
    make: Make, take_now: TakeNow, inside: bool
) -> None:
    """Either may win, but somebody must own the cancellation: a bare one would end the task."""
    sem, body = make(1, lease=60.0), Body()

    async def work() -> None:
        with pytest.raises((PermitLost, TimeoutError)):
            if inside:
                async with sem as permit, asyncio.timeout(0.02):
                    await body.wait(permit)
            else:
                async with asyncio.timeout(None) as timeout, sem as permit:
                    timeout.reschedule(asyncio.get_running_loop().time() + 0.02)
                    await body.wait(permit)
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    permit = await soon(body.entered)
    until = asyncio.get_running_loop().time() + 0.03
    take_now(permit)
    time.sleep(max(0.0, until - asyncio.get_running_loop().time()))  # noqa: ASYNC251 on purpose
    await soon(task)
    assert body.cancellations == 1


async def test_timeouts_on_both_sides_in_the_same_turn(make: Make, take_now: TakeNow) -> None:
    """Three cancellations of one task, each to be uncounted by whoever made it."""
    sem, body = make(1, lease=60.0), Body()

    async def work() -> None:
        with pytest.raises((PermitLost, TimeoutError)):
            async with asyncio.timeout(None) as outer, sem as permit, asyncio.timeout(0.02):
                outer.reschedule(asyncio.get_running_loop().time() + 0.02)
                await body.wait(permit)
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    permit = await soon(body.entered)
    until = asyncio.get_running_loop().time() + 0.03
    take_now(permit)
    time.sleep(max(0.0, until - asyncio.get_running_loop().time()))  # noqa: ASYNC251 on purpose
    await soon(task)


async def test_a_task_group_around_the_block(make: Make, take: Take) -> None:
    """A child that lost its permit fails, and the group ends the others as for any failure."""
    sem, body = make(1, lease=60.0), Body()

    async def child() -> None:
        try:
            async with sem as permit:
                await body.wait(permit)
        finally:
            await _nothing_is_left()

    siblings: list[asyncio.Task[object]] = []

    async def work() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                siblings.append(group.create_task(asyncio.Event().wait()))
        assert caught.group_contains(PermitLost, depth=1)
        assert len(caught.value.exceptions) == 1
        assert siblings[0].cancelled()
        await all_free(sem)  # the parent's count is the group's: before 3.13 it forgets one

    task = asyncio.create_task(work())
    await take(await soon(body.entered))
    await soon(task)


async def test_a_task_group_inside_the_block(make: Make, take: Take) -> None:
    """Its children are part of the guarded work: they are ended with it."""
    sem, body = make(1, lease=60.0), Body()
    children: list[asyncio.Task[object]] = []

    async def work() -> None:
        with pytest.raises(PermitLost):
            async with sem as permit, asyncio.TaskGroup() as group:
                children.append(group.create_task(body.wait(permit)))
                children.append(group.create_task(asyncio.Event().wait()))
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    await take(await soon(body.entered))
    await soon(task)
    assert all(child.cancelled() for child in children)
    assert body.cancellations == 1


async def test_a_task_group_whose_child_fails_while_it_is_ended(make: Make, take: Take) -> None:
    """The child's error is the body's own."""
    sem, body = make(1, lease=60.0), Body()

    async def child(permit: Permit) -> None:
        try:
            await body.wait(permit)
        finally:
            raise ZeroDivisionError

    async def work() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            async with sem as permit, asyncio.TaskGroup() as group:
                group.create_task(child(permit))
        assert caught.group_contains(ZeroDivisionError)
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    await take(await soon(body.entered))
    await soon(task)


async def test_wait_for_inside_the_block(make: Make, take: Take) -> None:
    """Made of a task in 3.11, and of a timeout since."""
    sem, body = make(1, lease=60.0), Body()

    async def work() -> None:
        with pytest.raises(PermitLost):
            async with sem as permit:
                await asyncio.wait_for(body.wait(permit), 30)
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    await take(await soon(body.entered))
    await soon(task)


async def test_wait_for_around_the_block(make: Make, take: Take) -> None:
    """The error comes through it as it is."""
    sem, body = make(1, lease=60.0), Body()

    async def guarded() -> None:
        async with sem as permit:
            await body.wait(permit)

    async def work() -> None:
        with pytest.raises(PermitLost):
            await asyncio.wait_for(guarded(), 30)
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    await take(await soon(body.entered))
    await soon(task)


async def test_gather_inside_the_block(make: Make, take: Take) -> None:
    """Cancelling the body cancels what it gathers."""
    sem, body = make(1, lease=60.0), Body()

    async def work() -> None:
        with pytest.raises(PermitLost):
            async with sem as permit:
                await asyncio.gather(body.wait(permit), asyncio.Event().wait())
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    await take(await soon(body.entered))
    await soon(task)


# -- several permits


async def test_two_permits_lost_at_once(make: Make, take_now: TakeNow) -> None:
    """One task, two blocks, two cancellations: both have to be uncounted."""
    sem, body = make(2, lease=60.0), Body()
    permits: list[Permit] = []

    async def work() -> None:
        with pytest.raises(PermitLost):
            async with sem as outer:
                permits.append(outer)
                async with sem as inner:
                    permits.append(inner)
                    await body.wait(inner)
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    await soon(body.entered)
    take_now(*permits)
    await soon(task)
    assert body.cancellations == 1
    assert all(permit.lost for permit in permits)


async def test_two_permits_lost_at_once_and_caught_between(make: Make, take_now: TakeNow) -> None:
    """Whoever handles the inner loss must not miss the outer one."""
    sem, body = make(2, lease=60.0), Body()
    permits: list[Permit] = []

    async def work() -> None:
        with pytest.raises(PermitLost) as caught:
            async with sem as outer:
                permits.append(outer)
                try:
                    async with sem as inner:
                        permits.append(inner)
                        await body.wait(inner)
                except PermitLost:
                    pass
                await asyncio.Event().wait()
        assert caught.value.permit_id == permits[0].id
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    await soon(body.entered)
    take_now(*permits)
    await soon(task)


@pytest.mark.parametrize("which", ["outer", "inner"])
async def test_one_of_two_permits_is_lost(make: Make, take: Take, which: str) -> None:
    """The error names the right one, and leaves its block and no other."""
    sem, body = make(2, lease=60.0), Body()
    permits: dict[str, Permit] = {}
    left: list[str] = []

    async def work() -> None:
        try:
            async with sem as permits["outer"]:
                try:
                    async with sem as permits["inner"]:
                        await body.wait(permits["inner"])
                except PermitLost as error:
                    assert error.permit_id == permits["inner"].id
                    left.append("inner")
                    permits["outer"].check()
                    await asyncio.sleep(0)
        except PermitLost as error:
            assert error.permit_id == permits["outer"].id
            left.append("outer")
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    await soon(body.entered)
    await take(permits[which])
    await soon(task)
    assert left == [which]
    assert body.cancellations == 1


async def test_many_tasks_lose_their_permits_at_once(make: Make) -> None:
    """A clear takes them all, and each task ends for itself."""
    sem = make(50, lease=60.0)
    bodies = [Body() for _ in range(50)]

    async def work(body: Body) -> None:
        with pytest.raises(PermitLost):
            async with sem as permit:
                await body.wait(permit)
        await _nothing_is_left()

    tasks = [asyncio.create_task(work(body)) for body in bodies]
    for body in bodies:
        await soon(body.entered)
    await sem.clear()
    await soon(asyncio.gather(*tasks))
    assert [body.cancellations for body in bodies] == [1] * 50
    await all_free(sem)


# -- at the edges of the block


async def test_loss_on_the_way_while_the_body_ends(make: Make, take_now: TakeNow) -> None:
    """The message is in the socket when the block is left: no cancellation may come after it."""
    sem, body = make(1, lease=60.0), Body()

    async def work() -> None:
        try:
            async with sem as permit:
                await body.wait(permit)
        except PermitLost:
            pass
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    permit = await soon(body.entered)
    take_now(permit)
    body.may_end.set()
    await soon(task)


async def test_loss_when_the_body_is_about_to_go_on(make: Make, take_now: TakeNow) -> None:
    """What it waited for has happened, and it has not run yet."""
    sem, body = make(1, lease=60.0), Body()

    async def work() -> None:
        with pytest.raises(PermitLost):
            async with sem as permit:
                await body.wait(permit)
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    permit = await soon(body.entered)
    take_now(permit)
    asyncio.get_running_loop().call_soon(body.may_end.set)
    await soon(task)


@pytest.mark.parametrize("ask", ["lost", "check"])
async def test_loss_that_the_body_finds_itself(make: Make, ask: str) -> None:
    """It never awaits, so nobody can cancel it: the cancellation must not come later instead."""
    sem = make(1, lease=0.1)
    with pytest.raises(PermitLost):
        async with sem as permit:
            time.sleep(0.15)  # noqa: ASYNC251 the loop stands still
            if ask == "lost":
                assert permit.lost is True
            else:
                with pytest.raises(PermitLost):
                    permit.check()
    await _nothing_is_left(sem)


async def test_loss_that_nobody_found_before_the_end(make: Make) -> None:
    """The body never asked, but it was not guarded to its end."""
    sem = make(1, lease=0.1)
    with pytest.raises(PermitLost):
        async with sem:
            time.sleep(0.15)  # noqa: ASYNC251 the loop stands still
    await _nothing_is_left(sem)


async def test_check_stops_a_body_that_computes(make: Make) -> None:
    """It does not come back to the loop, so the lease runs out under it: before the server's."""
    sem = make(1, lease=0.3)
    entered = went_on_until = 0.0
    with pytest.raises(PermitLost):
        async with sem as permit:
            entered = time.monotonic()
            assert 0 < permit.expires_in <= 0.3
            while time.monotonic() < entered + 3:
                now = time.monotonic()
                permit.check()
                went_on_until = now
    assert 0.2 < went_on_until - entered < 0.3
    await _nothing_is_left(sem)


async def test_check_from_a_thread(make: Make, take: Take) -> None:
    """A body in a thread asks there."""
    sem, entered = make(1, lease=60.0), asyncio.Event()
    found = threading.Event()
    loop = asyncio.get_running_loop()

    def compute(permit: Permit) -> None:
        loop.call_soon_threadsafe(entered.set)
        deadline = time.monotonic() + 5
        try:
            while time.monotonic() < deadline:
                permit.check()
                time.sleep(0.001)
        except PermitLost:
            found.set()
            raise

    async def work() -> None:
        with pytest.raises(PermitLost):
            async with sem as permit:
                held.append(permit)
                await asyncio.to_thread(compute, permit)
        await _nothing_is_left(sem)

    held: list[Permit] = []
    task = asyncio.create_task(work())
    await soon(entered.wait())
    await take(held[0])
    await soon(task)
    assert await asyncio.to_thread(found.wait, 2)


async def test_check_from_a_thread_while_the_loop_stands_still(make: Make) -> None:
    """The thread is the first to know: it must not reach into the loop from where it is."""
    sem, entered = make(1, lease=0.2), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_debug(True)  # in which asyncio says who called it from the wrong thread
    found: list[BaseException] = []
    left = threading.Event()

    def compute(permit: Permit) -> None:
        loop.call_soon_threadsafe(entered.set)
        deadline = time.monotonic() + 5
        try:
            while time.monotonic() < deadline:
                permit.check()
                time.sleep(0.001)
        except BaseException as error:
            found.append(error)
            raise
        finally:
            left.set()

    async def work() -> None:
        with pytest.raises(PermitLost):
            async with sem as permit:
                await asyncio.to_thread(compute, permit)
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    await soon(entered.wait())
    assert left.wait(2)  # the loop stands still
    loop.set_debug(False)
    await soon(task)
    assert [PermitLost] == [type(error) for error in found]


async def test_a_loop_that_stood_still_for_longer_than_the_lease(
    make: Make, other: Client
) -> None:
    """As a process that was stopped: the permit is somebody else's by now."""
    sem, rival, body = make(1, lease=0.15), make(1, client=other), Body()

    async def work() -> None:
        with pytest.raises(PermitLost):
            async with sem as permit:
                await body.wait(permit)
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    permit = await soon(body.entered)
    time.sleep(0.25)  # noqa: ASYNC251 on purpose
    assert permit.lost
    successor = await soon(rival.acquire())
    assert successor.fencing_token > permit.fencing_token
    await successor.release()
    await soon(task)
    assert body.cancellations == 1


async def test_entering_a_lost_permit_does_not_let_the_body_work(make: Make, take: Take) -> None:
    """It was lost between `acquire` and `async with`."""
    sem = make(1, lease=60.0)
    permit = await sem.acquire()
    await take(permit)
    await soon(permit.wait_lost())
    with pytest.raises(PermitLost):
        async with permit:
            await asyncio.Event().wait()
    await _nothing_is_left(sem)


async def test_nobody_is_handed_what_was_lost_while_the_loop_stood_still(
    make_on_redis: Make,
) -> None:
    """The answer lay in the socket for longer than the lease: it is asked again."""
    sem = make_on_redis(1, lease=0.15)
    first = await sem.acquire()
    await first.release()
    acquiring = asyncio.create_task(sem.acquire(timeout=5.0))
    while not sem._bound().remote.ledger.acquires_in_flight:  # noqa: ASYNC110 the very turn of the loop
        await asyncio.sleep(0)
    time.sleep(0.25)  # noqa: ASYNC251 on purpose
    permit = await soon(acquiring)
    assert not permit.lost
    numbers = [int(p.id.partition(".")[2]) for p in (first, permit)]
    assert numbers[1] - numbers[0] > 1, "the first grant was not lost: nothing is shown"
    await permit.release()


async def test_entering_what_is_lost_says_so_when_it_cannot_be_given_back(
    kind: type[AnySemaphore], embedded: StartServer
) -> None:
    """Lost is what matters to the caller, not that a stalled server could not be told."""
    server = embedded()
    async with Redis.from_url(server.url) as redis:
        permit = await kind(redis, "stalled", 1, lease=0.6).acquire()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await soon(permit.wait_lost())
            with pytest.raises(PermitLost):
                async with permit:
                    raise AssertionError("nobody may work with it")
        finally:
            os.kill(server.pid, signal.SIGCONT)


# -- left elsewhere


async def test_left_in_another_task_after_a_loss(make: Make, take: Take) -> None:
    """Its cancellations are not ours to uncount, and PermitLost is due all the same."""
    sem = make(1, lease=60.0)
    context = _in_a_context_manager(sem)
    permit = await asyncio.create_task(context.__aenter__())
    await take(permit)
    await soon(permit.wait_lost())

    async def leave() -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1)
        assert task.cancelling() == 1
        with pytest.raises(PermitLost):
            await context.__aexit__(None, None, None)
        return task.cancelling()

    assert await asyncio.create_task(leave()) == 1
    await all_free(sem)


async def test_a_generator_as_a_fixture(make: Make, take: Take) -> None:
    """Set up in one task and torn down in another, as test frameworks do."""
    sem = make(1, lease=60.0)

    async def fixture() -> AsyncGenerator[Permit]:
        async with sem as permit:
            yield permit

    async def finish(generator: AsyncGenerator[Permit]) -> None:
        with pytest.raises(StopAsyncIteration):
            await anext(generator)

    generator = fixture()
    await asyncio.create_task(anext(generator))
    assert await sem.available() == 0
    await asyncio.create_task(finish(generator))
    await all_free(sem)

    generator = fixture()
    permit = await asyncio.create_task(anext(generator))
    await take(permit)
    await soon(permit.wait_lost())
    with pytest.raises(PermitLost):
        await asyncio.create_task(finish(generator))
    await all_free(sem)


async def test_a_generator_that_is_never_finished(make: Make) -> None:
    """Python closes it, in a task of its own."""
    sem = make(1, lease=60.0)

    async def numbers() -> AsyncGenerator[int]:
        async with sem:
            yield 1
            yield 2

    async for number in numbers():
        assert number == 1
        break
    gc.collect()
    await all_free(sem)


# -- not in a block


async def test_a_permit_by_itself_cancels_nobody(make: Make, take: Take) -> None:
    """`await sem.acquire()` arms nothing: there is no block to leave."""
    sem = make(1, lease=60.0)
    permit = await sem.acquire()
    await take(permit)
    lost = await soon(permit.wait_lost())
    assert isinstance(lost, PermitLost)
    assert lost.permit_id == permit.id
    assert permit.lost
    assert permit.expires_in <= 0
    with pytest.raises(PermitLost):
        permit.check()
    with pytest.raises(PermitLost):
        await permit.refresh()
    assert await permit.release() is False
    await _nothing_is_left(sem)


async def test_wait_lost_serves_many_and_can_be_cancelled(make: Make, take: Take) -> None:
    """A watcher that gives up changes nothing for the others."""
    sem = make(1, lease=60.0)
    permit = await sem.acquire()
    watchers = [asyncio.create_task(permit.wait_lost()) for _ in range(3)]
    await asyncio.sleep(0)
    await cancelled(watchers[0])
    permit.check()
    await take(permit)
    for watcher in watchers[1:]:
        assert (await soon(watcher)).permit_id == permit.id
    assert (await soon(permit.wait_lost())).permit_id == permit.id  # and afterwards too


async def test_wait_lost_does_not_wake_for_a_release(make: Make) -> None:
    """A release is no loss."""
    sem = make(1)
    async with sem as permit:
        watcher = asyncio.create_task(permit.wait_lost())
        await asyncio.sleep(0)
    assert permit.lost is False
    assert not watcher.done()
    await cancelled(watcher)


async def test_cancel_on_loss_false_only_says_so(make: Make, take: Take) -> None:
    """Where the limit caps load, an outage should not stop the work."""
    sem = make(1, lease=60.0, cancel_on_loss=False)
    async with sem as permit:
        await take(permit)
        await soon(permit.wait_lost())
        assert permit.lost
        await asyncio.sleep(0)
        with pytest.raises(PermitLost):
            permit.check()
    await _nothing_is_left(sem)


@pytest.mark.parametrize("form", FORMS)
async def test_cancel_on_loss_false_in_every_form(make: Make, take: Take, form: Form) -> None:
    """No form forgets it."""
    sem = make(1, lease=60.0, cancel_on_loss=False)
    async with form(sem) as permit:
        await take(permit)
        await soon(permit.wait_lost())
        await asyncio.sleep(0)
    await _nothing_is_left(sem)


# -- how it is found out


async def test_what_the_server_removed_is_found_by_the_next_refresh(
    make_on_redis: Make, redis: Redis
) -> None:
    """Evicted, flushed or edited by hand: nobody tells us."""
    sem, body = make_on_redis(1, lease=0.9), Body()

    async def work() -> None:
        with pytest.raises(PermitLost):
            async with sem as permit:
                await body.wait(permit)
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    permit = await soon(body.entered)
    assert await redis.zrem(f"redsem:{{{sem.name}}}:holders", permit.id) == 1
    await soon(task, 0.6)
    assert body.cancellations == 1


async def test_refresh_finds_it_out_now(make_on_redis: Make, redis: Redis) -> None:
    """Before a step that matters."""
    sem = make_on_redis(1, lease=60.0)
    permit = await sem.acquire()
    await permit.refresh()
    await redis.zrem(f"redsem:{{{sem.name}}}:holders", permit.id)
    with pytest.raises(PermitLost):
        await permit.refresh()
    assert permit.lost


async def test_refresh_renews(make: Make) -> None:
    """For a whole lease from now."""
    sem = make(1, lease=2.0, refresh_interval=1.9)
    async with sem as permit:
        await until(lambda: permit.expires_in < 1.9)
        await permit.refresh()
        assert permit.expires_in > 1.9


async def test_a_held_permit_outlives_its_lease(make: Make, other: Client) -> None:
    """As long as somebody refreshes it, which nobody has to ask for."""
    sem, rival = make(1, lease=0.2), make(1, client=other)
    async with sem as permit:
        waiter = await queue_up(rival)
        await asyncio.sleep(0.7)
        permit.check()
        assert not waiter.done()
    await (await soon(waiter)).release()


async def test_a_server_that_stalls_for_longer_than_the_lease(
    kind: type[AnySemaphore], embedded: StartServer
) -> None:
    """The body is stopped before the server lets anybody else in, and leaving it is bounded."""
    server = embedded()
    async with Redis.from_url(server.url) as redis:
        sem, body = kind(redis, "stalled", 1, lease=0.6), Body()

        async def work() -> None:
            with pytest.raises(PermitLost):
                async with sem as permit:
                    await body.wait(permit)
            await _nothing_is_left()

        task = asyncio.create_task(work())
        permit = await soon(body.entered)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            start = time.monotonic()
            await soon(permit.wait_lost())
            assert time.monotonic() - start < 0.6
            assert permit.expires_in <= 0
            await soon(task, 4.0)
            assert body.cancellations == 1
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await all_free(sem, 4.0)


async def test_leaving_a_block_is_bounded_however_long_the_lease(
    kind: type[AnySemaphore], embedded: StartServer
) -> None:
    """The server does not answer, and the body is done: a long lease must not hold it up."""
    server = embedded()
    async with Redis.from_url(server.url) as redis:
        sem = kind(redis, "stalled", 1, lease=60.0)
        start = time.monotonic()
        async with sem:
            os.kill(server.pid, signal.SIGSTOP)
        assert time.monotonic() - start < 8.0
        os.kill(server.pid, signal.SIGCONT)
        await all_free(sem)


async def test_a_cancelled_block_is_left_in_bounded_time(
    kind: type[AnySemaphore], embedded: StartServer
) -> None:
    """Nor when it is cancelled meanwhile, once or again and again."""
    server = embedded()
    async with Redis.from_url(server.url) as redis:
        sem, body = kind(redis, "stalled", 1, lease=60.0), Body()

        async def work() -> None:
            async with sem as permit:
                await body.wait(permit)

        task = asyncio.create_task(work())
        await soon(body.entered)
        os.kill(server.pid, signal.SIGSTOP)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.05)
        await asyncio.wait([task], timeout=10.0)
        assert task.cancelled()
        os.kill(server.pid, signal.SIGCONT)
        await all_free(sem)


async def test_a_server_that_stalls_for_a_moment_loses_nothing(
    kind: type[AnySemaphore], embedded: StartServer
) -> None:
    """Shorter than the lease: nobody notices."""
    server = embedded()
    async with Redis.from_url(server.url) as redis:
        sem = kind(redis, "stalled", 1, lease=1.5)
        async with sem as permit:
            os.kill(server.pid, signal.SIGSTOP)
            await asyncio.sleep(0.7)  # a refresh is due in here
            os.kill(server.pid, signal.SIGCONT)
            await permit.refresh()
            await asyncio.sleep(1.0)
            permit.check()


async def test_a_connection_that_breaks_loses_nothing(
    kind: type[AnySemaphore], embedded: StartServer
) -> None:
    """The hub opens another one, and the permit is refreshed over that."""
    server = embedded()
    async with Redis.from_url(server.url) as redis:
        sem = kind(redis, "broken", 1, lease=0.6)
        async with sem as permit:
            for _ in range(5):
                await redis.client_kill_filter(_type="normal", skipme=True)
                await redis.client_kill_filter(_type="pubsub", skipme=True)
                await asyncio.sleep(0.2)
            permit.check()


# -- dropped


async def test_a_dropped_permit_warns_and_is_released(make: Make) -> None:
    """Whoever forgot it learns where, and does not take a place for ever."""
    sem = make(1, lease=60.0)
    permit = await sem.acquire()
    with pytest.warns(ResourceWarning, match=sem.name):
        del permit
        gc.collect()
    await all_free(sem)


async def test_the_refresher_does_not_keep_a_permit(make: Make) -> None:
    """It would refresh a forgotten permit for ever."""
    sem = make(1, lease=0.15)
    permit = await sem.acquire()
    await asyncio.sleep(0.3)  # refreshes have begun
    permit.check()
    reference = weakref.ref(permit)
    with pytest.warns(ResourceWarning):
        del permit
        gc.collect()
    assert reference() is None
    await all_free(sem)


async def test_a_permit_whose_waiter_was_forgotten_is_released(make: Make) -> None:
    """A task that nobody asks for its result."""
    sem = make(1, lease=60.0)
    task = asyncio.create_task(sem.acquire())
    await until(task.done)
    with pytest.warns(ResourceWarning):
        del task
        gc.collect()
    await all_free(sem)


async def test_a_permit_that_is_lost_or_released_is_dropped_in_silence(
    make: Make, take: Take
) -> None:
    """There is nothing to warn of; a warning here would fail this test."""
    sem = make(2, lease=60.0)
    released, taken = await sem.acquire(), await sem.acquire()
    await released.release()
    await take(taken)
    await soon(taken.wait_lost())
    del released, taken
    gc.collect()


async def test_a_permit_dropped_in_a_thread_is_released(make: Make) -> None:
    """The collector runs wherever it likes."""
    sem = make(1, lease=60.0)
    box = [await sem.acquire()]

    def drop() -> None:
        box.clear()
        gc.collect()

    with pytest.warns(ResourceWarning):
        await asyncio.to_thread(drop)
    await all_free(sem)


# -- inside anyio


async def test_loss_inside_an_anyio_task_group(make: Make, take: Take) -> None:
    """A child fails, and its group with it."""
    sem, body = make(1, lease=60.0), Body()

    async def child() -> None:
        async with sem as permit:
            await body.wait(permit)

    async def work() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            async with anyio.create_task_group() as group:
                group.start_soon(child)
                group.start_soon(anyio.sleep_forever)
        assert caught.group_contains(PermitLost, depth=1)
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    await take(await soon(body.entered))
    await soon(task)
    assert body.cancellations == 1


async def test_an_anyio_task_group_inside_the_block(make: Make, take: Take) -> None:
    """Native cancellation passes through it."""
    sem, body = make(1, lease=60.0), Body()

    async def work() -> None:
        with pytest.raises(PermitLost):
            async with sem as permit, anyio.create_task_group() as group:
                group.start_soon(body.wait, permit)
                group.start_soon(anyio.sleep_forever)
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    await take(await soon(body.entered))
    await soon(task)


@pytest.mark.parametrize("inside", [True, False], ids=["scope inside", "scope outside"])
async def test_loss_inside_an_anyio_scope(make: Make, take: Take, inside: bool) -> None:
    """The scope was not cancelled, and must not take the cancellation for its own."""
    sem, body = make(1, lease=60.0), Body()

    async def work() -> None:
        with pytest.raises(PermitLost):
            if inside:
                async with sem as permit:
                    with anyio.move_on_after(30):
                        await body.wait(permit)
            else:
                with anyio.move_on_after(30):
                    async with sem as permit:
                        await body.wait(permit)
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    await take(await soon(body.entered))
    await soon(task)


@pytest.mark.parametrize("inside", [True, False], ids=["scope inside", "scope outside"])
async def test_an_anyio_scope_that_is_cancelled_releases(make: Make, inside: bool) -> None:
    """It repeats its cancellation for as long as it is not left: the release is shielded."""
    sem, body = make(1, lease=60.0), Body()
    with anyio.CancelScope() as scope:
        body.entered.add_done_callback(lambda _: scope.cancel())
        if inside:
            async with sem as permit:
                await body.wait(permit)
        else:
            async with sem as permit:
                with anyio.CancelScope():
                    await body.wait(permit)
    assert scope.cancelled_caught
    await _nothing_is_left()
    assert (await sem.status()).held == 0  # confirmed, and not merely on its way


async def test_acquiring_in_a_cancelled_anyio_scope(make: Make) -> None:
    """Nothing is left there either."""
    sem = make(1, lease=60.0)
    async with sem:
        with anyio.move_on_after(0.02) as scope:
            await sem.acquire()
        assert scope.cancelled_caught
    await _nothing_is_left(sem)


async def test_loss_and_an_anyio_deadline_in_the_same_turn(make: Make, take_now: TakeNow) -> None:
    """Whichever wins, no cancellation is left over and nothing spins."""
    sem, body = make(1, lease=60.0), Body()
    outcome: list[str] = []

    async def work() -> None:
        try:
            with anyio.CancelScope() as scope:
                async with sem as permit:
                    scope.deadline = anyio.current_time() + 0.02
                    await body.wait(permit)
            outcome.append("scope" if scope.cancelled_caught else "neither")
        except PermitLost:
            outcome.append("loss")
        await _nothing_is_left(sem)

    task = asyncio.create_task(work())
    permit = await soon(body.entered)
    until = asyncio.get_running_loop().time() + 0.03
    take_now(permit)
    time.sleep(max(0.0, until - asyncio.get_running_loop().time()))  # noqa: ASYNC251 on purpose
    await soon(task)
    assert outcome in (["scope"], ["loss"])
