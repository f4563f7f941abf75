"""Calls that change something act once, however often and however late they arrive."""

import asyncio

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, Permit, Semaphore
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Kind
from tests.harness.proxy import Proxy, say_again
from tests.harness.wait import in_background, until, waits_in_line

LEASE = 3.0


@pytest.mark.fault(46)
async def test_a_limit_that_arrives_late_is_not_set_again(
    kind: Kind, proxied: Redis, proxy: Proxy, server: EmbeddedRedis
) -> None:
    """The network kept a copy of a call that was answered, and a later one counts."""
    semaphore = kind(proxied, "jobs", 1)
    await semaphore.set_limit(5)
    await semaphore.set_limit(2)
    [first, _] = proxy.operations("set_limit")
    await say_again(server.port, first)
    assert (await semaphore.status()).set_limit == 2
    await semaphore.set_limit(None)
    await say_again(server.port, first)
    assert (await semaphore.status()).set_limit is None


@pytest.mark.fault(46)
async def test_a_limit_whose_reply_was_lost_is_not_set_again(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """Carried out, and sent again after somebody else has set another."""
    here, there = kind(proxied, "jobs", 1), kind(client_b, "jobs", 1)
    await here.reap()
    fault = proxy.swallow("set_limit")
    setting = in_background(here.set_limit(5))
    proxy.refusing = True
    await fault.struck.wait()
    assert (await there.status()).set_limit == 5
    await there.set_limit(2)
    proxy.refusing = False
    await setting
    assert len(proxy.operations("set_limit")) >= 2, "it was sent again"
    assert (await there.status()).set_limit == 2


@pytest.mark.fault(46)
async def test_calls_that_are_sent_again_together_act_in_their_order(
    kind: Kind, proxied: Redis, proxy: Proxy, server: EmbeddedRedis, admin: Redis
) -> None:
    """Each waits for the answer of the one before, also where the server has lost its scripts."""
    semaphore = kind(proxied, "jobs", 1)
    await semaphore.set_limit(9)
    fault = proxy.swallow("set_limit")
    calls = [in_background(semaphore.set_limit(limit)) for limit in (1, 2, 3)]
    proxy.refusing = True
    await fault.struck.wait()
    await admin.script_flush()
    proxy.refusing = False
    await asyncio.gather(*calls)
    assert (await semaphore.status()).set_limit == 3
    for sent in proxy.operations("set_limit"):
        await say_again(server.port, sent)
    assert (await semaphore.status()).set_limit == 3


async def test_a_limit_that_was_not_taken_at_first_is_set_whatever_was_asked_beside_it(
    kind: Kind, proxied: Redis, proxy: Proxy
) -> None:
    """Had the detach been written behind it, the limit would come after it, and be void."""
    semaphore = kind(proxied, "jobs", 1, lease=LEASE)
    permit = await semaphore.acquire()
    fault = proxy.answer("set_limit", "NOSCRIPT No matching script.")
    setting = in_background(semaphore.set_limit(5))
    detaching = in_background(permit.detach(expires_in=LEASE))
    await setting
    identity = await detaching
    assert fault.struck.is_set()
    assert (await semaphore.status()).set_limit == 5
    assert await semaphore.release(identity)


@pytest.mark.fault(46)
async def test_a_clear_that_arrives_late_takes_nothing(
    kind: Kind, proxied: Redis, proxy: Proxy, server: EmbeddedRedis
) -> None:
    """Cleared once: what was acquired afterwards stays."""
    semaphore = kind(proxied, "jobs", 1)
    await semaphore.clear()
    permit = await semaphore.acquire()
    [clear] = proxy.operations("clear")
    await say_again(server.port, clear)
    assert (await semaphore.status()).held == 1
    await permit.refresh()
    assert await permit.release()


@pytest.mark.fault(46)
async def test_a_clear_whose_reply_was_lost_is_carried_out_once(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """It is sent again after somebody else has acquired what it freed."""
    here, there = kind(proxied, "jobs", 1), kind(client_b, "jobs", 1)
    await here.reap()
    fault = proxy.swallow("clear")
    clearing = in_background(here.clear())
    proxy.refusing = True
    await fault.struck.wait()
    permit = await there.acquire(timeout=5)
    proxy.refusing = False
    await clearing
    assert len(proxy.operations("clear")) >= 2, "it was sent again"
    await permit.refresh()
    assert await permit.release()


@pytest.mark.fault(46)
async def test_a_clear_leaves_acquires_that_are_late_void(
    kind: Kind, proxied: Redis, proxy: Proxy, server: EmbeddedRedis, client_b: Redis
) -> None:
    """The numbers that a hub has used outlive the semaphore: nothing that ended comes back."""
    semaphore = kind(proxied, "jobs", 1)
    permit = await semaphore.acquire()
    await permit.release()
    await kind(client_b, "jobs", 1).clear()
    [acquire] = proxy.operations("acquire")
    await say_again(server.port, acquire)
    assert (await semaphore.status()).held == 0


async def test_a_clear_leaves_limits_that_are_late_void(
    kind: Kind, proxied: Redis, proxy: Proxy, server: EmbeddedRedis, client_b: Redis
) -> None:
    """Somebody else cleared, and knows nothing of the numbers of this process."""
    semaphore = kind(proxied, "jobs", 1)
    await semaphore.set_limit(5)
    await kind(client_b, "jobs", 1).clear()
    [limit] = proxy.operations("set_limit")
    await say_again(server.port, limit)
    assert (await semaphore.status()).set_limit is None


@pytest.mark.fault(47)
async def test_an_adoption_is_not_lost_to_the_abandon_of_a_later_acquire(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """Both are lost with the link, and the acquire is cancelled: its abandon goes first."""
    there = kind(client_b, "jobs", 2, lease=LEASE)
    identity = await (await there.acquire()).detach(expires_in=60)
    here = kind(proxied, "jobs", 2, lease=LEASE)
    await here.reap()
    proxy.half_open()
    adopting = in_background(_adopted(here, identity))
    acquiring = in_background(here.acquire())
    await until(
        lambda: bool(proxy.operations("adopt") and proxy.operations("acquire")), "both were sent"
    )
    proxy.drop()
    acquiring.cancel()
    await asyncio.wait([acquiring])
    permit = await asyncio.wait_for(adopting, 5)
    assert proxy.operations("abandon"), "the acquire was given up"
    assert [entry.id for entry in (await there.status()).holders] == [permit.id]
    assert await permit.release()


async def test_an_adoption_is_not_lost_to_a_later_one_that_is_given_up(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """Both are lost with the link; that the later one is void comes before the other's turn."""
    there = kind(client_b, "jobs", 2, lease=LEASE)
    permits = [await there.acquire(), await there.acquire()]
    identities = [await permit.detach(expires_in=60) for permit in permits]
    here = kind(proxied, "jobs", 2, lease=LEASE)
    await here.reap()
    proxy.half_open()
    adopting, leaving = (in_background(_adopted(here, identity)) for identity in identities)
    await until(lambda: len(proxy.operations("adopt")) == 2, "both were sent")
    proxy.drop()
    leaving.cancel()
    await asyncio.wait([leaving])
    permit = await asyncio.wait_for(adopting, 5)
    assert len(proxy.operations("adopt")) == 4, "it was void, and asked for anew"
    assert await permit.release()
    assert await there.release(identities[1])


@pytest.mark.fault(47)
async def test_an_adoption_that_was_given_up_arrives_late(
    kind: Kind, proxied: Redis, proxy: Proxy, server: EmbeddedRedis, client_b: Redis
) -> None:
    """Nobody would hold what it takes: the id stays where it is, for the next adopter."""
    there = kind(client_b, "jobs", 1, lease=LEASE)
    identity = await (await there.acquire()).detach(expires_in=60)
    here = kind(proxied, "jobs", 1, lease=LEASE)
    await here.reap()
    fault = proxy.cut("adopt")
    adopting = in_background(_adopted(here, identity))
    await fault.struck.wait()
    adopting.cancel()
    await asyncio.wait([adopting])
    await until(lambda: bool(proxy.operations("abandon")), "it was given up")
    await here.reap()
    assert fault.sent is not None
    assert "VOID" in str(await say_again(server.port, fault.sent))
    adopted = await there.adopt(identity)
    assert await adopted.release()


@pytest.mark.fault(46)
async def test_what_waits_in_a_process_is_told_by_its_latest_call(
    proxied: Redis, proxy: Proxy, server: EmbeddedRedis, client_b: Redis
) -> None:
    """A heartbeat and an acquire that arrive late announce a waiter who has left (zset)."""
    holder = await Semaphore(client_b, "jobs", 1, lease=LEASE).acquire()
    semaphore = Semaphore(proxied, "jobs", 1, lease=LEASE)
    waiters = [await waits_in_line(semaphore, place=place) for place in (1, 2)]
    await until(lambda: bool(proxy.operations("heartbeat")), "a heartbeat was sent", within=10)
    for waiter in waiters:
        waiter.cancel()
    await asyncio.wait(waiters)

    async def nobody_waits() -> bool:
        return (await semaphore.status(0)).waiting == 0

    await until(nobody_waits, "it is told that nobody waits")
    for sent in (*proxy.operations("acquire"), proxy.operations("heartbeat")[0]):
        await say_again(server.port, sent)
        assert await nobody_waits()
    assert await holder.release()


async def _adopted(semaphore: AnySemaphore, identity: str) -> Permit:
    return await semaphore.adopt(identity)


@pytest.mark.parametrize("late", ["set_limit", "clear", "detach", "adopt"])
async def test_a_number_is_remembered_for_as_long_as_its_hub(
    kind: Kind, client_a: Redis, admin: Redis, late: str
) -> None:
    """Nothing is kept of it for ever: every key that a call leaves has an expiry."""
    semaphore = kind(client_a, f"jobs-{late}", 1)
    permit = await semaphore.acquire()
    match late:
        case "set_limit":
            await semaphore.set_limit(3)
            await semaphore.set_limit(None)
        case "detach":
            await permit.detach()
        case "adopt":
            permit = await semaphore.adopt(await permit.detach())
        case _:
            pass
    await semaphore.clear()
    keys = await admin.keys(f"*{late}*")
    lifetimes = [await admin.pttl(key) for key in keys]
    assert all(0 < left < 300_000 for left in lifetimes), dict(zip(keys, lifetimes, strict=True))
