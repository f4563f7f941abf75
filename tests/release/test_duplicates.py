"""Commands that are lost, sent again, or run late from a closed connection take effect once."""

import asyncio
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import key_of
from tests.harness.proxy import Proxy, Sent, say_again
from tests.harness.wait import all_free, cancelled, in_background, until, waiting, waits_in_queue

LIMIT = 3
LEASE = 3.0


@pytest.fixture
async def here(proxied: Redis) -> AnySemaphore:
    """A semaphore of a process behind the proxy, which is connected."""
    semaphore = FairSemaphore(proxied, "jobs", LIMIT, lease=LEASE)
    await semaphore.reap()
    return semaphore


@pytest.fixture
def there(client_b: Redis) -> AnySemaphore:
    """The same semaphore in another process."""
    return FairSemaphore(client_b, "jobs", LIMIT, lease=LEASE)


# -- acquire and release


@pytest.mark.fault(17)
@pytest.mark.parametrize("lost", ["reply", "request"])
@pytest.mark.parametrize("full", [False, True], ids=["granted", "queued"])
async def test_an_acquire_that_is_lost_is_sent_again_and_is_one_permit(
    here: AnySemaphore, there: AnySemaphore, proxy: Proxy, full: bool, lost: str
) -> None:
    """Where the command ran, it finds what it made; where it never arrived, it asks anew."""
    holders = [await there.acquire() for _ in range(LIMIT)] if full else []
    fault = proxy.swallow("acquire") if lost == "reply" else proxy.cut("acquire")
    acquiring = in_background(here.acquire(timeout=10))
    await asyncio.wait_for(fault.struck.wait(), 5)
    await until(lambda: any(c.closed for c in proxy.connections), "its connection is closed")
    if full:
        await until(lambda: len(proxy.open_connections()) == 1, "the hub is back")
        assert (await there.status(0)).waiting <= 1
        assert await holders.pop().release()
    permit = await acquiring
    assert len(proxy.operations("acquire")) + len(proxy.operations("heartbeat")) >= 2
    assert (await there.status()).held == 1 + len(holders)
    for held in (permit, *holders):
        assert await held.release()
    await all_free(there)


@pytest.mark.fault(18)
@pytest.mark.parametrize("end", ["released", "abandoned"])
async def test_a_delayed_duplicate_brings_nothing_back(
    here: AnySemaphore, proxy: Proxy, server: EmbeddedRedis, end: str
) -> None:
    """Closing a socket recalls nothing: what was sent on it may run much later."""
    if end == "released":
        assert await (await here.acquire()).release()
    else:
        fault = proxy.cut("acquire")
        acquiring = in_background(here.acquire())
        await fault.struck.wait()
        await cancelled(acquiring)
        await until(lambda: proxy.operations("abandon"), "it is given up")
    await all_free(here)
    reply = await say_again(server.port, proxy.operations("acquire")[0])
    assert isinstance(reply, list)
    assert reply[-1] == -1, "the duplicate did not run, or was granted"
    assert not await here.exists()
    assert await here.available() == LIMIT


@pytest.mark.fault(18)
async def test_duplicates_of_everything_change_nothing(
    here: AnySemaphore, there: AnySemaphore, proxy: Proxy, server: EmbeddedRedis
) -> None:
    """Release, refresh, abandon and heartbeat too, while another process holds."""
    permit = await here.acquire()
    await permit.refresh()
    assert await permit.release()
    successor = await there.acquire(timeout=0, permits=LIMIT)
    await cancelled(await waits_in_queue(here))
    await waiting(there, 0)
    operations = {"acquire", "refresh", "release", "abandon", "heartbeat"}
    for sent in [sent for sent in proxy.sent if sent.operation in operations]:
        assert isinstance(await say_again(server.port, sent), list)
    status = await there.status()
    assert [entry.id for entry in status.holders] == [successor.id]
    assert not status.waiters
    assert await successor.release()


