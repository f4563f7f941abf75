"""Races that the simulation found, each as small as it gets."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import pytest

import redsem_async
from redsem_async import BackendUnavailable, FairSemaphore, Semaphore
from redsem_async._core.clock import now as clock
from redsem_async._protocol.backend import Command, Link, Listener
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.operations import Acquire
from redsem_async._protocol.replies import AnyReply
from redsem_async.testing import MemoryBackend
from redsem_async.testing._memory import MemoryLink
from tests.harness.wait import queue_up, soon, until

KINDS = [Semaphore, FairSemaphore]

Kind = type[Semaphore] | type[FairSemaphore]


class Counted(MemoryBackend):
    """Counts the commands that are sent, and may keep their answers back."""

    sent = 0
    mute = False

    async def connect(self, listener: Listener) -> Link:
        link = cast("MemoryLink", await super().connect(listener))
        send = link.send

        def counting(commands: Sequence[Command], now: float) -> None:
            self.sent += len(commands)
            if not self.mute:
                send(commands, now)
            else:
                for command in commands:
                    command.sent_at = now

        setattr(link, "send", counting)  # noqa: B010 - no checker lets a method be replaced
        return link


class Gated(MemoryBackend):
    """Keeps answers back while it is shut."""

    shut = False

    def __init__(self) -> None:
        super().__init__()
        self.kept: deque[tuple[Command, Callable[[], None]]] = deque()

    async def connect(self, listener: Listener) -> Link:
        link = cast("MemoryLink", await super().connect(listener))
        hand_over = link._reply_received

        def gated(command: Command, answer: AnyReply | CommandError) -> None:
            self.kept.append((command, partial(hand_over, command, answer)))
            if not self.shut:
                self.open()

        setattr(link, "_reply_received", gated)  # noqa: B010 - no checker lets a method be replaced
        return link

    def pass_one(self) -> None:
        self.kept.popleft()[1]()

    def open(self) -> None:
        self.shut = False
        while self.kept:
            self.pass_one()


@pytest.mark.parametrize("kind", KINDS)
async def test_all_waiters_of_a_process_start_again_when_it_is_cleared(kind: Kind) -> None:
    """The first of them must not be the only one."""
    backend = MemoryBackend()
    sem, there = kind(backend, "jobs", 1), kind(backend.peer(), "jobs", 1)
    holder = await there.acquire()
    waiters = [await queue_up(sem) for _ in range(3)]
    await there.clear()
    for waiter in waiters:
        await (await soon(waiter)).release()
    assert not await holder.release()


@pytest.mark.parametrize("kind", KINDS)
async def test_an_adoption_given_up_before_it_was_written_takes_nothing(kind: Kind) -> None:
    """The permit is for the next one who asks for it."""
    backend = MemoryBackend()
    sem, there = kind(backend, "jobs", 1), kind(backend.peer(), "jobs", 1)
    identity = await (await there.acquire()).detach(10)
    backend.down()
    adoption = asyncio.create_task(sem.adopt(identity))
    await asyncio.sleep(0)
    adoption.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adoption
    backend.up()
    assert await sem.available() == 0
    assert await (await there.adopt(identity)).release()


@pytest.mark.parametrize("kind", KINDS)
async def test_acquiring_works_after_a_close_that_came_at_once(kind: Kind) -> None:
    """A hub that was closed before it came to connect must not keep the next one waiting."""
    backend = MemoryBackend()
    sem = kind(backend, "jobs", 1)
    first = asyncio.ensure_future(sem.acquire())
    await asyncio.sleep(0)
    await redsem_async.aclose(backend)
    with pytest.raises(redsem_async.SemaphoreClosed):
        await first
    await (await soon(asyncio.ensure_future(sem.acquire()))).release()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_grant_that_a_close_takes_back_is_not_handed_out(kind: Kind) -> None:
    """Its caller was woken, and had not run yet."""
    backend = Gated()
    sem = kind(backend, "jobs", 1)
    backend.shut = True
    acquiring = asyncio.create_task(sem.acquire())
    await until(lambda: backend.kept)
    backend.open()
    assert not acquiring.done()
    await redsem_async.aclose(backend, drain=0)
    with pytest.raises(redsem_async.SemaphoreClosed):
        await soon(acquiring)
    await (await sem.acquire()).release()


@pytest.mark.parametrize("kind", KINDS)
async def test_of_two_closes_at_once_both_tell_the_holders(kind: Kind) -> None:
    """Who holds a permit that is released under it must not believe in it any longer."""
    backend = MemoryBackend()
    sem = kind(backend, "jobs", 1)
    slow = asyncio.create_task(redsem_async.aclose(backend, drain=0.2))
    await redsem_async.aclose(backend)
    if not slow.done():
        with pytest.raises(redsem_async.SemaphoreClosed):
            await sem.acquire()
    await slow
    await (await sem.acquire()).release()


@pytest.mark.parametrize("kind", KINDS)
async def test_closing_ends_a_release_that_nobody_answers(kind: Kind) -> None:
    """A release is confirmed or fails, within a bounded time."""
    backend = Counted()
    permit = await kind(backend, "jobs", 1).acquire()
    backend.mute = True
    release = asyncio.create_task(permit.release())
    await asyncio.sleep(0)
    await redsem_async.aclose(backend)
    with pytest.raises(redsem_async.SemaphoreClosed):
        await soon(release)


async def test_a_waiter_is_announced_although_others_asked_meanwhile() -> None:
    """A request that does not wait, sent before the waiter was answered, must not hide it."""
    backend = MemoryBackend()
    sem, there = Semaphore(backend, "jobs", 1), Semaphore(backend.peer(), "jobs", 1)
    hasty = Semaphore(backend, "jobs", 1, lease=9.0)  # another command of the same write
    async with there:
        waiter = asyncio.create_task(sem.acquire())
        other = asyncio.create_task(hasty.try_acquire())
        assert await other is None
        await asyncio.sleep(0.02)
    # Long before the heartbeat that would find it too.
    await (await asyncio.wait_for(waiter, 1.0)).release()


async def test_a_hint_of_too_little_room_is_not_asked_about_for_ever() -> None:
    """Nothing polls: one who needs three permits sleeps while two are free."""
    backend = Counted()
    sem, there = Semaphore(backend, "jobs", 3), Semaphore(backend.peer(), "jobs", 3)
    first, second = await there.acquire(), await there.acquire()
    waiter = asyncio.create_task(sem.acquire(permits=3))
    await asyncio.sleep(0.02)
    before = backend.sent
    await first.release()
    await asyncio.sleep(0.2)
    assert backend.sent - before < 20
    await second.release()
    await (await soon(waiter)).release()


async def test_a_limit_that_could_not_be_set_is_not_set_later() -> None:
    """Who was told that it failed does not expect it minutes later."""
    backend = MemoryBackend()
    sem, there = Semaphore(backend, "jobs", 1), Semaphore(backend.peer(), "jobs", 1)
    backend.down()
    with pytest.raises(BackendUnavailable):
        await sem.set_limit(0)
    backend.up()
    assert (await sem.status()).limit == 1
    await (await there.acquire()).release()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_permit_heard_of_late_is_refreshed_at_once(kind: Kind) -> None:
    """Its trust may end before the first refresh of a fresh one would be due."""
    permit = await kind(MemoryBackend(), "jobs", 1, lease=9.0).acquire()
    claim = permit._claim
    remote, refresher, _ = permit._bound
    refresher.remove(claim)
    claim.trusted_until = clock() + 0.5
    refresher.add(claim, remote, clock())
    await asyncio.sleep(0.05)
    assert permit.expires_in > 1.0
    await permit.release()


async def test_what_was_said_of_a_number_is_not_taken_for_another() -> None:
    """A waiter that has started anew hears what a heartbeat had asked about it before."""
    backend = Gated()
    sem = FairSemaphore(backend, "jobs", 1, lease=0.2)
    first = await sem.acquire()
    waiter = await queue_up(sem)
    backend.shut = True
    release = asyncio.create_task(first.release())
    await until(lambda: len(backend.kept) == 1)  # it grants the waiter
    sem._bound().remote.heartbeats.beat()
    await until(lambda: len(backend.kept) == 2)  # and this finds the grant
    await asyncio.sleep(0.2)
    backend.pass_one()  # too late: the waiter asks anew
    await until(lambda: any(isinstance(command.operation, Acquire) for command, _ in backend.kept))
    backend.open()
    await soon(release)
    permit = await soon(waiter)
    (holder,) = (await sem.status()).holders
    assert (permit.id, permit.fencing_token) == (holder.id, holder.fencing_token)
    await permit.release()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_detach_does_not_make_waiters_forget_when_a_lease_ends(kind: Kind) -> None:
    """Its answer says nothing of that; the next heartbeat is seconds away."""
    backend = MemoryBackend()
    sem, there = kind(backend, "jobs", 2), kind(backend.peer(), "jobs", 2)
    await (await there.acquire()).detach(0.5)  # and nobody adopts it
    permit = await sem.acquire()
    waiter = await queue_up(sem)
    await permit.detach(30)
    await (await soon(waiter, 1.5)).release()
