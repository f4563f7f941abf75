"""What a semaphore tells of itself, what operators do to it, and what keeps names apart."""

import asyncio
import os
import socket
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from redsem_async import (
    AnySemaphore,
    BackendError,
    FairSemaphore,
    ModeMismatch,
    Mutex,
    PermitLost,
    Semaphore,
)
from tests.harness.clients import Client, Make, keys_of
from tests.harness.servers import StartServer
from tests.harness.wait import all_free, cancelled, queue_up, soon, until

pytestmark = pytest.mark.one_mode

# -- questions


async def test_locked_raises_when_it_is_not_awaited(make: Make) -> None:
    """As a coroutine it would be true for ever: `if sem.locked():` must not pass unnoticed."""
    untyped: Any = make(1)
    with pytest.raises(TypeError, match="await"):
        if untyped.locked():
            pytest.fail("not awaited, and taken for true")
    with pytest.raises(TypeError, match="await"):
        _ = not untyped.locked()


async def test_locked_is_whether_acquire_would_wait(make: Make) -> None:
    """As in asyncio.Semaphore."""
    sem = make(2)
    assert await sem.locked() is False
    async with sem:
        assert await sem.locked() is False
        async with sem:
            assert await sem.locked() is True
    assert await sem.locked() is False


async def test_locked_while_others_wait(make_fair: Make) -> None:
    """There is room, but a newcomer has to wait behind the heavy one."""
    sem = make_fair(2)
    async with sem:
        heavy = await queue_up(sem, permits=2)
        assert await sem.available() == 1
        assert await sem.locked() is True
    await (await soon(heavy)).release()


async def test_exists_is_whether_anything_is_kept(make: Make, other: Client) -> None:
    """Held, waited for, or limited by an operator."""
    here, there = make(1), make(1, client=other)
    assert await there.exists() is False
    async with here:
        assert await there.exists() is True
    assert await there.exists() is False
    await here.set_limit(0)
    assert await there.exists() is True
    await here.set_limit(None)
    assert await there.exists() is False


async def test_asking_leaves_nothing_behind(make_on_redis: Make, redis: Redis) -> None:
    """A dashboard that asks about names must not bring them into being."""
    sem = make_on_redis(1)
    await sem.status()
    assert await sem.exists() is False
    assert await sem.locked() is False
    assert await sem.release("0" * 32 + ".1") is False
    assert await sem.reap() == 0
    left = [key for key in await keys_of(redis, sem) if await redis.pttl(key) < 0]
    assert left == []


async def test_available_is_never_negative(make: Make, other: Client) -> None:
    """A lowered limit is no debt."""
    wide, narrow = make(3), make(1, client=other)
    async with wide, wide, wide:
        assert await narrow.available() == 0
        assert await wide.available() == 0


async def test_status_shows_who_holds(make: Make, other: Client) -> None:
    """Enough to find the process, and to end what it holds."""
    here = make(5, label="worker 1 \N{SNOWMAN}", lease=10.0)
    there = make(5, client=other, label="worker 2", lease=20.0)
    async with here.acquire(permits=2) as first, there as second:
        await asyncio.sleep(0.1)
        status = await here.status()
        assert status.name == here.name
        assert status.limit == 5
        assert status.held == 3
        assert status.available == 2
        assert status.waiting == 0
        assert status.waiters == ()
        holders = {holder.id: holder for holder in status.holders}
        assert holders.keys() == {first.id, second.id}
        mine, others = holders[first.id], holders[second.id]
        assert mine.client.label == "worker 1 \N{SNOWMAN}"
        assert others.client.label == "worker 2"
        assert mine.client.id != others.client.id
        for holder, permit in ((mine, first), (others, second)):
            assert holder.client.pid == os.getpid()
            assert holder.client.host == socket.gethostname()
            assert holder.fencing_token == permit.fencing_token
            assert holder.permits == permit.permits
            assert 0.09 <= holder.age < 5.0
        assert 5 < mine.expires_in <= 10
        assert 15 < others.expires_in <= 20