# -- administrative calls


@pytest.mark.fault(46)
async def test_calls_that_are_sent_again_together_act_once_and_in_their_order(
    here: AnySemaphore, proxy: Proxy, server: EmbeddedRedis, admin: Redis
) -> None:
    """Each waits for the answer of the one before, also where the server has lost its scripts."""
    await here.set_limit(9)
    fault = proxy.swallow("set_limit")
    calls = [in_background(here.set_limit(limit)) for limit in (1, 2, 3)]
    proxy.refusing = True
    await fault.struck.wait()
    await admin.script_flush()
    proxy.refusing = False
    await asyncio.gather(*calls)
    assert (await here.status()).set_limit == 3
    late = proxy.operations("set_limit")
    for limit in (3, None):
        await here.set_limit(limit)
        for sent in late:
            await say_again(server.port, sent)
        assert (await here.status()).set_limit == limit


@pytest.mark.fault(46)
@pytest.mark.parametrize("operation", ["acquire", "set_limit"])
async def test_a_deletion_leaves_what_arrives_late_void(
    here: AnySemaphore, there: AnySemaphore, proxy: Proxy, server: EmbeddedRedis, operation: str
) -> None:
    """The numbers that a hub has used outlive the semaphore, whichever process deletes it."""
    if operation == "acquire":
        await (await here.acquire()).release()
    else:
        await here.set_limit(5)
    await there.delete()
    [sent] = proxy.operations(operation)
    await say_again(server.port, sent)
    status = await here.status()
    assert (status.held, status.set_limit) == (0, None)


# -- adoptions


@pytest.mark.fault(47)
@pytest.mark.parametrize("later", ["acquire", "adopt"])
async def test_an_adoption_is_not_lost_to_a_later_call_that_is_given_up(
    here: AnySemaphore, there: AnySemaphore, proxy: Proxy, later: str
) -> None:
    """Both are lost with the link, and the later one is cancelled: its abandon goes first."""
    permits = [await there.acquire() for _ in range(3)]
    identities = [await permit.detach(expires_in=60) for permit in permits]
    assert await (await here.adopt(identities.pop())).release()  # the server has the script
    first = len(proxy.operations("adopt"))
    proxy.half_open()
    adopting = in_background(here.adopt(identities[0]))
    leaving = in_background(here.acquire() if later == "acquire" else here.adopt(identities[1]))

    def sent() -> int:
        return len([*proxy.operations("adopt"), *proxy.operations("acquire")]) - first

    await until(lambda: sent() == 2, "both were sent")
    proxy.drop()
    await cancelled(leaving)
    permit = await asyncio.wait_for(adopting, 5)
    assert proxy.operations("abandon"), "the later one was given up"
    if later == "adopt":
        assert sent() == 3, "it was asked for anew, and was not void"
    assert {entry.id for entry in (await there.status()).holders} == {permit.id, identities[1]}
    assert await permit.release()
    assert await there.release(identities[1])


async def test_an_adoption_that_was_answered_late_is_trusted_for_what_is_left(
    here: AnySemaphore, there: AnySemaphore, proxy: Proxy, admin: Redis
) -> None:
    """It is asked for again, and answered as found: by then some of the lease has passed."""
    identity = await (await there.acquire()).detach()
    lost = proxy.swallow("adopt")
    slowed = asyncio.Event()

    async def slow_to_connect(sent: Sent) -> None:
        if sent.operation == "HELLO" and not slowed.is_set():
            slowed.set()
            await asyncio.sleep(1.0)

    proxy.before = slow_to_connect
    permit = await here.adopt(identity)
    trusted_until = time.time() + permit.expires_in
    expiry: Any = await admin.zscore(key_of(here, "holders"), permit.id)
    assert slowed.is_set() and lost.struck.is_set()
    assert len(proxy.operations("adopt")) == 2
    assert trusted_until <= expiry / 1000
    assert await permit.release()
