"""What other libraries got wrong, each bug by its number: a test shows that it is absent."""

import asyncio
import re
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.crc import key_slot

from redsem_async import AnySemaphore, BackendUnavailable, PermitLost
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Kind, key_of, tokens_of
from tests.harness.proxy import Proxy
from tests.harness.wait import (
    EPSILON,
    all_free,
    cancelled,
    in_background,
    soon,
    takes_at_most,
    waits_in_queue,
)

SHOWN_ELSEWHERE = {
    "1: a ticket and its rank are two trips": "test_under_load_the_limit_holds",
    "2: a caller's short lease takes others' permits": "test_a_held_permit_outlives_its_lease",
    "3: tasks that share an object release each other's": "test_many_tasks_share_one_object",
    "4: a cancelled acquire leaks": "test_600_randomly_cancelled_acquires_leave_every_permit_free",
    "5: a release swallows its cancellation": "test_a_cancelled_release_is_confirmed_first",
    "6: a late release frees another's permit": "test_releases_that_are_not_due_change_nothing",
    "9: a replayed script acts twice": "test_a_delayed_duplicate_brings_nothing_back",
    "10: waiters wait for a lease from now": "test_an_expired_holder_gives_way",
    "13: a job delivered twice shares a permit": "test_the_second_adopter_gets_permit_lost",
}


@pytest.mark.parametrize("bug", SHOWN_ELSEWHERE)
def test_bug_is_shown_elsewhere(bug: str) -> None:
    """At length, where its promise is tested."""
    files = Path(__file__).parents[1].rglob("test_*.py")
    pattern = rf"^(async )?def {SHOWN_ELSEWHERE[bug]}\("
    assert any(re.search(pattern, path.read_text("utf-8"), re.MULTILINE) for path in files)


async def test_bug_7_an_unreachable_store_is_no_permit(
    kind: Kind, client_a: Redis, server: EmbeddedRedis
) -> None:
    """Neither for a caller, nor for one that holds already."""
    semaphore = kind(client_a, "jobs", 1, lease=0.6)
    with pytest.raises(PermitLost):
        async with semaphore:
            server.kill()
            with takes_at_most(0.6):
                with pytest.raises(BackendUnavailable):
                    await semaphore.acquire(timeout=0.1)
                with pytest.raises(BackendUnavailable):
                    await semaphore.try_acquire()
                await asyncio.sleep(5)
    server.restart()


async def test_bug_8_the_clients_retries_do_not_add_up(kind: Kind, server: EmbeddedRedis) -> None:
    """A client that retries ten times, with pauses; and half a second to wait."""
    server.kill()
    retry = Retry(ExponentialBackoff(), 10)
    async with Redis(host="127.0.0.1", port=server.port, retry=retry) as redis:
        with takes_at_most(0.5), pytest.raises(BackendUnavailable):
            await kind(redis, "jobs", 1).acquire(timeout=0.5)


async def test_bug_11_wake_ups_do_not_pile_up(kind: Kind, client_a: Redis, admin: Redis) -> None:
    """A release without a waiter leaves nothing for later."""
    semaphore = kind(client_a, "jobs", 1, lease=1.0)

    async def kept_after_fifty() -> dict[str, object]:
        for _ in range(50):
            async with semaphore:
                pass
        assert await semaphore.available() == 1  # asked after the last release
        return {str(key): await admin.memory_usage(key) for key in await admin.keys("*")}

    assert await kept_after_fifty() == await kept_after_fifty()
    async with semaphore:
        assert await semaphore.try_acquire() is None, "a wake-up was left over"


async def test_bug_12_a_grant_that_its_waiter_never_hears_is_passed_on(
    kind: Kind, client_a: Redis, client_b: Redis, proxied: Redis, proxy: Proxy
) -> None:
    """No message of its grant reaches the waiter's process, and none will: no slot is lost."""
    holder = await kind(client_b, "jobs", 1, lease=3.0).acquire()
    doomed = await waits_in_queue(kind(proxied, "jobs", 1, lease=3.0))
    heir = await waits_in_queue(kind(client_a, "jobs", 1, lease=3.0), place=2)
    proxy.half_open()  # from here on it is as good as crashed
    proxy.refusing = True
    assert await holder.release()
    assert not doomed.done()
    with takes_at_most(3.0 + EPSILON):  # the lease of the grant
        permit = await heir
    assert await permit.release()
    await cancelled(doomed)


