"""Tests of the translator: most in memory, one with a real server."""

import asyncio
import math

import pytest
from redis.asyncio import Redis
from translator import Busy, Translator

from redsem_async import FairSemaphore, PermitLost
from redsem_async.testing import MemoryBackend


class Model:
    """Replies when the test sets `answer`, and counts concurrent calls."""

    def __init__(self) -> None:
        self.entered: asyncio.Queue[str] = asyncio.Queue()
        self.answer = asyncio.Event()
        self.inside = self.most = 0

    async def __call__(self, text: str) -> str:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.put_nowait(text)
        try:
            await self.answer.wait()
            return text.upper()
        finally:
            self.inside -= 1


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def sem(redsem_memory: MemoryBackend) -> FairSemaphore:
    return FairSemaphore(redsem_memory, "translator", limit=2, timeout=0.5)


async def test_two_at_a_time_in_all_processes(
    redsem_memory: MemoryBackend, sem: FairSemaphore, model: Model
) -> None:
    elsewhere = FairSemaphore(redsem_memory.peer(), "translator", limit=2)
    processes = [Translator(sem, model), Translator(elsewhere, model)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each.translate("hello")) for each in processes * 3]
        for _ in range(2):
            await model.entered.get()
        model.answer.set()
    assert [task.result() for task in tasks] == ["HELLO"] * 6
    assert model.most == 2


async def test_who_waits_too_long_is_told_when_to_come_back(
    sem: FairSemaphore, model: Model
) -> None:
    async with sem, sem:  # both permits are taken
        with pytest.raises(Busy) as caught:
            await Translator(sem, model).translate("hello")
    assert 0 < caught.value.after < math.inf
    assert model.most == 0


async def test_a_lost_permit_stops_the_call(sem: FairSemaphore, model: Model) -> None:
    call = asyncio.create_task(Translator(sem, model).translate("hello"))
    await model.entered.get()
    [holder] = (await sem.status()).holders
    assert await sem.release(holder.id)  # as an operator may; redsem_memory.lose() does the same
    with pytest.raises(PermitLost):
        await call
    assert model.inside == 0


async def test_an_outage_says_busy(
    redsem_memory: MemoryBackend, sem: FairSemaphore, model: Model
) -> None:
    redsem_memory.down()
    with pytest.raises(Busy):
        await Translator(sem, model).translate("hello")
    redsem_memory.up()
    assert await sem.available() == 2


async def test_a_process_that_crashed_is_in_the_way_for_one_lease(
    redsem_memory: MemoryBackend, sem: FairSemaphore
) -> None:
    for _ in range(2):
        permit = await sem.acquire()
        await permit.detach()  # nothing refreshes it any more, as after a crash
    assert await sem.locked()
    redsem_memory.advance(sem.lease)
    assert not await sem.locked()


async def test_with_a_real_server(redsem_redis: Redis, model: Model) -> None:
    sem = FairSemaphore(redsem_redis, "translator", limit=2)
    model.answer.set()
    assert await Translator(sem, model).translate("hello") == "HELLO"
    assert await sem.available() == 2
