"""A detach that is lost, late, cancelled or repeated: trust ends before the server lets go."""

import asyncio

import pytest
from redis.asyncio import Redis

from redsem_async import (
    AnySemaphore,
    BackendError,
    BackendUnavailable,
    FairSemaphore,
    Permit,
    PermitLost,
)
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.memory import Distant
from tests.harness.proxy import Proxy, say_again
from tests.harness.wait import cancelled, give_back, in_background, queue_up, until
from tests.worlds.simulated_time import simulated

LEASE = 30.0  # with a refresh every ten seconds: it takes one that is sent because of this
SHORT = 0.4

pytestmark = pytest.mark.fault(45)


@pytest.fixture
async def permit(proxied: Redis) -> Permit:
    """A permit of a process behind the proxy."""
    return await FairSemaphore(proxied, "jobs", 1, lease=LEASE).acquire()


@pytest.fixture
def there(client_b: Redis) -> AnySemaphore:
    """The same semaphore in another process."""
    return FairSemaphore(client_b, "jobs", 1, lease=LEASE)


@pytest.mark.parametrize("cancel", [False, True], ids=["waited-for", "cancelled"])
@simulated
async def test_a_detach_without_an_answer_is_trusted_no_longer_than_it_may_have_asked_for(
    cancel: bool,
) -> None:
    """The server shortened the expiry, and no reply arrives, nor those to later refreshes."""
    far, loop = Distant(), asyncio.get_running_loop()
    here, there = (FairSemaphore(each, "jobs", 1, lease=3.0) for each in (far, far.peer()))
    permit = await here.acquire()
    waiter = await queue_up(there)
    far.muted = True
    began = loop.time()
    detaching = in_background(permit.detach(expires_in=SHORT))
    await asyncio.sleep(0.001)
    if cancel:
        await cancelled(detaching)
    await permit.wait_lost()
    assert loop.time() - began <= SHORT
    assert not waiter.done(), "another is in before trust has ended"
    successor = await waiter
    if not cancel:
        with pytest.raises((PermitLost, BackendUnavailable)):
            await detaching
    await give_back(successor)


@simulated
async def test_an_adoption_that_nobody_answers_is_given_up() -> None:
    far = Distant()
    sem = FairSemaphore(far, "jobs", 1)
    permit_id = await (await sem.acquire()).detach(600.0)
    far.muted = True
    with pytest.raises(BackendUnavailable):
        await asyncio.wait_for(sem.adopt(permit_id), 60.0)


@pytest.mark.parametrize("maxmemory", [0, 1], ids=["with memory", "at maxmemory"])
async def test_a_cancelled_detach_that_did_not_arrive_is_made_void(
    permit: Permit, proxy: Proxy, server: EmbeddedRedis, admin: Redis, maxmemory: int
) -> None:
    """Its bytes may lie somewhere still: arriving late they shorten nothing."""
    await admin.config_set("maxmemory", str(maxmemory))
    fault = proxy.cut("detach")  # the server has not seen it
    detaching = in_background(permit.detach(expires_in=2 * SHORT))
    await fault.struck.wait()
    await cancelled(detaching)
    await until(lambda: proxy.operations("abandon"), "it is made void")
    await until(lambda: permit.expires_in > 2 * SHORT or permit.lost, "it was refreshed")
    await admin.config_set("maxmemory", "0")
    assert fault.sent is not None
    assert "VOID" in str(await say_again(server.port, fault.sent))
    await permit.refresh()
    await give_back(permit)


async def test_a_detach_that_is_refused_leaves_the_permit_held(
    permit: Permit, proxy: Proxy
) -> None:
    """The user may not do that, say: the permit is trusted as before."""
    proxy.answer("detach", "NOPERM this user has no permissions to run the 'evalsha' command")
    with pytest.raises(BackendError, match="NOPERM"):
        await permit.detach(expires_in=SHORT)
    await until(lambda: permit.expires_in > SHORT, "a later refresh was answered")
    await give_back(permit)


@pytest.mark.parametrize("ahead", ["nothing", "one that is cut off", "one that leaves"])
@simulated
async def test_a_waiter_is_told_of_a_nearer_expiry(ahead: str) -> None:
    """It would look again when the lease would have ended, and so would what is ahead of it."""
    far, loop = Distant(), asyncio.get_running_loop()
    here, there, beyond = (
        FairSemaphore(client, "jobs", 1, lease=LEASE) for client in (far.peer(), far.peer(), far)
    )
    permit = await here.acquire()
    first = None if ahead == "nothing" else await queue_up(beyond)
    waiter = await queue_up(there)
    if ahead == "one that is cut off":
        far.cut_off()
    began = loop.time()
    await permit.detach(expires_in=SHORT)
    if first is not None and ahead == "one that leaves":
        await cancelled(first)
    await give_back(await waiter)
    assert loop.time() - began == pytest.approx(SHORT, abs=0.05)
    if first is not None:
        await cancelled(first)
