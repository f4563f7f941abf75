"""One name has one mode and one clock: for how long after its last use, and what ends that."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, ModeMismatch, Semaphore
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client
from tests.harness.wait import cancelled, queue_up, soon

MARGIN = 30.0  # seconds, in which a busy machine does what a test asks


@pytest.fixture(params=["server", "local"])
def clock(request: pytest.FixtureRequest) -> str:
    """What leases are counted by."""
    found: str = request.param
    return found


@pytest.fixture
def used(kind: type[AnySemaphore], clock: str, client: Client, name: str) -> AnySemaphore:
    """The semaphore that takes the name."""
    return kind(client, name, 1, clock=clock)  # type: ignore[arg-type]


@pytest.fixture
def refused(used: AnySemaphore, other: Client) -> AnySemaphore:
    """A semaphore of the other class, with the same name, in another process."""
    return other_class(used)(other, used.name, 5)


def other_class(sem: AnySemaphore) -> type[AnySemaphore]:
    return Semaphore if isinstance(sem, FairSemaphore) else FairSemaphore


async def mismatch(sem: AnySemaphore) -> ModeMismatch:
    with pytest.raises(ModeMismatch) as caught:
        await soon(sem.try_acquire())
    return caught.value


async def let_pass(client: Client, sem: AnySemaphore, seconds: float, admin: Redis) -> None:
    """Move the time at which the name becomes free so much nearer."""
    if isinstance(client, MemoryBackend):
        client.advance(seconds)
        return
    meta = f"redsem:{{{sem.name}}}:meta"
    left: int = await admin.pttl(meta)
    assert left > 0
    await admin.pexpire(meta, left - round(seconds * 1000))


async def test_a_name_stays_taken_after_its_last_use_and_then_is_free(
    used: AnySemaphore, refused: AnySemaphore, client: Client, other_redis: Redis
) -> None:
    """A test in memory must not pass where production says ModeMismatch."""
    async with used:
        pass
    first = await mismatch(refused)
    assert first.held is False
    assert first.free_in is not None and 2 * MARGIN < first.free_in < 600
    again = await mismatch(refused)  # a refused attempt is no use of the name
    assert again.free_in is not None and again.free_in <= first.free_in
    await let_pass(client, used, again.free_in - MARGIN, other_redis)
    late = await mismatch(refused)
    assert late.free_in is not None and 0 < late.free_in <= MARGIN
    await let_pass(client, used, MARGIN, other_redis)
    async with refused:
        assert await refused.available() == 4
        assert (await mismatch(used)).held is True


async def test_use_keeps_the_name(
    used: AnySemaphore, refused: AnySemaphore, client: Client, other_redis: Redis
) -> None:
    """Each use counts anew: a semaphore that is used every minute is never anybody else's."""
    for _ in range(5):
        async with used:
            pass
        free_in = (await mismatch(refused)).free_in
        assert free_in is not None
        await let_pass(client, used, free_in - MARGIN, other_redis)
    assert (await mismatch(refused)).held is False


async def test_clear_frees_a_name_at_once(used: AnySemaphore, refused: AnySemaphore) -> None:
    """That is what the error tells people to do."""
    async with used:
        pass
    await mismatch(refused)
    await used.clear()
    async with refused:
        await mismatch(used)
    await refused.clear()
    async with used:
        pass


async def test_a_set_limit_outlives_the_mode(
    used: AnySemaphore, refused: AnySemaphore, client: Client, other_redis: Redis
) -> None:
    """The set limit is the name's, and has no expiry."""
    await used.set_limit(2)
    async with used:
        pass
    free_in = (await mismatch(refused)).free_in
    assert free_in is not None
    await let_pass(client, used, free_in, other_redis)
    async with refused:
        assert (await refused.status()).limit == 2


async def test_a_set_limit_takes_no_name(used: AnySemaphore, refused: AnySemaphore) -> None:
    """A limit may be set before anybody has used the name, by a client of either class."""
    await used.set_limit(2)
    async with refused:
        assert (await refused.status()).limit == 2
        await mismatch(used)


async def test_a_detached_permit_keeps_the_name_for_as_long_as_it_may_be_adopted(
    used: AnySemaphore, refused: AnySemaphore
) -> None:
    """Nobody refreshes it, and whoever adopts it needs the name as it was."""
    await (await used.acquire()).detach(3600.0)
    error = await mismatch(refused)
    assert error.held is True
    assert error.free_in is not None and error.free_in > 3600