async def test_bug_14_9000_permits_at_once_are_granted_and_given_back(
    kind: Kind, client_a: Redis
) -> None:
    """Lua unpacks some 8,000 values at most. Tokens grow, although the keys are deleted."""
    semaphore = kind(client_a, "jobs", 9_000, lease=60.0)
    highest = 0
    for end in ("delete", "release"):
        permits = await asyncio.gather(*(semaphore.acquire() for _ in range(9_000)))
        assert (await semaphore.status(0)).held == 9_000
        tokens = {permit.fencing_token for permit in permits}
        assert len(tokens) == 9_000
        assert min(tokens) > highest
        highest = max(tokens)
        if end == "release":
            assert all(await asyncio.gather(*(permit.release() for permit in permits)))
        else:
            await semaphore.delete()
            await asyncio.gather(*(soon(permit.wait_lost(), 20) for permit in permits))
        await all_free(semaphore)


async def test_bug_15_what_is_in_use_is_counted_from_the_holders(
    kind: Kind, client_a: Redis, admin: Redis
) -> None:
    """If they vanish, their weights do."""
    semaphore = kind(client_a, "jobs", 4)
    permits = [await semaphore.acquire(permits=n) for n in (1, 2)]
    assert await semaphore.available() == 1
    assert await admin.delete(key_of(semaphore, "holders")) == 1
    assert await semaphore.available() == 4
    async with semaphore.acquire(permits=4, timeout=2):
        assert await semaphore.available() == 0
        assert not any([await permit.release() for permit in permits])
    assert await semaphore.available() == 4
    assert not await tokens_of(admin, semaphore)


async def use(semaphore: AnySemaphore, there: AnySemaphore) -> None:
    """Every call, with a waiter in another process and one that is cancelled."""
    permit = await semaphore.acquire(permits=2)
    waiter = await waits_in_queue(there)
    leaving = in_background(semaphore.acquire())
    await asyncio.sleep(0.01)
    await cancelled(leaving)
    await permit.refresh()
    assert await permit.release()
    adopted = await semaphore.adopt(await (await waiter).detach(0.5))
    await adopted.detach(0.5)
    await semaphore.reap()


async def test_bug_16_every_key_is_declared_and_in_the_slot_of_its_name(
    kind: Kind, proxied: Redis, proxy: Proxy, admin: Redis, client_b: Redis
) -> None:
    """A cluster refuses the rest, and one slot for all names is one shard for all."""
    slots = {}
    declared: set[bytes] = set()
    for name in ("jobs", "mails"):
        already = len(proxy.sent)
        await use(kind(proxied, name, 2), kind(client_b, name, 2))
        await kind(proxied, name, 2).set_limit(2)
        scripts = [s for s in proxy.sent[already:] if s.arguments[0] in (b"EVAL", b"EVALSHA")]
        keys = {key for s in scripts for key in s.arguments[3 : 3 + int(s.arguments[2])]}
        declared |= keys
        [slots[name]] = {key_slot(key) for key in keys}
    assert slots["jobs"] != slots["mails"]
    assert set(await admin.keys("*")) <= declared


async def test_bug_17_a_name_that_is_done_with_leaves_no_key(
    kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Names may be made by the million: each key has an expiry, whatever was done."""
    semaphores = [kind(client_a, f"tenant-{n}", 2, lease=2.0 * (1 + n)) for n in range(5)]
    for semaphore in semaphores:
        await use(semaphore, kind(client_b, semaphore.name, 2, lease=5.0))
    await semaphores[-1].set_limit(3)
    await semaphores[-1].delete()
    await semaphores[0].set_limit(3)
    forever = [key for key in await admin.keys("*") if not 0 < await admin.ttl(key) < 600]
    limit = key_of(semaphores[0], "limit")
    assert forever == [limit.encode()]
    await semaphores[0].set_limit(None)
    assert not await admin.exists(limit)
