"""One name has one mode and one clock: for how long after its last use, and what ends that."""

import asyncio
import time
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import (
    AnySemaphore,
    BackendUnavailable,
    FairSemaphore,
    LayoutMismatch,
    ModeMismatch,
    Semaphore,
    __version__,
)
from redsem_async._redis.scripts import layout
from redsem_async._tools.stored import scanned_names
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client, Kind, Make
from tests.harness.wait import cancelled, queue_up, soon
from tests.worlds.simulated_time import simulated

MARGIN = 30.0  # seconds, in which a busy machine does what a test asks


@pytest.fixture(params=[("fair", "server"), ("fair", "local"), ("zset", "server")], ids="-".join)
def used(request: pytest.FixtureRequest, client: MemoryBackend) -> AnySemaphore:
    """The semaphore that takes the name, by either clock."""
    kind, clock = request.param
    return (FairSemaphore if kind == "fair" else Semaphore)(client, "jobs", 1, clock=clock)


@pytest.fixture
def refused(used: AnySemaphore, other: Client) -> AnySemaphore:
    """A semaphore of the other class, with the same name, in another process."""
    return other_class(used)(other, used.name, 5)


class Stored:
    """What is stored of the name."""

    def __init__(self, client: MemoryBackend) -> None:
        self._client = client

    def run(self, command: str, what: str, *arguments: str | int) -> Any:
        return self._client._store.redis.command(command, f"redsem:{{jobs}}:{what}", *arguments)

    def let_pass(self, seconds: float) -> None:
        """Let time pass, in which nobody says anything. A value lives to its millisecond's end."""
        self._client._store._epoch_us += round(seconds * 1_000_000) + 1000

    def fall_silent(self) -> None:
        """Let the only process that used the name have sent nothing for a while."""
        (hub,) = self.run("ZRANGE", "hubs", 0, -1)
        alive_until = int(self.run("ZSCORE", "hubs", hub))
        self.run("ZADD", "hubs", alive_until - round(MARGIN * 1000), hub)

    def set(self, field: str, value: str) -> None:
        """Let the name be in use with another ``mode`` or ``layout``; 0 for one without number."""
        if (field, value) == ("layout", "0"):
            assert self.run("HDEL", "meta", "layout") == 1
        else:
            assert self.run("HSET", "meta", field, value) == 0, "it was not noted"

    def contents(self) -> object:
        return self._client._store.redis.snapshot()


@pytest.fixture
def stored(client: MemoryBackend) -> Stored:
    return Stored(client)


def other_class(sem: AnySemaphore) -> Kind:
    return Semaphore if isinstance(sem, FairSemaphore) else FairSemaphore


async def use(sem: AnySemaphore) -> None:
    async with sem:
        pass


async def mismatch(sem: AnySemaphore) -> ModeMismatch:
    with pytest.raises(ModeMismatch) as caught:
        await soon(sem.try_acquire())
    return caught.value


async def free_in(sem: AnySemaphore) -> float:
    """How long it still takes, says the error, until the name is free."""
    seconds = (await mismatch(sem)).free_in
    assert seconds is not None
    return seconds


# -- what takes a name, and what frees it


async def test_nothing_can_be_done_with_the_other_class(
    used: AnySemaphore, refused: AnySemaphore
) -> None:
    """The two count permits differently: together they would let too many in."""
    async with used as permit:
        for call in (
            *(refused.acquire, refused.try_acquire, refused.status, refused.available),
            *(refused.locked, refused.reap, partial(refused.set_limit, 5)),
            *(partial(refused.release, permit.id), partial(refused.adopt, permit.id)),
        ):
            with pytest.raises(ModeMismatch, match=used.name):
                await soon(call())
        await permit.refresh()
        assert (await used.status()).limit == 1


async def test_a_name_stays_taken_after_its_last_use_and_then_is_free(
    used: AnySemaphore, refused: AnySemaphore, stored: Stored
) -> None:
    """A refused attempt is no use of the name."""
    await use(used)
    first = await free_in(refused)
    assert 2 * MARGIN < first < 600
    again = await free_in(refused)
    assert again <= first
    stored.let_pass(again - MARGIN)
    assert 0 < await free_in(refused) <= MARGIN
    stored.let_pass(MARGIN)
    await use(refused)
    await mismatch(used)
    await refused.delete()  # that is what the error advises
    await use(used)


async def test_a_set_limit_outlives_the_mode(
    used: AnySemaphore, refused: AnySemaphore, stored: Stored
) -> None:
    """It is the name's, has no expiry, and may be set before the first use, by either class."""
    await refused.set_limit(2)
    await use(used)
    stored.let_pass(await free_in(refused))
    async with refused:
        assert (await refused.status()).limit == 2


async def test_a_detached_permit_keeps_the_name_for_as_long_as_it_may_be_adopted(
    used: AnySemaphore, refused: AnySemaphore
) -> None:
    """Nothing refreshes it, and its adopter needs the name as it was."""
    await (await used.acquire()).detach(3600.0)
    assert await free_in(refused) > 3600
    assert (await mismatch(refused)).held is True


# -- what the error says


async def test_the_error_says_whether_permits_are_held(
    used: AnySemaphore, refused: AnySemaphore
) -> None:
    """Deleting a name whose permits are held takes them away."""
    async with used:
        error = await mismatch(refused)
        assert (error.held, error.unused) == (True, False)
        assert "delete" not in str(error)
    await (await used.acquire()).detach(0.05)
    await asyncio.sleep(0.06)  # nothing has removed it
    error = await mismatch(refused)
    assert (error.held, error.unused) == (False, False)
    assert f"{type(used).__name__}(" in str(error)
    assert ".delete()" in str(error)
    assert "no permit is held" in str(error)
    assert "waits" not in str(error)  # a process used it just now: one may wait