async def test_status_shows_who_waits(make_fair: Make, other: Client) -> None:
    """In the order in which they will be served."""
    here, there = make_fair(3, label="here"), make_fair(3, client=other, label="there")
    async with here.acquire(permits=3):
        tasks = [await queue_up(there, permits=2), await queue_up(here), await queue_up(there)]
        await asyncio.sleep(0.05)
        status = await here.status()
        assert status.waiting == 3
        assert [waiter.position for waiter in status.waiters] == [0, 1, 2]
        assert [waiter.client.label for waiter in status.waiters] == ["there", "here", "there"]
        assert [waiter.permits for waiter in status.waiters] == [2, 1, 1]
        assert {waiter.client.pid for waiter in status.waiters} == {os.getpid()}
        ages = [waiter.age for waiter in status.waiters]
        assert ages == sorted(ages, reverse=True)
        assert 0.04 < min(ages) <= max(ages) < 5
        assert len({waiter.id for waiter in status.waiters}) == 3
        await cancelled(*tasks)
    await all_free(here)


async def test_status_counts_the_waiting_processes(client: Client, name: str) -> None:
    """ZSET mode keeps no queue: what is known is who announced how many."""
    sem = Semaphore(client, name, 1, label="here")
    async with sem:
        waiter = await queue_up(sem)
        status = await sem.status()
        assert status.waiting == 1
        (entry,) = status.waiters
        assert entry.client.label == "here"
        assert entry.permits == 1
        await cancelled(waiter)


async def test_status_is_bounded(make_fair: Make) -> None:
    """A list of ten thousand holders helps nobody; the counts are whole all the same."""
    sem = make_fair(20)
    permits = await asyncio.gather(*(sem.acquire() for _ in range(20)))
    waiters = [asyncio.create_task(sem.acquire()) for _ in range(15)]

    async def all_wait() -> bool:
        return (await sem.status()).waiting == 15

    await until(all_wait)
    for most in (0, 1, 7):
        status = await sem.status(max_entries=most)
        assert (status.held, status.waiting, status.available) == (20, 15, 0)
        assert len(status.holders) == len(status.waiters) == most
    assert len((await sem.status()).holders) == 20
    await cancelled(*waiters)
    await asyncio.gather(*(permit.release() for permit in permits))
    await all_free(sem)


async def test_status_does_not_count_what_expired(make: Make) -> None:
    """Nobody has purged it yet, but it holds nothing."""
    sem = make(3)
    await (await sem.acquire(permits=2)).detach(0.05)
    async with sem:

        async def one_is_held() -> bool:
            status = await sem.status()
            return (status.held, len(status.holders), status.available) == (1, 1, 2)

        await until(one_is_held, within=0.5)


async def test_age_goes_on_through_refreshes(make: Make) -> None:
    """It counts from the grant, and not from the last refresh."""
    sem = make(1, lease=0.2)
    async with sem as permit:
        await asyncio.sleep(0.3)
        await permit.refresh()
        (holder,) = (await sem.status()).holders
        assert holder.age >= 0.3


# -- what operators do


async def test_reap_drops_what_expired_and_says_how_much(make: Make) -> None:
    """Never needed, but an operator likes to see it."""
    sem = make(5)
    for _ in range(3):
        await (await sem.acquire()).detach(0.3)
    async with sem as permit:

        async def they_expired() -> bool:
            return await sem.available() == 4

        await until(they_expired)
        assert await sem.reap() == 3
        assert await sem.reap() == 0
        permit.check()
        await permit.refresh()


async def test_reap_goes_on_until_all_is_done(make_on_redis: Make, redis: Redis) -> None:
    """One call of a script does only so much."""
    sem = make_on_redis(3_000)
    permits = await asyncio.gather(*(sem.acquire() for _ in range(2_500)))
    await asyncio.gather(*(permit.detach(60.0) for permit in permits))
    await redis.zadd(f"redsem:{{{sem.name}}}:holders", {permit.id: 1 for permit in permits})
    assert await sem.reap() == 2_500
    assert await sem.reap() == 0


