"""What a semaphore tells of itself, and what operators do to it."""

import operator
import os
import socket
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, PermitLost
from redsem_async._hub.introduction import signature
from redsem_async._redis.stored import as_text
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client, Make, MakePair, hub_of, key_of, keys_of
from tests.harness.wait import all_free, cancelled, queue_up, soon


async def test_locked_is_whether_acquire_would_wait(make: Make) -> None:
    """Not awaited it raises: a coroutine would be true for ever, `if sem.locked():` unnoticed."""
    sem = make(2)
    untyped: Any = sem
    for use in (bool, operator.not_):
        with pytest.raises(TypeError, match="await"):
            use(untyped.locked())
    assert await sem.locked() is False
    async with sem:
        assert await sem.locked() is False
        async with sem:
            assert await sem.locked() is True
        heavy = await queue_up(sem, permits=2)
        assert await sem.available() == 1
        assert await sem.locked() is True  # a newcomer has to wait behind the heavy one
        await cancelled(heavy)
    await all_free(sem)
    assert await sem.locked() is False


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


async def test_status_shows_the_holders(make: Make, client: MemoryBackend, other: Client) -> None:
    """Enough to find the process, and to end what it holds."""
    here = make(5, label="worker 1 \N{SNOWMAN}", lease=10.0)
    there = make(5, client=other, label="worker 2", lease=20.0)
    async with here.acquire(permits=2) as first, there as second:
        client.advance(3.0)
        status = await here.status()
        assert (status.name, status.limit, status.waiters) == (here.name, 5, ())
        assert (status.held, status.available, status.waiting) == (3, 2, 0)
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
            assert 3.0 <= holder.age < 8.0
        assert 5 < mine.expires_in <= 10
        assert 15 < others.expires_in <= 20


async def test_status_shows_the_waiters(make: Make, client: MemoryBackend, other: Client) -> None:
    """In the order of their requests."""
    here, there = make(3, label="here"), make(3, client=other, label="there")
    async with here.acquire(permits=3):
        tasks = [await queue_up(there, permits=2), await queue_up(here), await queue_up(there)]
        client.advance(3.0)
        status = await here.status()
        assert status.waiting == 3
        assert [waiter.position for waiter in status.waiters] == [0, 1, 2]
        assert [waiter.client.label for waiter in status.waiters] == ["there", "here", "there"]
        assert [waiter.permits for waiter in status.waiters] == [2, 1, 1]
        assert {waiter.client.pid for waiter in status.waiters} == {os.getpid()}
        ages = [waiter.age for waiter in status.waiters]
        assert ages == sorted(ages, reverse=True)
        assert 3 <= min(ages) <= max(ages) < 8
        assert len({waiter.id for waiter in status.waiters}) == 3
        await cancelled(*tasks)
    await all_free(here)


HERE = f"{socket.gethostname()}:{os.getpid()}"


async def test_status_says_who_began_the_back_off(make: Make, other: Client) -> None:
    """A permit that is older than the back-off makes it longer, and does not begin it."""
    here, there = make(3, label="operator"), make(3, client=other, label="worker")
    async with there as permit:
        await here.back_off(10)
        permit.back_off(40)
        back_off = (await there.status()).back_off
        assert back_off is not None
        assert (back_off.by, back_off.seconds_left > 10) == (f"operator@{HERE}", True)
        assert back_off.age is not None
        assert 0 <= back_off.age < 5
        await here.back_off(0)
        permit.back_off(30)
        back_off = (await there.status()).back_off
        assert back_off is not None
        assert back_off.by == f"worker@{HERE}"


@pytest.mark.parametrize(
    "text", ["5", "5:::api", "5::soon:api", f"5::{'9' * 5000}:api", "5:1:2", "5::1:"]
)
async def test_a_limit_of_unknown_origin_is_one(
    make_on_redis: Make, redis: Redis, text: str
) -> None:
    """A text that nobody here wrote is no reason to refuse the status."""
    sem = make_on_redis(3)
    await redis.set(key_of(sem, "limit"), text)
    status = await sem.status()
    assert (status.set_limit, status.set_limit_by) == (5, None)
    assert (status.set_limit_age is None) == (text != "5::1:")