async def test_the_error_says_what_is_held_by_the_clock_of_the_server(
    make: Make, other: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the client's, an hour ahead, every lease would be over, and deleting look harmless."""
    sem = make(1)
    async with sem:
        really = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: really() + 3600 * 10**9)
        for kind in (FairSemaphore, Semaphore):
            error = await mismatch(kind(other, sem.name, 1, clock="local"))
            assert (error.held, error.unused) == (True, False)


async def test_the_error_says_nothing_of_waiters_where_there_may_be_some(
    used: AnySemaphore, refused: AnySemaphore, client: MemoryBackend
) -> None:
    """No permit of a paused semaphore is held, and yet it is in use."""
    await used.set_limit(0)
    waiter = await queue_up(used)
    client.advance(3600.0)
    error = await mismatch(refused)
    assert (error.held, error.unused) == (False, False)
    assert "no permit is held" in str(error)
    assert "waits" not in str(error)
    await cancelled(waiter)


async def test_the_error_says_that_the_name_is_unused(
    used: AnySemaphore, refused: AnySemaphore, stored: Stored
) -> None:
    """A process with a waiter sends heartbeats: where none came for a while, none waits."""
    await use(used)
    stored.fall_silent()
    error = await mismatch(refused)
    assert (error.held, error.unused) == (False, True)
    assert "no permit is held and no request waits now" in str(error)
    stored.set("layout", str(OWN + 1))
    with pytest.raises(LayoutMismatch) as caught:
        await refused.try_acquire()
    assert caught.value.versions == (), "a process that is gone is not to be upgraded"
    assert caught.value.free_in is not None
    stored.let_pass(caught.value.free_in)
    await use(refused)


async def test_no_time_is_told_without_an_expiry(refused: AnySemaphore, stored: Stored) -> None:
    stored.run("HSET", "meta", "mode", "zset local", "layout", OWN)
    assert (await mismatch(refused)).free_in is None


# -- layouts: of other versions of the library

OWN = layout()


@pytest.mark.parametrize("field", ["mode", "layout"])
@simulated
async def test_of_a_name_that_others_took_over_holders_are_trusted_for_a_lease_and_waiters_fail(
    client: MemoryBackend, stored: Stored, field: str
) -> None:
    """State was lost, and others came first."""
    sem = FairSemaphore(client, "jobs", 1, lease=6.0)
    permit = await sem.acquire()
    waiter = await queue_up(sem)
    stored.set(field, "zset server" if field == "mode" else str(OWN + 1))
    with pytest.raises(BackendUnavailable):
        await permit.refresh()
    assert not permit.lost
    with pytest.raises(ModeMismatch if field == "mode" else LayoutMismatch):
        await waiter
    assert "in time" in (await permit.wait_lost()).reason


# -- any text will do, and equal names below two prefixes are apart


ODD = [
    "größe \N{SNOWMAN} 漢字 \N{PILE OF POO}",
    " leading, trailing and  inner ",
    "two\nlines\r\nand\ttabs",
    "a:b::c:holders",
    "glob*[a-z]?\\",
    "quotes ' \" ` $(rm) %s %(x)s",
    "0",
    "-1",
    "nul\0inside",
    "x" * 512,
    "é" * 256,
]


@pytest.mark.parametrize("number", [0, OWN + 1])  # 0: from before layouts had numbers
async def test_nothing_can_be_done_with_another_layout(
    used: AnySemaphore, refused: AnySemaphore, stored: Stored, number: int
) -> None:
    """Nor by the same class. What is stored stays as it is, byte by byte."""
    permit = await used.acquire()
    stored.set("layout", str(number))
    before = stored.contents()
    for sem in (used, refused):
        for call in (
            *(sem.acquire, sem.try_acquire, sem.status, sem.available, sem.locked, sem.reap),
            *(sem.delete, sem.pause, partial(sem.set_limit, 5)),
            *(partial(sem.release, permit.id), partial(sem.adopt, permit.id)),
        ):
            with pytest.raises(LayoutMismatch, match=used.name) as caught:
                await soon(call())
            error = caught.value
            assert (error.found, error.own, error.versions) == (number, OWN, (__version__,))
            assert error.free_in is not None and 60 < error.free_in < 600
    with pytest.raises(LayoutMismatch):
        await permit.release()
    assert stored.contents() == before


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
async def test_any_text_will_do_for_a_name_and_for_a_prefix(
    redis: Redis, other_redis: Redis, prefix: str, text: str
) -> None:
    """It goes through keys, scripts, channels and messages, and comes out as it was."""
    options: dict[str, Any] = {"prefix": prefix + text[:100], "label": text, "lease": 60.0}
    here, there = (FairSemaphore(client, text, 1, **options) for client in (redis, other_redis))
    async with here as permit:
        assert permit.name == text
        status = await there.status()
        assert (status.name, status.holders[0].client.label) == (text, text)
        found = [some async for some in scanned_names(redis, options["prefix"])]
        assert [text] in found
        waiter = await queue_up(there)
    permit = await soon(waiter)  # served by a message
    assert await here.release(permit.id) is True
    await soon(permit.wait_lost())
    await here.delete()
