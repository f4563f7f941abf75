"""Waiters beside free permits, in orders of events that an exhaustive search found."""

import asyncio

import pytest

from redsem_async import FairSemaphore, Semaphore
from redsem_async._core.clock import now
from redsem_async._hub import handout
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client
from tests.harness.wait import all_free, queue_up, soon, waiting


async def test_one_who_leaves_does_not_take_another_out_of_the_line(
    client: Client, other: Client, name: str
) -> None:
    """One waiter asks again while the last of those beside it leaves: it waits all the same."""
    here, there = Semaphore(client, name, 1, lease=30), Semaphore(other, name, 1, lease=30)
    permit = await there.acquire()
    first = await queue_up(here)
    second = asyncio.create_task(here.acquire())
    await asyncio.sleep(0)  # the first asks once more, with the second behind it
    second.cancel()
    await asyncio.wait([second])
    await here.status(0)  # by now the server has run what they wrote
    await permit.release()
    await (await soon(first)).release()
    await all_free(here)


async def test_two_commands_on_their_way_announce_two_waiters(
    client: Client, other: Client, name: str
) -> None:
    """A light request behind a heavy one is granted: the heavy one waits all the same."""
    here, there = Semaphore(client, name, 2, lease=30), Semaphore(other, name, 2, lease=30)
    permit = await there.acquire()
    await here.status(0)  # connected: what is asked for now is not written together
    heavy = asyncio.create_task(here.acquire(permits=2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # it is written
    light = await soon(here.acquire())
    await waiting(here, 1)
    await light.release()
    await permit.release()
    await (await soon(heavy)).release()
    await all_free(here)


async def test_a_permit_confirmed_too_late_is_given_back(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The server renewed it, and the answer came when it could not be trusted any more."""
    backend = MemoryBackend()
    holder = await FairSemaphore(backend, name, 1).acquire()
    here = FairSemaphore(backend.peer(), name, 1)
    waiter = await queue_up(here)
    with monkeypatch.context() as patch:
        patch.setattr(handout, "clock", lambda: now() + 60)
        await holder.release()
        permit = await soon(waiter)
    await permit.release()
    await all_free(here)
