"""What a hostile reader of the quick path, the merged keys and the lone write tried."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

import redsem_async
from redsem_async import (
    AcquireTimeout,
    AnySemaphore,
    BackendError,
    FairSemaphore,
    ModeMismatch,
    Permit,
    Semaphore,
)
from redsem_async._hub import window
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Connect, Kind, hub_of, key_of, tokens_of
from tests.harness.proxy import Proxy, say_again
from tests.harness.wait import (
    EPSILON,
    all_free,
    in_background,
    takes_at_most,
    until,
    waits_in_line,
)


async def warm(kind: Kind, redis: Redis, name: str = "warm") -> None:
    await kind(redis, name, 1).reap()


# -- who may not take it


async def full(here: AnySemaphore) -> list[Permit]:
    return [await here.acquire(), await here.acquire()]


async def held_by_a_heavy_one(here: AnySemaphore) -> list[Permit]:
    return [await here.acquire(permits=2)]


async def above_a_set_limit(here: AnySemaphore) -> list[Permit]:
    await here.set_limit(1)
    return [await here.acquire()]


@pytest.mark.parametrize("before", [full, held_by_a_heavy_one, above_a_set_limit])
async def test_nobody_is_one_too_many(
    kind: Kind,
    client_a: Redis,
    client_b: Redis,
    before: Callable[[AnySemaphore], Awaitable[list[Permit]]],
) -> None:
    """A process that is known asks for what most do, and there is no room for it."""
    here, there = kind(client_a, "jobs", 2, lease=30.0), kind(client_b, "jobs", 2, lease=30.0)
    async with there:
        pass
    permits = await before(here)
    with pytest.raises(AcquireTimeout):
        await there.acquire(timeout=0.2)
    for permit in permits:
        assert await permit.release()


async def test_nobody_overtakes_the_line(client_a: Redis, client_b: Redis) -> None:
    """There is room for the newcomer, and not for who waits; both are known (fair)."""
    here, there = FairSemaphore(client_a, "jobs", 2), FairSemaphore(client_b, "jobs", 2)
    async with there:
        pass
    async with here.acquire():
        heavy = await waits_in_line(here, permits=2)
        with pytest.raises(AcquireTimeout):
            await there.acquire(timeout=0.2)
    assert await (await heavy).release()


# -- no memory: the claim ends without an abandon
# -- no memory: the claim ends without an abandon


@pytest.mark.fault(16, 17, 33)
async def test_no_memory_for_an_acquire_sent_again(
    kind: Kind, proxied: Redis, proxy: Proxy, admin: Redis, client_a: Redis
) -> None:
    """The first copy was granted, the second refused: nothing may be held."""
    semaphore = kind(proxied, "jobs", 1, lease=30.0)
    await warm(kind, proxied)
    fault = proxy.swallow("acquire")
    proxy.refusing = True  # the hub does not come back before memory is gone
    acquiring = in_background(semaphore.acquire(timeout=10))
    await asyncio.wait_for(fault.struck.wait(), 5)
    await admin.config_set("maxmemory", "1")
    proxy.refusing = False
    with pytest.raises(BackendError):
        await acquiring
    await admin.config_set("maxmemory", "0")
    # RELIABILITY: "a permit or AcquireTimeout, never a leak"; "slot free <= 1 round trip".
    await all_free(kind(client_a, "jobs", 1), within=2.0)


@pytest.mark.fault(18)
async def test_no_memory_and_a_delayed_first_copy(
    kind: Kind, proxied: Redis, proxy: Proxy, admin: Redis, client_a: Redis, server: EmbeddedRedis
) -> None:
    """The first copy of a refused acquire runs late: it must not take a permit."""
    semaphore = kind(proxied, "jobs", 1, lease=30.0)
    await (await semaphore.acquire()).release()  # introduced
    fault = proxy.cut("acquire")
    proxy.refusing = True
    acquiring = in_background(semaphore.acquire(timeout=10))
    await asyncio.wait_for(fault.struck.wait(), 5)
    await admin.config_set("maxmemory", "1")
    proxy.refusing = False
    with pytest.raises(BackendError):
        await acquiring
    await admin.config_set("maxmemory", "0")
    await asyncio.sleep(0.2)
    assert fault.sent is not None
    await say_again(server.port, fault.sent)  # from a connection that is closed
    await all_free(kind(client_a, "jobs", 1), within=2.0)


# -- mode


async def refused_first(client: Redis, admin: Redis) -> FairSemaphore:
    semaphore = FairSemaphore(client, "jobs", 2)
    await semaphore.set_limit(0)
    assert await semaphore.try_acquire() is None
    await semaphore.set_limit(None)
    return semaphore


async def flushed_while_waiting(client: Redis, admin: Redis) -> FairSemaphore:
    semaphore = FairSemaphore(client, "jobs", 2, lease=3.0)
    holder = await semaphore.acquire(permits=2)
    waiter = await waits_in_line(semaphore)
    await admin.flushall()
    await (await waiter).release()
    await holder.release()
    return semaphore


@pytest.mark.parametrize("before", [refused_first, flushed_while_waiting])
async def test_the_mode_is_noted_whatever_came_before(
    client_a: Redis,
    client_b: Redis,
    admin: Redis,
    before: Callable[[Redis, Redis], Awaitable[FairSemaphore]],
) -> None:
    """API: another class on a name in use raises ModeMismatch. The quick path notes no mode."""
    here = await before(client_a, admin)
    async with here.acquire(timeout=2) as permit:
        with pytest.raises(ModeMismatch):
            await (await Semaphore(client_b, "jobs", 2).acquire(timeout=0.2)).release()
        await permit.refresh()


# -- tokens that outlive their holders


async def test_late_release_by_id_after_the_holders_expired(kind: Kind, client_a: Redis) -> None:
    """API: release(id) is False when it was not held (late)."""
    semaphore = kind(client_a, "jobs", 1, lease=0.1)
    permit = await semaphore.acquire()
    permit_id = await permit.detach(0.1)
    await asyncio.sleep(0.6)
    assert (await semaphore.status(0)).held == 0
    assert not await semaphore.release(permit_id)


async def test_late_release_after_a_blocked_loop(kind: Kind, client_a: Redis) -> None:
    """API: Permit.release() tells whether it was held until now."""
    semaphore = kind(client_a, "jobs", 1, lease=0.1)
    permit = await semaphore.acquire()
    time.sleep(0.6)  # noqa: ASYNC251
    assert not await permit.release()


@pytest.mark.fault(30)
async def test_release_after_the_holders_were_evicted(
    kind: Kind, client_a: Redis, admin: Redis
) -> None:
    """The key is gone, so the permit was not held until now."""
    semaphore = kind(client_a, "jobs", 1)
    permit = await semaphore.acquire()
    await admin.delete(key_of(semaphore, "holders"))
    assert not await permit.release()


async def test_tokens_of_crashed_holders_do_not_pile_up(
    kind: Kind, client_a: Redis, admin: Redis
) -> None:
    """DESIGN: nothing beside the expired leaks. Their holders key may expire as a whole."""
    semaphore = kind(client_a, "jobs", 100, lease=0.2)
    for _ in range(5):
        for _ in range(20):
            permit = await semaphore.acquire()
            await permit.detach(0.1)  # and whoever was to adopt it never did
        await asyncio.sleep(1.0)  # the key of the holders expires
    async with semaphore:
        await semaphore.reap()
        assert len(await tokens_of(admin, semaphore)) == 1


# -- released twice in one turn


async def test_released_twice_in_one_turn(kind: Kind, client_a: Redis) -> None:
    """API: False when it was not held (twice)."""
    semaphore = kind(client_a, "jobs", 2)
    permit = await semaphore.acquire()
    permit_id = await permit.detach(5.0)
    first, second = await asyncio.gather(
        semaphore.release(permit_id), semaphore.release(permit_id)
    )
    assert sorted([first, second]) == [False, True]


async def test_released_twice_in_one_turn_from_elsewhere(
    kind: Kind, client_a: Redis, client_b: Redis
) -> None:
    """The same by somebody else."""
    permit = await kind(client_a, "jobs", 2).acquire()
    there = kind(client_b, "jobs", 2)
    await there.reap()
    first, second = await asyncio.gather(there.release(permit.id), there.release(permit.id))
    assert sorted([first, second]) == [False, True]
    assert not await permit.release()


# -- one key gone


@pytest.mark.fault(30)
@pytest.mark.parametrize("key", ["meta", "tokens"])
async def test_adopt_when_a_key_was_evicted(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis, key: str
) -> None:
    """The permit is still held: it is adopted, under a token that is no lower."""
    semaphore = kind(client_a, "jobs", 1)
    permit = await semaphore.acquire()
    permit_id = await permit.detach(20.0)
    await admin.delete(key_of(semaphore, key))
    adopted = await kind(client_b, "jobs", 1).adopt(permit_id)
    assert adopted.fencing_token >= permit.fencing_token
    assert await adopted.release()


@pytest.mark.fault(30)
@pytest.mark.parametrize("key", ["meta", "tokens"])
async def test_heartbeat_when_a_key_was_evicted(
    server: EmbeddedRedis, connect: Connect, client_a: Redis, admin: Redis, key: str
) -> None:
    """A grant whose token is gone: no storm of connections, no error in the loop."""
    untyped: Any = admin
    await untyped.execute_command(
        "ACL", "SETUSER", "deaf", "on", ">x", "~*", "+@all", "resetchannels"
    )
    deaf = connect(server.url, username="deaf", password="x")
    semaphore = FairSemaphore(deaf, "jobs", 1, lease=6.0)
    for _ in range(2):
        await (await semaphore.acquire()).release()  # the server knows that it is deaf
    holder = await FairSemaphore(client_a, "jobs", 1, lease=6.0).acquire()
    waiter = await waits_in_line(semaphore)
    assert await holder.release()  # granted, and to be found by the next heartbeat
    await admin.delete(key_of(semaphore, key))
    stats = await admin.info("stats")
    permit = await waiter
    again = await admin.info("stats")
    assert await permit.release()
    assert again["total_connections_received"] - stats["total_connections_received"] < 5


@pytest.mark.fault(50)
async def test_phantom_weights_after_eviction_of_holders(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Liveness: weights of holders that are gone must not use capacity for ever."""
    there = kind(client_b, "jobs", 4, lease=1.0)
    permit = await there.acquire(permits=4)
    await permit.detach(1.0)
    semaphore = kind(client_a, "jobs", 4, lease=1.0)
    await admin.delete(key_of(semaphore, "holders"))
    deadline = time.monotonic() + 8
    while time.monotonic() < deadline:  # a busy semaphore
        async with semaphore.acquire(timeout=2):
            await asyncio.sleep(0.05)
    async with semaphore.acquire(timeout=2, permits=4):
        pass