async def test_the_error_says_whether_permits_are_held(
    used: AnySemaphore, refused: AnySemaphore
) -> None:
    """Clearing a name whose permits are held takes them away."""
    async with used:
        error = await mismatch(refused)
        assert (error.held, error.unused) == (True, False)
        assert "clear" not in str(error)
    error = await mismatch(refused)
    assert (error.held, error.unused) == (False, False)
    assert f"{type(used).__name__}(" in str(error)
    assert ".clear()" in str(error)
    assert "no permit is held" in str(error)
    assert "waits" not in str(error)  # a process used it just now: one may wait


async def test_a_client_with_a_wrong_clock_is_told_who_holds_by_the_servers(
    kind: type[AnySemaphore],
    client: Client,
    other: Client,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its own, an hour ahead, everybody's lease would be over, and clearing look harmless."""
    sem = kind(client, name, 1)
    async with sem:
        really = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: really() + 3600 * 10**9)
        for refused in (kind, other_class(sem)):
            error = await mismatch(refused(other, name, 1, clock="local"))
            assert (error.held, error.unused) == (True, False)


async def test_the_error_says_nothing_of_waiters_that_there_may_be(
    used: AnySemaphore, refused: AnySemaphore, client: Client
) -> None:
    """Nobody holds a permit of a paused semaphore, and yet it is in use."""
    await used.set_limit(0)
    waiter = await queue_up(used)
    if isinstance(client, MemoryBackend):
        client.advance(3600.0)
    error = await mismatch(refused)
    assert (error.held, error.unused) == (False, False)
    assert "no permit is held" in str(error)
    assert "waits" not in str(error)
    await cancelled(waiter)


async def test_the_error_says_that_nobody_uses_the_name(
    used: AnySemaphore, refused: AnySemaphore, client: Client, other_redis: Redis
) -> None:
    """A process that waits is heard from: where none was for a while, none waits."""
    async with used:
        pass
    if isinstance(client, MemoryBackend):
        client.advance(MARGIN)
    else:
        hubs = f"redsem:{{{used.name}}}:hubs"
        admin: Any = other_redis
        (hub,) = await admin.zrange(hubs, 0, -1)
        await admin.zincrby(hubs, -MARGIN * 1000, hub)
    error = await mismatch(refused)
    assert (error.held, error.unused) == (False, True)
    assert "no permit is held and no request waits now" in str(error)


async def _plainly(sem: AnySemaphore) -> None:
    async with sem:
        pass


async def _often(sem: AnySemaphore) -> None:
    for _ in range(5):
        await _plainly(sem)


async def _held(sem: AnySemaphore) -> None:
    permit = await sem.acquire()
    await permit.refresh()
    await permit.detach(1.0)


async def _waited_for(sem: AnySemaphore) -> None:
    async with sem:
        waiter = await queue_up(sem)
    await (await soon(waiter)).release()


async def _adopted(sem: AnySemaphore) -> None:
    permit = await sem.adopt(await (await sem.acquire()).detach(100.0))
    await permit.release()


async def _cleared(sem: AnySemaphore) -> None:
    await _plainly(sem)
    await sem.clear()
    await _plainly(sem)


USES = [_plainly, _often, _held, _waited_for, _adopted, _cleared]


@pytest.mark.parametrize("lease", [0.5, 10.0, 600.0])
@pytest.mark.parametrize("use", USES)
async def test_memory_keeps_a_name_for_as_long_as_redis(
    kind: type[AnySemaphore],
    redis: Redis,
    name: str,
    lease: float,
    use: Callable[[AnySemaphore], Awaitable[None]],
) -> None:
    """The one is the other's specification, in this too."""

    async def free_in(client: Any, other: Any) -> float:
        sem = kind(client, name, 1, lease=lease)
        await use(sem)
        left = (await mismatch(other_class(sem)(other, name, 1))).free_in
        assert left is not None
        return left

    memory = MemoryBackend()
    loop = asyncio.get_running_loop()
    began = loop.time()
    left = [await free_in(client, client) for client in (memory, redis)]
    assert left[1] == pytest.approx(left[0], abs=loop.time() - began + 1.0)