async def test_clear_takes_permits_from_their_holders(make: Make, other: Client) -> None:
    """They are told at once, wherever they are."""
    here, there = make(2, lease=60.0), make(2, client=other, lease=60.0)
    permits = [await here.acquire(), await there.acquire()]
    await here.clear()
    for permit in permits:
        assert isinstance(await soon(permit.wait_lost(), 0.5), PermitLost)
        assert await permit.release() is False
    assert await there.available() == 2


async def test_clear_lets_waiters_start_again(make: Make, other: Client) -> None:
    """There is room now, and none of them is forgotten."""
    here, there = make(1, lease=60.0), make(1, client=other, lease=60.0)
    permit = await here.acquire()
    waiters = [await queue_up(here), await queue_up(there)]
    await there.clear()
    await soon(permit.wait_lost(), 0.5)

    async def work(waiter: asyncio.Task[object]) -> None:
        async with await waiter:  # type: ignore[attr-defined]
            await asyncio.sleep(0)

    await soon(asyncio.gather(*map(work, waiters)))
    await all_free(here)


async def test_clear_lets_many_waiters_of_a_process_start_again(make: Make, other: Client) -> None:
    """Those behind the first are not lost on the way, and nor is the connection."""
    here, there = make(1, lease=60.0), make(1, client=other, lease=60.0)
    permit = await there.acquire()
    waiters = [await queue_up(here) for _ in range(3)]
    await there.clear()
    await soon(permit.wait_lost(), 0.5)
    while waiters:
        ended, _ = await asyncio.wait(waiters, timeout=2.0, return_when=asyncio.FIRST_COMPLETED)
        served = ended.pop()
        waiters.remove(served)
        await served.result().release()
    await all_free(here)


async def test_clear_deletes_everything(make_on_redis: Make, redis: Redis) -> None:
    """The set limit too; what stays, for a while, is which numbers its hubs have used."""
    sem = make_on_redis(3)
    await sem.set_limit(1)
    permit = await sem.acquire()
    await sem.clear()
    assert permit.lost
    stem, hub = f"redsem:{{{sem.name}}}", permit.id.partition(".")[0]
    keys = await keys_of(redis, sem)
    assert sorted(keys) == [f"{stem}:hubs".encode(), f"{stem}:meta".encode()]
    assert all([0 < await redis.pttl(key) < 300_000 for key in keys])
    fields = cast("list[bytes]", await redis.hkeys(f"{stem}:meta"))
    left = {field.decode() for field in fields}
    assert left <= {"counter", hub, f"{hub}:until", f"{hub}:calls"}
    assert await sem.exists() is False
    assert (await sem.status()).limit == 3


async def test_status_knows_the_holders_again_after_clear(make: Make) -> None:
    """Who they are was deleted with the rest, and has to be said again."""
    sem = make(1, label="here")
    async with sem:
        pass
    await sem.clear()
    async with sem:
        (holder,) = (await sem.status()).holders
        assert holder.client.label == "here"
        assert holder.client.pid == os.getpid()


async def test_status_knows_the_holders_again_after_the_server_forgot(
    kind: type[AnySemaphore], embedded: StartServer
) -> None:
    """The same when it was a flush, or an eviction, or a long time of nobody's asking."""
    async with Redis.from_url(embedded().url) as redis:
        sem = kind(redis, "forgotten", 1, label="here")
        async with sem:
            pass
        await redis.flushall()
        async with sem:
            (holder,) = (await sem.status()).holders
            assert holder.client.label == "here"


# -- fencing tokens


async def test_fencing_tokens_grow_strictly(make: Make, other: Client) -> None:
    """Whatever client asks, however many at once: what was granted later has a higher one."""
    here, there = make(50), make(50, client=other)
    highest = 0
    for _ in range(10):
        permits = await asyncio.gather(*(sem.acquire() for sem in (here, there) * 10))
        tokens = sorted(permit.fencing_token for permit in permits)
        assert tokens[0] > highest
        assert len(set(tokens)) == len(tokens)
        highest = tokens[-1]
        await asyncio.gather(*(permit.release() for permit in permits))