@pytest.mark.parametrize(
    ("began", "by"),
    [
        (b"9" * 5000 + b":100:1:1000:api", None),
        (b"1:100:1:1000:\xff", "\N{REPLACEMENT CHARACTER}"),
    ],
)
async def test_a_back_off_of_unknown_origin_is_a_back_off(
    make_on_redis: Make, redis: Redis, began: bytes, by: str | None
) -> None:
    sem = make_on_redis(3)
    await sem.back_off(30)
    ends = as_text(await redis.hget(key_of(sem, "meta"), "back_off") or "").partition(":")[0]
    await redis.hset(key_of(sem, "meta"), "back_off", ends.encode() + b":" + began)
    back_off = (await sem.status()).back_off
    assert back_off is not None
    assert back_off.by == by


def test_a_signature_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis keeps it for as long as the limit is set, and everybody who looks is sent it."""
    monkeypatch.setattr(socket, "gethostname", lambda: "\N{SNOWMAN}" * 85 + "\udcff")
    signed = signature("\N{SNOWMAN}" * 170)
    assert len(signed.encode()) <= 200
    assert signed.endswith(f":{os.getpid()}")
    assert signed.count("\N{SNOWMAN}") == 33 + 26


async def test_status_advises_no_retry_while_nothing_is_refreshed(make: Make) -> None:
    """But a holder that is refreshed may release its permit at any time."""
    sem, later = make(2, lease=30.0), list[float]()
    for permit in (await sem.acquire(), await sem.acquire()):
        later.append((await sem.status()).retry_after)
        await permit.detach(9.0)
    later.append((await sem.status()).retry_after)
    assert later == [1.0, 1.0, pytest.approx(9.0, abs=4.0)]


async def test_reap_drops_what_expired_and_counts_it(make: Make, client: MemoryBackend) -> None:
    """Until then it is not counted either."""
    sem = make(5, lease=30.0)
    for _ in range(3):
        await (await sem.acquire()).detach(10.0)
    async with sem as permit:
        client.advance(11.0)
        status = await sem.status()
        assert (status.held, len(status.holders), status.available) == (1, 1, 4)
        assert await sem.reap() == 3
        assert await sem.reap() == 0
        await permit.refresh()


async def test_delete_takes_permits_from_their_holders(pair: MakePair) -> None:
    """They learn of it at once, wherever they are."""
    here, there = pair(2, lease=60.0)
    permits = [await here.acquire(), await there.acquire()]
    await here.delete()
    for permit in permits:
        assert isinstance(await soon(permit.wait_lost(), 0.5), PermitLost)
        assert await permit.release() is False
    assert await there.available() == 2


async def test_delete_deletes_everything(make_on_redis: Make, redis: Redis) -> None:
    """The set limit too; what stays, for a while, is which numbers its hubs have used."""
    sem = make_on_redis(3)
    await sem.set_limit(1)
    permit = await sem.acquire()
    await sem.delete()
    assert permit.lost
    hub = hub_of(permit)
    keys = await keys_of(redis, sem)
    assert sorted(keys) == [key_of(sem, what).encode() for what in ("hubs", "meta")]
    assert all([0 < await redis.pttl(key) < 300_000 for key in keys])
    fields = cast("list[bytes]", await redis.hkeys(key_of(sem, "meta")))
    left = {field.decode() for field in fields}
    assert left <= {"counter", hub, f"{hub}:calls", f"{hub}:changes"}
    assert await sem.exists() is False
    assert (await sem.status()).limit == 3


async def test_status_knows_the_holders_again_after_a_flush(client_a: Redis, admin: Redis) -> None:
    """What they told of themselves was deleted with the rest, and has to be sent again."""
    sem = FairSemaphore(client_a, "jobs", 1, label="here")
    async with sem:
        pass
    for flushed in (False, True):
        await (admin.flushall() if flushed else sem.delete())
        async with sem:
            (holder,) = (await sem.status()).holders
            assert (holder.client.label, holder.client.pid) == ("here", os.getpid())
