"""Real processes that crash, stop, stall and fork: the semaphore outlives them all."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, QueueFull, Semaphore, SemaphoreFull
from tests.harness.children import StartWorker
from tests.harness.clients import Kind, key_of
from tests.harness.memory import Distant
from tests.harness.proxy import Proxy
from tests.harness.wait import (
    all_free,
    give_back,
    in_background,
    queue_up,
    until,
    waiting,
    waits_in_queue,
)
from tests.worlds.simulated_time import simulated

# -- holders


@pytest.mark.fault(1)
async def test_a_killed_holder_is_in_the_way_for_a_lease_at_most(
    client_a: Redis, start: StartWorker
) -> None:
    """Nothing releases after kill -9; the next is granted when the lease ends."""
    semaphore = FairSemaphore(client_a, "jobs", 1, lease=1.0)
    holder = await start("hold", kind=FairSemaphore, lease=1.0)
    await holder.heard("held")
    waiter = await waits_in_queue(semaphore)
    await holder.kill()
    await give_back(waiter)


@pytest.mark.fault(1)
@pytest.mark.parametrize(("killed", "own"), [(2, False), (1, False), (1, True)])
@pytest.mark.parametrize("kind", [Semaphore, FairSemaphore])
@simulated
async def test_no_retry_is_advised_before_a_killed_process_loses_all_permits(
    kind: Kind, killed: int, own: bool
) -> None:
    """The 50 ms for which they are usually held say nothing then, unless another is released."""
    dead = Distant()
    lives, other = (kind(dead.peer(), "jobs", 2, lease=9.0, max_waiters=1) for _ in range(2))
    async with lives:
        await asyncio.sleep(0.05)
    held = [await kind(dead, "jobs", 2, lease=9.0).acquire() for _ in range(killed)]
    dead.cut_off()
    await asyncio.sleep(5.0)
    for _ in range(killed, 2):
        if not own:
            await give_back(await lives.acquire())
        held.append(await (lives if own else other).acquire())
    with pytest.raises(SemaphoreFull) as full:
        await lives.acquire(timeout=0)
    later = [full.value.retry_after]
    waiter = await queue_up(lives, timeout=0.5)
    for attempt in (lives.acquire(timeout=0), lives.acquire(), waiter):
        with pytest.raises(SemaphoreFull) as full:
            await attempt
        later.append(full.value.retry_after)
    assert all(3.4 < each < 4.1 if killed == 2 else each < 0.2 for each in later), later
    await give_back(*held[killed:])


@pytest.mark.fault(2)
async def test_a_short_stop_costs_nothing(client_a: Redis, start: StartWorker) -> None:
    """A process that is stopped for less than lease and refresh leave keeps its permit."""
    holder = await start("hold", kind=FairSemaphore, lease=4.0, refresh_interval=0.4)
    held = await holder.heard("held")
    semaphore = FairSemaphore(client_a, "jobs", 1, lease=4.0)
    holder.stop()
    await asyncio.sleep(1.0)
    holder.resume()

    async def refreshed() -> bool:
        [entry] = (await semaphore.status()).holders
        return entry.id == held["id"] and entry.expires_in > 3.5

    await until(refreshed, "it is refreshed as before")


@pytest.mark.fault(3)
async def test_a_long_stop_cancels_the_body_before_it_goes_on(
    client_a: Redis, start: StartWorker
) -> None:
    """Another process holds the permit when this one wakes up: the body takes no step more."""
    lease, interval = 0.9, 0.3
    holder = await start("hold", kind=FairSemaphore, lease=lease, refresh_interval=interval)
    held = await holder.heard("held")
    await asyncio.sleep(interval + 0.02)
    holder.stop()
    successor = await FairSemaphore(client_a, "jobs", 1, lease=30.0).acquire(timeout=5)
    holder.resume()
    cancelled = await holder.heard("cancelled")
    assert cancelled["lost"]
    assert cancelled["expires_in"] <= 0
    assert "the event loop was blocked for" in (await holder.heard("lost"))["reason"]
    assert successor.fencing_token > held["token"]
    assert await holder.ended() == 0
    assert not successor.lost
    assert await successor.release(), "the late one released its successor's permit"


@pytest.mark.fault(4)
async def test_a_blocked_loop_cancels_the_body_before_it_goes_on(
    client_a: Redis, start: StartWorker
) -> None:
    """A loop that is blocked refreshes nothing: it is as good as stopped."""
    holder = await start(
        "block", kind=FairSemaphore, lease=1.8, refresh_interval=0.6, after=0.02, blocked=2.5
    )
    held = await holder.heard("held")
    successor = await FairSemaphore(client_a, "jobs", 1, lease=30.0).acquire(timeout=5)
    assert (await holder.heard("cancelled"))["lost"]
    assert "the event loop was blocked for 2." in (await holder.heard("lost"))["reason"]
    assert successor.fencing_token > held["token"]
    assert await successor.release()


@pytest.mark.timing
@pytest.mark.fault(5)
async def test_a_body_that_never_awaits_can_ask(client_a: Redis, start: StartWorker) -> None:
    """It cannot be cancelled, but `check` raises, before the server lets go."""
    holder = await start("compute", kind=FairSemaphore, lease=0.6, seconds=6.0)
    held = await holder.heard("held")
    computed = await holder.heard("computed")
    assert computed["lost"]
    assert 0.4 < computed["at"] - held["at"] <= 0.6
    await holder.heard("lost")
    assert await holder.ended() == 0
    await all_free(FairSemaphore(client_a, "jobs", 1))


# -- waiters


@pytest.mark.fault(19)
@pytest.mark.parametrize("killed", [1, 3])
async def test_requests_of_killed_processes_are_passed_over(
    client_a: Redis, start: StartWorker, killed: int
) -> None:
    """A permit handed to one of them would lie idle for a lease."""
    semaphore = FairSemaphore(client_a, "jobs", 1, lease=10.0)
    holder = await semaphore.acquire()
    workers = [await start("wait", kind=FairSemaphore, lease=10.0) for _ in range(killed)]
    for worker in workers:
        await worker.heard("waits")
    next_alive = await queue_up(semaphore)
    for worker in workers:
        await worker.kill(client_a)
    await give_back(holder, next_alive)


# -- forks


@pytest.mark.fault(8)
async def test_a_fork_leaves_the_permit_with_the_parent(start: StartWorker, proxy: Proxy) -> None:
    """The child has a copy of everything; it neither uses it nor spoils it, nor by dropping it."""
    parent = await start("fork", kind=FairSemaphore, limit=2, url=proxy.url)
    held = await parent.heard("held")
    child = await parent.heard("child")
    ended = await parent.heard("child ended")
    inherited = proxy.operations("acquire")[0].connection
    before = [sent.operation for sent in proxy.sent if sent.connection == inherited]

    assert ended["status"] == 0
    assert child["lost"]
    assert "fork" in child["checked"]
    assert child["released"] in ("False", "RuntimeError")
    assert child["id"], "the child could not acquire a permit of its own"
    assert child["id"].partition(".")[0] != held["id"].partition(".")[0]
    assert not proxy.connections[inherited].closed, "the child closed the parent's connection"
    # All that came over the parent's connection is the parent's own, from before the fork.
    assert before.count("acquire") == 1
    assert not {"release", "abandon"} & {*before}

    parent.go_on()
    assert not (await parent.heard("refreshed"))["lost"]
    assert (await parent.heard("released"))["held"], "the child released it"
    assert await parent.ended() == 0
    assert proxy.operations("release")[-1].connection == inherited


@pytest.mark.fault(8)
async def test_a_semaphore_at_module_level_survives_forks(
    client_a: Redis, start: StartWorker
) -> None:
    """Ids drawn before the fork would be the same in both children."""
    parent = await start("fork_twice", kind=FairSemaphore)
    held: list[dict[str, Any]] = []
    while said := await parent.next():
        if said["event"] == "held":
            held.append(said)
        else:
            assert (said["event"], said["status"]) == ("child ended", 0)
    assert await parent.ended() == 0
    assert len(held) == len({each["id"] for each in held}) == 4
    assert len({each["pid"] for each in held}) == 3
    assert len({each["id"].partition(".")[0] for each in held[:3]}) == 3
    await all_free(FairSemaphore(client_a, "jobs", 1))


# -- many waiters of a process that is killed

Options = dict[str, Any]
KEYED: Options = {"key_limit": 1}
CROWDS: list[tuple[Options, Options]] = [({}, {}), (KEYED | {"share": True}, {"key": "a"})]
MANY = 1500  # more than a few calls of a script look at


@pytest.mark.fault(19)
@pytest.mark.parametrize(("options", "key"), CROWDS)
@simulated
async def test_no_request_is_refused_because_of_killed_waiters(
    options: Options, key: Options
) -> None:
    """The permit is free: a newcomer gets it, although very many of the dead stand in line."""
    dead = Distant()
    bounds: Options = {"max_waiters": 5} | ({"max_waiters_per_key": 5} if options else {})
    semaphore = FairSemaphore(dead.peer(), "jobs", 1, lease=30.0, **options, **bounds)
    held = await semaphore.acquire(**key)
    await crowd(FairSemaphore(dead, "jobs", 1, lease=30.0, **options), key)
    with pytest.raises(QueueFull):
        await semaphore.acquire(**key)
    dead.cut_off()
    # Both travel in one write, so that the dead are still in line when the second arrives.
    released = in_background(held.release())
    await asyncio.sleep(0)
    async with semaphore.acquire(timeout=5.0, **key):
        assert await released
        status = await semaphore.status()
        assert (status.waiting, status.waiters) == (0, ())
        assert [each.waiting for each in status.keys] == [0] * bool(options)
        waiters = [await queue_up(semaphore, **key) for _ in range(5)]
        with pytest.raises(QueueFull) as full:
            await semaphore.acquire(**key)
        assert full.value.retry_after < 60, "by who waits, and not by the dead"
    await asyncio.gather(*map(give_back, waiters))


async def crowd(semaphore: AnySemaphore, key: Options) -> None:
    """Many requests wait."""
    _ = [in_background(semaphore.acquire(**key)) for _ in range(MANY)]
    await waiting(semaphore, MANY, or_more=True)


@pytest.mark.fault(19)
@pytest.mark.parametrize(
    ("kind", "options", "key"), [(Semaphore, {}, {}), *((FairSemaphore, *each) for each in CROWDS)]
)
@simulated
async def test_killed_waiters_count_until_their_process_counts_as_dead(
    kind: Kind, options: Options, key: Options
) -> None:
    """No permit becomes free meanwhile, and who is first in line lives."""
    dead = Distant()
    semaphore = kind(dead.peer(), "jobs", 1, lease=1.0, **options)
    held = await semaphore.acquire(**key)
    first = await queue_up(semaphore, **key)
    await crowd(kind(dead, "jobs", 1, lease=1.0, **options), key)
    dead.cut_off()
    await asyncio.sleep(3.75)
    status = await semaphore.status()
    assert (status.held, status.waiting, len(status.waiters)) == (1, 1, 1)
    assert [each.waiting for each in status.keys] == [1] * len(status.keys)
    assert (status.retry_after or 0.0) < 100.0, "by who waits, and not by the dead"
    bounded = kind(dead.peer(), "jobs", 1, lease=1.0, max_waiters=2, **options)
    waiter = await queue_up(bounded, **key)
    with pytest.raises(QueueFull):
        await bounded.acquire(**key)
    await asyncio.sleep(1.0)
    redis = dead._store.redis
    assert redis.command("ZCARD", key_of(semaphore, "queue")) == 2, "they are dropped"
    await give_back(held, first, waiter)