async def test_fencing_tokens_grow_across_clear(make: Make, other: Client) -> None:
    """The counter went with the keys, and must not begin anew."""
    here, there = make(1_000), make(1_000, client=other)
    highest = 0
    for _ in range(5):
        permits = await asyncio.gather(*(here.acquire() for _ in range(600)))
        assert min(permit.fencing_token for permit in permits) > highest
        highest = max(permit.fencing_token for permit in permits)
        await here.clear()
        permit = await there.acquire()
        assert permit.fencing_token > highest
        highest = permit.fencing_token
        await permit.release()
        del permits


async def test_fencing_tokens_grow_across_the_loss_of_all_keys(
    kind: type[AnySemaphore], embedded: StartServer
) -> None:
    """They survive a flush, and a restart without persistence."""
    server = embedded()
    async with Redis.from_url(server.url) as redis:
        sem = kind(redis, "fencing", 1)
        tokens: list[int] = []
        for _ in range(3):
            async with sem as permit:
                tokens.append(permit.fencing_token)
            await redis.flushall()
        await asyncio.to_thread(server.restart)
        async with sem as permit:
            tokens.append(permit.fencing_token)
    assert tokens == sorted(set(tokens))


# -- one mode and one clock for a name


async def test_another_class_on_a_name_is_refused(
    client: Client, other: Client, name: str
) -> None:
    """The two keep different books: together they would let too many in."""
    fair, zset = FairSemaphore(client, name, 1), Semaphore(other, name, 1)
    async with fair as permit:
        for refused in (
            zset.acquire,
            zset.try_acquire,
            zset.status,
            zset.available,
            zset.reap,
            lambda: zset.release(permit.id),
            lambda: zset.adopt(permit.id),
            lambda: zset.set_limit(5),
        ):
            with pytest.raises(ModeMismatch) as caught:
                await soon(refused())
            assert name in str(caught.value)
        permit.check()
        await permit.refresh()
        assert (await fair.status()).limit == 1


async def test_another_clock_on_a_name_is_refused(make: Make, other: Client) -> None:
    """Leases counted by two clocks cannot be compared."""
    here, there = make(1), make(1, client=other, clock="local")
    async with here:
        with pytest.raises(ModeMismatch):
            await soon(there.acquire())
        with pytest.raises(ModeMismatch):
            await soon(there.try_acquire())


async def test_a_waiting_task_is_told_of_a_mismatch(
    client: Client, other: Client, name: str
) -> None:
    """The name came into use otherwise while it waited, as after a clear."""
    fair, zset = FairSemaphore(client, name, 1), Semaphore(other, name, 1)
    await fair.set_limit(0)
    waiter = await queue_up(fair)
    waiting_twice = await queue_up(fair)
    await cancelled(waiting_twice)
    await fair.set_limit(None)
    await (await soon(waiter)).release()
    await fair.clear()
    async with zset:
        with pytest.raises(ModeMismatch):
            await soon(fair.acquire())


async def test_a_name_is_free_for_the_other_class_after_clear(
    client: Client, other: Client, name: str
) -> None:
    """That is how one changes one's mind."""
    fair, zset = FairSemaphore(client, name, 1), Semaphore(other, name, 1)
    async with fair:
        pass
    await fair.clear()
    async with zset:
        assert await zset.available() == 0


# -- clock="local"


async def test_the_local_clock_works_as_the_servers(make: Make, other: Client) -> None:
    """The whole life of a permit, counted by this machine's clock."""
    here = make(1, clock="local", lease=0.5)
    there = make(1, client=other, clock="local", lease=0.5)
    async with here as permit:
        waiter = await queue_up(there)
        await asyncio.sleep(0.7)
        permit.check()
        assert not waiter.done()
        (holder,) = (await there.status()).holders
        assert 0.6 < holder.age < 5
        assert 0 < holder.expires_in <= 0.5
    successor = await soon(waiter)
    assert successor.fencing_token > permit.fencing_token
    await successor.detach(0.2)
    await (await soon(here.acquire())).release()
    await all_free(here)