@pytest.mark.fault(50)
async def test_permits_of_the_dead_end_with_their_lease_in_a_grace_period_too(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Some holders put themselves back, and one of several permits does not: it was killed."""
    there = kind(client_b, "jobs", 6, lease=1.5, recovery="grace")
    here = kind(client_a, "jobs", 6, lease=1.5, refresh_interval=0.2, recovery="grace")
    permit = await here.acquire(permits=2, timeout=10)
    await (await there.acquire(permits=4)).detach(1.5)  # nobody refreshes it
    await admin.delete(key_of(here, "holders"))

    async def is_back() -> bool:
        return await admin.zscore(key_of(here, "holders"), permit.id) is not None

    await until(is_back, "the one who lives puts itself back")

    async def all_but_its_own_are_free() -> bool:
        return await here.available() == 4

    await until(all_but_its_own_are_free, "what the dead had is free", within=6)
    rest = await here.acquire(permits=4, timeout=2)
    assert await rest.release()
    assert await permit.release()
    assert not await admin.zcard(key_of(here, "extra"))


async def test_heavy_permits_that_have_expired_are_not_counted(
    kind: Kind, client_a: Redis, client_b: Redis
) -> None:
    """Nor by who only looks, and takes nothing out."""
    await (await kind(client_a, "jobs", 4, lease=30.0).acquire(permits=4)).detach(0.1)
    there = kind(client_b, "jobs", 4)

    async def nothing_is_held() -> bool:
        return (await there.status(0)).held == 0

    await until(nothing_is_held, "it has expired")


async def test_a_heavy_permit_stays_whole_for_as_long_as_it_is_refreshed(
    kind: Kind, client_a: Redis, client_b: Redis
) -> None:
    """All of it is renewed, and not the first of its permits alone."""
    there = kind(client_b, "jobs", 3)
    async with kind(client_a, "jobs", 3, lease=0.5).acquire(permits=3):
        await asyncio.sleep(0.8)  # past the expiry that it was granted with
        status = await there.status()
        assert (status.held, status.holders[0].permits) == (3, 3)
        assert await there.try_acquire() is None


# -- aclose with a server that does not answer, and used again
# -- aclose with a server that does not answer, and used again


async def test_used_again_after_a_heartbeat_that_aclose_left_unanswered(
    kind: Kind, proxied: Redis, proxy: Proxy, client_a: Redis, admin: Redis
) -> None:
    """API: the semaphores may be used again after aclose; who waits hears of an expiry."""
    semaphore, there = kind(proxied, "jobs", 1, lease=9.0), kind(client_a, "jobs", 1, lease=9.0)
    permit = await semaphore.acquire()
    hub = hub_of(permit)
    assert await permit.release()
    holder = await there.acquire()
    waiter = await waits_in_line(semaphore)
    fault = proxy.hold("heartbeat")
    await admin.publish(f"redsem:@{hub}", "hint 0 jobs")
    await fault.struck.wait()
    await redsem_async.aclose(proxied)
    with pytest.raises(redsem_async.SemaphoreClosed):
        await waiter
    fault.lift()
    assert await holder.release()
    await (await there.acquire(timeout=1)).detach(1.0)
    with takes_at_most(1.0 + EPSILON):
        permit = await semaphore.acquire(timeout=8)
    assert await permit.release()
    assert not semaphore._bound().remote.ledger.by_number  # or the hub never idles


async def test_closed_at_once_leaves_no_timer(kind: Kind, client_a: Redis) -> None:
    """Each acquire ends once, and leaves nothing."""
    semaphore = kind(client_a, "jobs", 1)
    permit = await semaphore.acquire()
    closing = in_background(redsem_async.aclose(client_a, drain=1.0))
    await asyncio.sleep(0.05)
    loop: Any = asyncio.get_running_loop()
    for _ in range(20):
        with pytest.raises(redsem_async.SemaphoreClosed):
            await semaphore.acquire(timeout=3600)
    timers = [handle for handle in loop._scheduled if not handle.cancelled()]
    assert len(timers) < 15
    await permit.release()
    await closing


# -- hints that get lost (Semaphore only)


async def hinted_twice(here: Semaphore, there: Semaphore) -> tuple[Any, Any]:
    """A hub that announced two waiters and has one, and another hub behind it."""
    first = await waits_in_line(here)
    second = await waits_in_line(here, place=2)
    last = await waits_in_line(there, place=3)
    second.cancel()
    await asyncio.sleep(0.05)
    return first, last


@pytest.mark.fault(23, 29, 33)
@pytest.mark.parametrize("how", ["noscript", "cut", "oom"])
async def test_a_hint_survives_the_acquire_that_carries_it(
    proxied: Redis, proxy: Proxy, client_a: Redis, client_b: Redis, how: str
) -> None:
    """Two permits are free and two wait: both are served at once."""
    here, there = (
        Semaphore(proxied, "jobs", 2, lease=30.0),
        Semaphore(client_b, "jobs", 2, lease=30.0),
    )
    holder = await Semaphore(client_a, "jobs", 2, lease=30.0).acquire(permits=2)
    first, last = await hinted_twice(here, there)
    if how == "cut":
        proxy.cut("acquire")
    else:
        proxy.answer("acquire", "NOSCRIPT No matching script." if how == "noscript" else "OOM no")
    assert await holder.release()
    with takes_at_most(0.5):
        permit = await last
    assert await permit.release()
    if how != "oom":
        assert await (await first).release()
    else:
        with pytest.raises(BackendError):
            await first


async def test_a_kept_permit_whose_taker_leaves_is_passed_on(
    proxied: Redis, proxy: Proxy, client_b: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Liveness, without any fault: two commands are on their way, and a waiter gives up."""
    monkeypatch.setattr(window, "FAR", math.inf)  # on a busy machine there would be more of them
    here, there = (
        Semaphore(proxied, "jobs", 1, lease=30.0),
        Semaphore(client_b, "jobs", 1, lease=30.0),
    )
    beside = [Semaphore(proxied, f"beside {n}", 1, lease=30.0) for n in range(2)]
    for semaphore in beside:
        await semaphore.reap()
    permit = await here.acquire()
    own = await waits_in_line(here)
    waiter = await waits_in_line(there, place=2)
    fault = proxy.hold("status")
    asking = [in_background(semaphore.status()) for semaphore in beside]
    await fault.struck.wait()
    releasing = in_background(permit.release())
    await asyncio.sleep(0.05)
    own.cancel()
    await asyncio.sleep(0.05)
    fault.lift()
    assert await releasing
    await asyncio.gather(*asking)
    with takes_at_most(0.5):
        permit = await waiter
    assert await permit.release()


# -- a hand-off's winner that blocks the loop at once


async def test_a_winner_that_blocks_the_loop_holds_a_whole_lease(
    client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """DESIGN: a hand-off is short, and its first refresh, sent at once, makes it a lease."""
    semaphore = FairSemaphore(client_a, "jobs", 1, lease=3.0)  # handed over for 2 s
    holder = await FairSemaphore(client_b, "jobs", 1, lease=3.0).acquire()

    async def win() -> Permit:
        permit = await semaphore.acquire()
        time.sleep(2.4)  # noqa: ASYNC251 - the body's first step blocks the loop
        return permit

    winning = in_background(win())
    await until(lambda: bool(semaphore._bound().remote.ledger.waiting), "it waits")
    await holder.release()
    permit = await winning
    # Its answer came while the loop stood still, and is read now.
    await until(lambda: permit.expires_in > 0, "it was refreshed", within=0.5)
    await permit.refresh()
    assert await permit.release()


# -- a key of another type


@pytest.mark.fault(37)
async def test_a_key_of_another_type_on_the_quick_path(
    kind: Kind, client_a: Redis, admin: Redis
) -> None:
    """The quick paths, too, write nothing before they know that they can write all."""
    semaphore = kind(client_a, "jobs", 2)
    async with semaphore:
        pass
    tokens, meta = key_of(semaphore, "tokens"), key_of(semaphore, "meta")
    await admin.rpush(tokens, "not ours")
    before = await admin.hgetall(meta)
    with pytest.raises(BackendError):
        await semaphore.acquire(timeout=2)
    assert await admin.hgetall(meta) == before
    assert not await admin.exists(key_of(semaphore, "holders"))
    await admin.delete(tokens)
    permit = await semaphore.acquire()
    await admin.delete(tokens)
    await admin.rpush(tokens, "not ours")
    with pytest.raises(BackendError):
        await permit.release()
    assert await admin.zcard(key_of(semaphore, "holders")) == 1
    await admin.delete(tokens)
    assert await semaphore.release(permit.id)
