"""What a deadline gives: a permit, or *full* as the server lately replied, or unreachable."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import AcquireTimeout, AnySemaphore, BackendUnavailable, Permit
from tests.harness.clients import Kind
from tests.harness.proxy import Proxy
from tests.harness.wait import EPSILON, NOISE, all_free, in_background, waits_in_queue

TIMEOUT = 2.0  # long enough that all is prepared before it is over, on any machine
LEASE = 30.0  # long enough that no heartbeat falls into it


@pytest.fixture
def here(kind: Kind, proxied: Redis) -> AnySemaphore:
    """A semaphore of a process behind the proxy, which is not connected yet."""
    return kind(proxied, "jobs", 1, lease=LEASE)


@pytest.fixture
def there(kind: Kind, client_b: Redis) -> AnySemaphore:
    """The same semaphore in another process."""
    return kind(client_b, "jobs", 1, lease=LEASE)


@pytest.fixture
async def holder(there: AnySemaphore) -> Permit:
    """The only permit, in the other process."""
    return await there.acquire()


SetOvertime = Callable[[float], None]


@pytest.fixture
def set_overtime(monkeypatch: pytest.MonkeyPatch) -> SetOvertime:
    """Sets the age at which a reply is too old to decide, and how long one is awaited."""

    def set_overtime(seconds: float) -> None:
        for constant in ("route.OVERTIME", "deadlines.OVERTIME", "deadlines.FRESH"):
            monkeypatch.setattr(f"redsem_async._hub.{constant}", seconds)

    return set_overtime


async def outcome(waiter: "asyncio.Task[Permit]") -> tuple[Any, float]:
    """What came of *waiter*, and when."""
    [result] = await asyncio.gather(waiter, return_exceptions=True)
    return result, asyncio.get_running_loop().time()


@pytest.mark.parametrize("silence", ["half-open", "mute"])
async def test_a_waiter_that_is_cut_off_is_not_told_that_it_is_full(
    here: AnySemaphore, there: AnySemaphore, holder: Permit, proxy: Proxy, silence: str
) -> None:
    """It was full at the last reply; a permit has been free ever since, and is not lost."""
    await here.reap()  # it is connected, so that its request is queued at once
    began = asyncio.get_running_loop().time()
    waiter = await waits_in_queue(here, timeout=TIMEOUT)
    if silence == "mute":
        proxy.mute()
    else:
        proxy.half_open()
    assert await holder.release()
    result, ended = await outcome(waiter)
    assert isinstance(result, BackendUnavailable), repr(result)
    assert "no answer in " in str(result)
    assert TIMEOUT <= ended - began <= TIMEOUT + EPSILON + NOISE
    assert proxy.operations("heartbeat"), "the server was asked"
    proxy.drop()
    assert await (await there.acquire(timeout=5)).release()


async def test_a_request_without_any_answer_is_not_told_that_it_is_full(
    here: AnySemaphore, holder: Permit, proxy: Proxy
) -> None:
    """Asked, and no answer by the deadline: the link may be alive, the server is not."""
    await here.reap()
    held = proxy.hold("acquire")
    began = asyncio.get_running_loop().time()
    result, ended = await outcome(in_background(here.acquire(timeout=0.3)))
    assert held.struck.is_set()
    assert isinstance(result, BackendUnavailable), repr(result)
    assert 0.3 <= ended - began <= 0.3 + EPSILON + NOISE
    held.lift()
    assert await holder.release()


@pytest.mark.parametrize("young", [False, True], ids=["old", "young"])
async def test_waiters_with_one_deadline_ask_the_server_together(
    here: AnySemaphore, holder: Permit, proxy: Proxy, set_overtime: SetOvertime, young: bool
) -> None:
    """No reply came for long, so the server is asked once; a young reply will do for all."""
    if young:
        set_overtime(60.0)
    waiters = [in_background(here.acquire(timeout=TIMEOUT)) for _ in range(50)]
    last = await waits_in_queue(here, timeout=None, place=51)
    asked = len(proxy.operations("heartbeat"))
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert {type(result) for result in results} == {AcquireTimeout}
    questions = len(proxy.operations("heartbeat")) - asked
    assert questions == 0 if young else 1 <= questions <= 5  # one, but for a slow machine
    assert not last.done()
    assert await holder.release()
    assert await (await last).release()


async def test_without_push_messages_a_waiter_gets_what_is_free_at_its_deadline(
    kind: Kind, unsubscribed: Redis, holder: Permit
) -> None:
    """A reply to another waiter says nothing of a grant, so each is asked about at the end."""
    here = kind(unsubscribed, "jobs", 1, lease=LEASE)
    waiters = [in_background(here.acquire(timeout=TIMEOUT)) for _ in range(49)]
    waiters.append(await waits_in_queue(here, timeout=TIMEOUT, place=50))
    assert await holder.release()
    results = await asyncio.gather(*waiters, return_exceptions=True)
    [permit] = [result for result in results if isinstance(result, Permit)]
    assert permit.waited >= TIMEOUT / 2, "it was granted before"
    assert {type(result) for result in results} == {Permit, AcquireTimeout}
    assert await permit.release()
    await all_free(here)


@pytest.mark.parametrize("timeout", [0.2, 0.3, 1.0])
async def test_a_far_server_is_asked_before_the_deadline(
    here: AnySemaphore, holder: Permit, proxy: Proxy, timeout: float
) -> None:
    """Its answer takes longer than the grace: it comes in time all the same."""
    proxy.delay = 0.08
    await here.reap()
    began = asyncio.get_running_loop().time()
    result, ended = await outcome(in_background(here.acquire(timeout=timeout)))
    assert isinstance(result, AcquireTimeout), repr(result)
    assert timeout - 0.01 <= ended - began <= timeout + EPSILON + NOISE
    waiter = await waits_in_queue(here, timeout=TIMEOUT)
    proxy.half_open()
    result, _ = await outcome(waiter)
    assert isinstance(result, BackendUnavailable), repr(result)
    proxy.delay = 0.0
    proxy.drop()
    assert await holder.release()


@pytest.mark.release
@pytest.mark.parametrize("early", [0.24, 0.16, 0.06, -0.06, -0.14])
async def test_far_away_the_server_is_not_unavailable_because_a_permit_became_free(
    here: AnySemaphore, holder: Permit, proxy: Proxy, set_overtime: SetOvertime, early: float
) -> None:
    """Released so much before the deadline: a permit, or *full*."""
    set_overtime(0.2)  # all times are four times as long, for a busy machine
    proxy.delay = 0.16
    for _ in range(3):
        await here.reap()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TIMEOUT
    waiter = in_background(here.acquire(timeout=TIMEOUT))
    await asyncio.sleep(deadline - early - proxy.delay - loop.time())
    await holder.release()
    result, _ = await outcome(waiter)
    assert isinstance(result, Permit | AcquireTimeout), repr(result)
    if isinstance(result, Permit):
        await result.release()


async def test_a_grant_that_nothing_confirms_by_the_deadline_comes_too_late(
    kind: Kind, there: AnySemaphore, holder: Permit, proxied: Redis, proxy: Proxy
) -> None:
    """Far away, its refresh takes as long as any command. The server is not unavailable then."""
    here = kind(proxied, "jobs", 1, lease=LEASE, refresh_interval=0.05)
    waiter = await waits_in_queue(here, timeout=1.0)
    proxy.delay = 0.6
    await holder.release()
    result, _ = await outcome(waiter)
    assert proxy.operations("refresh")
    assert isinstance(result, AcquireTimeout)
    await all_free(there)