# -- names and prefixes


async def test_prefixes_keep_equal_names_apart(make: Make, prefix: str) -> None:
    """Two applications on one server may both have an `openai`."""
    ours, theirs = make(1), make(1, prefix=prefix)
    async with ours as permit:
        async with theirs.acquire(timeout=1.0):
            assert (await theirs.status()).held == 1
            assert await theirs.release(permit.id) is False
        await theirs.clear()
        permit.check()
        await permit.refresh()


async def test_messages_keep_to_their_prefix(make: Make, other: Client, prefix: str) -> None:
    """A hand-off under one prefix serves nobody of the same name under another."""
    ours, theirs = make(1, lease=60.0), make(1, prefix=prefix, lease=60.0)
    from_there = make(1, client=other, prefix=prefix, lease=60.0)
    async with ours:
        held = await theirs.acquire()
        waiter, stranger = await queue_up(from_there), await queue_up(ours)
        await held.release()
        await (await soon(waiter, 0.5)).release()
        assert not stranger.done()
    await (await soon(stranger, 0.5)).release()


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


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
async def test_any_text_will_do_for_a_name(
    make: Make, other: Client, prefix: str, text: str
) -> None:
    """The name goes through keys, scripts and messages, and comes out as it was."""
    here = make(1, name=text, prefix=prefix, label=text, lease=60.0)
    there = make(1, client=other, name=text, prefix=prefix, lease=60.0)
    async with here as permit:
        assert permit.name == text
        status = await there.status()
        assert status.name == text
        assert status.holders[0].client.label == text
        waiter = await queue_up(there)
    await (await soon(waiter, 0.5)).release()  # told by a message
    permit = await there.acquire()
    assert await here.release(permit.id) is True
    await soon(permit.wait_lost(), 0.5)
    await here.clear()


@pytest.mark.parametrize("text", ["größe", "with space", "two\nlines", "a:b", "*"])
async def test_any_text_will_do_for_a_prefix(
    make: Make, other: Client, prefix: str, text: str
) -> None:
    """It stands in the names of channels too."""
    here = make(1, prefix=prefix + text, lease=60.0)
    there = make(1, client=other, prefix=prefix + text, lease=60.0)
    async with here:
        waiter = await queue_up(there)
    await (await soon(waiter, 0.5)).release()


# -- Mutex


async def test_a_mutex_lets_one_in(client: Client, other: Client, name: str) -> None:
    """A fair semaphore with a limit of one, by a name that says so."""
    here, there = Mutex(client, name), Mutex(other, name, lease=5.0, label="there")
    assert isinstance(here, FairSemaphore)
    assert isinstance(here, AnySemaphore)
    assert here.limit == 1
    assert there.lease == 5.0
    async with here:
        assert await there.try_acquire() is None
        waiter = await queue_up(there)
    await (await soon(waiter)).release()


def test_a_mutex_has_no_other_limit(client: Client, name: str) -> None:
    """A mutex of two is a mistake, and not a quiet one."""
    with pytest.raises(TypeError):
        Mutex(client, name, limit=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Mutex(client, name, 2)  # type: ignore[call-arg,arg-type]


# -- what Redis refuses


async def test_a_key_of_another_type_is_a_backend_error(make_on_redis: Make, redis: Redis) -> None:
    """Somebody else's data has our key: an error, at once, and nothing of it is touched."""
    sem = make_on_redis(1)
    key = f"redsem:{{{sem.name}}}:holders"
    await redis.set(key, "theirs")
    for ask in (sem.acquire, sem.try_acquire, sem.status):
        with pytest.raises(BackendError, match="WRONGTYPE") as caught:
            await soon(ask())
        assert isinstance(caught.value.__cause__, Exception)
    assert await redis.get(key) == b"theirs"
    await redis.delete(key)
    async with sem:
        pass
