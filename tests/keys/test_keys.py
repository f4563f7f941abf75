"""One overall limit and one for each key."""

import asyncio
from functools import partial
from typing import Any, Protocol

import pytest

from redsem_async import (
    AcquireTimeout,
    FairSemaphore,
    ModeMismatch,
    Mutex,
    Permit,
    QueueFull,
    Semaphore,
)
from redsem_async.blocking import Portal
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client
from tests.harness.wait import give_back, queue_up, soon, waiting
from tests.worlds.simulated_time import simulated


class MakeKeyed(Protocol):
    def __call__(self, limit: int, **options: Any) -> tuple[FairSemaphore, FairSemaphore]: ...


@pytest.fixture
def keyed(client: Client, other: Client, name: str) -> MakeKeyed:
    """Makes two semaphores with keys that share a name, in two processes."""

    def make(limit: int, **options: Any) -> tuple[FairSemaphore, FairSemaphore]:
        chosen: dict[str, Any] = {"key_limit": 1, **options}
        here, there = (FairSemaphore(each, name, limit, **chosen) for each in (client, other))
        return here, there

    return make


async def hold(semaphore: FairSemaphore, *keys: str | None) -> list[Permit]:
    return [await semaphore.acquire(key=key, timeout=2) for key in keys]


# -- both limits


async def test_a_full_key_holds_up_no_other_key(keyed: MakeKeyed) -> None:
    here, there = keyed(2)
    held = await hold(here, "a")
    waiters = [await queue_up(there, key="a") for _ in range(3)]
    other = [await there.acquire(key="b", timeout=0)]
    await give_back(*held)
    permit = await soon(waiters[0])
    assert not waiters[1].done()
    await permit.release()
    await give_back(*waiters[1:], *other)


@pytest.mark.parametrize(
    ("limit", "heavy_key", "light_key"),
    [(10, "a", "a"), (2, "b", "c"), (2, "b", None)],
    ids=["of its key", "overall", "overall, no key"],
)
async def test_no_request_passes_a_heavier_one_that_waits_for_the_same_limit(
    keyed: MakeKeyed, limit: int, heavy_key: str, light_key: str | None
) -> None:
    """However light it is: the heavy one would starve."""
    here, there = keyed(limit, key_limit=2)
    held = await hold(here, "a")
    heavy = await queue_up(there, key=heavy_key, permits=2)
    light = await queue_up(here, key=light_key)
    assert await there.try_acquire(key=light_key) is None
    await give_back(*held)
    permit = await soon(heavy)
    assert not light.done()
    await give_back(permit, light)


async def test_a_heavy_permit_counts_for_its_key_as_often(keyed: MakeKeyed) -> None:
    here, there = keyed(10, key_limit=5)
    heavy = await here.acquire(key="a", permits=3)
    assert await there.try_acquire(key="a", permits=3) is None
    rest = await there.acquire(key="a", permits=2, timeout=2)
    assert await here.try_acquire(key="a") is None
    await give_back(heavy, rest)


async def test_an_adopted_permit_keeps_its_key(keyed: MakeKeyed) -> None:
    here, there = keyed(10)
    (permit,) = await hold(here, "a")
    adopted = await there.adopt(await permit.detach())
    assert await here.try_acquire(key="a") is None
    waiter = await queue_up(here, key="a")
    await adopted.release()
    await give_back(waiter)


# -- limits of keys


async def test_the_limit_of_a_key_can_be_set(keyed: MakeKeyed) -> None:
    here, there = keyed(10)
    held = await hold(here, "a")
    waiters = [await queue_up(there, key="a") for _ in range(2)]
    await here.set_limit(2, key="a")
    held.append(await soon(waiters[0]))
    assert not waiters[1].done()
    held += await hold(here, "b")
    assert await here.try_acquire(key="b") is None, "only that key"
    await here.set_limit(0, key="a")
    await give_back(*held)
    with pytest.raises(AcquireTimeout) as paused:
        await there.acquire(key="a", timeout=0.2)
    assert paused.value.blocked_by == "key"
    await here.set_limit(None, key="a")
    await give_back(waiters[1])


async def test_the_limit_may_be_a_function_of_the_key(client: Client, name: str) -> None:
    """Its None is no limit, and its error is the caller's."""
    plans = {"small": 1, "big": 2, "none": 0}
    strict = FairSemaphore(client, name, 5, key_limit=plans.__getitem__)
    held = await hold(strict, "big", "big")
    assert await strict.try_acquire(key="big") is None
    assert await strict.try_acquire(key="none") is None
    with pytest.raises(KeyError):
        await strict.acquire(key="unknown")
    lenient = FairSemaphore(client, name, 5, key_limit=plans.get)
    held += await hold(lenient, "small", "unknown", "unknown")
    shown = {key.key: key.limit for key in (await lenient.status()).keys}
    assert shown == {"small": 1, "big": 2, "unknown": None}
    shown = {key.key: key.limit for key in (await strict.status()).keys}
    assert shown == {"small": 1, "big": 2, "unknown": None}, "what cannot be told is None, too"
    await give_back(*held)


@simulated
async def test_who_waits_for_its_key_does_not_count_itself_as_before_it(keyed: MakeKeyed) -> None:
    here, there = keyed(5)
    async with here.acquire(key="a"):
        await asyncio.sleep(1.0)  # the usual hold
    async with here.acquire(key="a"):
        with pytest.raises(AcquireTimeout) as late:
            await there.acquire(key="a", timeout=0.2)
    assert late.value.retry_after == pytest.approx(1.0, abs=0.1)


@simulated
async def test_a_timeout_says_which_limit_was_full(keyed: MakeKeyed) -> None:
    here, there = keyed(2)

    async def blocks(key: str, what: str, says: str) -> None:
        for timeout in (0, 0.2):
            with pytest.raises(AcquireTimeout, match=says or None) as late:
                await there.acquire(key=key, timeout=timeout)
            assert late.value.blocked_by == what

    held = await hold(here, "a")
    await blocks("a", "key", "its key is at its limit")
    held += await hold(here, "b")
    await blocks("c", "limit", "")
    await give_back(*held)
    await here.pause()
    await blocks("c", "paused", "paused")


async def test_the_queue_of_a_key_can_be_bounded(keyed: MakeKeyed) -> None:
    here, there = keyed(10, max_waiters_per_key=2)
    held = await hold(here, "a", "b")
    waiters = [await queue_up(there, key="a") for _ in range(2)]
    with pytest.raises(QueueFull, match="max_waiters_per_key=2"):
        await here.acquire(key="a", timeout=5)
    waiters.append(await queue_up(here, key="b"))
    await give_back(*held, *waiters)


async def test_status_shows_the_use_the_limit_and_the_line_of_each_key(keyed: MakeKeyed) -> None:
    here, there = keyed(10)
    held = await hold(here, "b", "ü:", None)
    waiter = await queue_up(there, key="b")
    await here.set_limit(3, key="c")
    status = await there.status()
    assert [(key.key, key.limit, key.held, key.waiting) for key in status.keys] == [
        ("b", 1, 1, 1),
        ("ü:", 1, 1, 0),
    ]
    assert {holder.key for holder in status.holders} == {"b", "ü:", None}
    assert [waiter.key for waiter in status.waiters] == ["b"]
    assert [key.key for key in (await there.status(1)).keys] == ["b"]
    assert [key.key for key in (await there.status(1, keys_after="b")).keys] == ["ü:"]
    held += await hold(here, "c", "c", "c")
    (shown,) = (await there.status(1)).keys
    assert (shown.key, shown.limit, shown.held, shown.set_limit) == ("c", 3, 3, 3)
    await give_back(*held, waiter)
    assert (await there.status()).keys == ()


async def test_a_request_too_heavy_for_the_lowered_limit_of_its_key_holds_it_up(
    keyed: MakeKeyed,
) -> None:
    """And no other key. It counts as waiting, and keeps its place."""
    here, there = keyed(10, key_limit=4, max_waiters_per_key=2)
    held = await here.acquire(key="a", permits=4)
    heavy, light = [await queue_up(there, key="a", permits=n) for n in (2, 1)]
    await here.set_limit(1, key="a")
    await held.release()
    await give_back(*await hold(here, "b", None))
    with pytest.raises(QueueFull):
        await here.acquire(key="a")
    assert [(key.key, key.waiting) for key in (await here.status()).keys] == [("a", 2)]
    assert not light.done()
    await here.set_limit(2, key="a")
    permit = await soon(heavy)
    assert not light.done()
    await give_back(permit, light)


# -- sharing


async def test_share_gives_to_the_key_with_the_fewest(keyed: MakeKeyed) -> None:
    """A tenant with many requests delays another's single one by no more than one hold."""
    here, there = keyed(2, key_limit=None, share=True)
    held = await hold(here, "greedy", "greedy")
    greedy = [await queue_up(here, key="greedy") for _ in range(10)]
    single = await queue_up(there, key="modest")
    await held[0].release()
    await give_back(single)
    assert sum(waiter.done() for waiter in greedy) <= 1
    await held[1].release()
    await give_back(*greedy)


async def test_share_goes_by_what_is_held_before_whose_turn_it_is(keyed: MakeKeyed) -> None:
    """Also by what is held now, and not by what was held as the request came."""
    here, there = keyed(6, key_limit=None, share=True, patience=3600.0)
    held = await hold(here, "long", "long", "long", "often", None, None)
    await held.pop().release()
    for _ in range(5):  # by turns alone, "long" would come first
        await give_back(*await hold(here, "often"))
    held += await hold(here, None)
    waiters = {key: await queue_up(there, key=key) for key in ("long", "often")}
    await held.pop().release()
    held.append(await soon(waiters.pop("often")))
    waiters["often"] = await queue_up(there, key="often")
    await here.set_limit(0)
    await give_back(*held[:3])  # "long" has none now, and "often" has two
    await here.set_limit(4)
    held[:3] = [await soon(waiters["long"])]
    assert not waiters["often"].done()
    await give_back(*held, waiters["often"])


@pytest.mark.parametrize(("weights", "expected"), [((1, 1), 10), ((3, 1), 15)])
async def test_keys_take_turns_by_their_weights(
    keyed: MakeKeyed, weights: tuple[int, int], expected: int
) -> None:
    """Of 20 grants at a limit of 1, where both have the same use: none."""
    weight = dict(zip(("a", "b"), weights, strict=True)).__getitem__
    here, there = keyed(1, key_limit=None, share=True, weight=weight, patience=3600.0)
    (first,) = await hold(here, "a")
    order: list[str] = []

    async def use(key: str) -> None:
        async with (here if key == "a" else there).acquire(key=key):
            order.append(key)

    async with asyncio.TaskGroup() as group:
        for key in ["a"] * 30 + ["b"] * 30:
            group.create_task(use(key))
        await waiting(here, 60)
        await first.release()
    assert abs(order[:20].count("a") - expected) <= 1, order


@pytest.mark.parametrize(("key", "patient"), [("old", 60.0), (None, 5.0)])
async def test_the_patience_of_each_counts_for_itself(
    client: MemoryBackend, key: str | None, patient: float
) -> None:
    """An older request that can still wait does not stand before one that cannot.

    One without a key has the patience of a lease: it does not go before all tenants at once.
    """
    first, other = (
        FairSemaphore(client, "jobs", 4, share=True, lease=30.0, patience=seconds)
        for seconds in (patient, 5.0)
    )
    held = await hold(first, key, key, "busy", "busy")
    old = await queue_up(first, key=key)
    late = await queue_up(other, key="busy")
    client.advance(6.0)
    idle = await queue_up(other, key="idle")
    for waiter in (late, idle, old):
        await held.pop().release()
        held.insert(0, await soon(waiter))
    await give_back(*held)


@pytest.mark.parametrize(("timeout", "ends"), [(None, 60.0), (0, 60.0), (20.0, 20.0)])
async def test_patience_is_the_timeout_or_six_leases(timeout: float | None, ends: float) -> None:
    """Half a minute of waiting is no rarity, and must not switch `share` off."""
    memory = MemoryBackend()
    semaphore = FairSemaphore(memory, "jobs", 2, share=True, lease=10.0, timeout=timeout)
    for passed, first in ((ends - 1.0, "idle"), (ends + 1.0, "busy")):
        held = await hold(semaphore, "busy", "busy")
        waiters = {"busy": await queue_up(semaphore, key="busy", timeout=None)}
        for _ in range(10):  # each is shorter than a lease, so that holders stay
            memory.advance(passed / 10)
        waiters["idle"] = await queue_up(semaphore, key="idle", timeout=None)
        await held.pop().release()
        held.append(await soon(waiters.pop(first)))
        await give_back(*held, *waiters.values())


@simulated
async def test_patience_is_counted_by_the_server(keyed: MakeKeyed) -> None:
    here, there = keyed(2, key_limit=None, share=True, patience=0.05)
    held = await hold(here, "busy", "busy")
    old = await queue_up(here, key="busy")
    await asyncio.sleep(0.1)  # for as long as its patience lasts
    young = await queue_up(there, key="idle")
    await held[0].release()
    permit = await soon(old)
    assert not young.done()
    await give_back(permit, held[1], young)


# -- names


async def test_clients_without_keys_are_refused(client: Client, name: str) -> None:
    async with FairSemaphore(client, name, 1, key_limit=1).acquire(key="a"):
        for other in (FairSemaphore(client, name, 1), FairSemaphore(client, name, 1, share=True)):
            with pytest.raises(ModeMismatch, match="FairSemaphore with key_limit"):
                await other.acquire(timeout=0, key=None)


@pytest.mark.parametrize("key", ["a:b", "ü€😀", "\0", "%41", "{x}", " ", "x" * 512])
async def test_a_key_may_be_any_text(keyed: MakeKeyed, key: str) -> None:
    here, there = keyed(10)
    held = await hold(here, key)
    assert await there.try_acquire(key=key) is None
    held += await hold(there, f"{key[:-1]}y")
    await give_back(*held)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"key": ""}, ValueError, "key must have 1 to 512 bytes"),
    ({"key": "x" * 513}, ValueError, "key must have 1 to 512 bytes"),
    ({"key": "\ud800"}, ValueError, "key must be text"),
    ({"key": 7}, TypeError, "key must be a str"),
    ({"key": "a", "permits": 2}, ValueError, "at most the key_limit of 1"),
]


@pytest.mark.parametrize(("given", "error", "message"), BAD)
async def test_bad_keys_are_refused(
    client: Client, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    sem = FairSemaphore(client, "jobs", 3, key_limit=1)
    with pytest.raises(error, match=message):
        await sem.acquire(**given)


@pytest.mark.parametrize("options", [{"key_limit": 2}, {"share": True}])
async def test_a_forgotten_key_is_an_error(client: Client, options: dict[str, Any]) -> None:
    """Such a request would pass by the limit of every key, and nobody would see it."""
    sem = FairSemaphore(client, "jobs", 3, **options)
    with Portal(client) as portal:
        blocking = portal.fair("jobs", 3, **options)
        for call in (sem.acquire, sem.try_acquire, sem.__aenter__):
            with pytest.raises(TypeError, match="key=None is for"):
                await call()
        with pytest.raises(TypeError, match="key=None is for"), blocking.acquire():
            pass
    assert not await sem.exists()
    async with sem.acquire(key=None):
        assert (await sem.status()).held == 1


BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"key_limit": -1}, ValueError, "key_limit must be at least 0"),
    ({"key_limit": "1"}, TypeError, "key_limit must be an int"),
    ({"share": 1}, TypeError, "share must be True or False"),
    ({"share": True, "weight": 0}, ValueError, "weight must be finite and above 0"),
    ({"share": True, "weight": float("inf")}, ValueError, "weight must be finite and above 0"),
    ({"share": True, "weight": "1"}, TypeError, "weight must be a number"),
    ({"weight": 2.0}, ValueError, "need share=True"),
    ({"patience": 2.0}, ValueError, "need share=True"),
    ({"share": True, "patience": -1}, ValueError, "patience must be at least 0"),
    ({"max_waiters_per_key": 1}, ValueError, "needs key_limit or share"),
    ({"key_limit": 1, "max_waiters_per_key": -1}, ValueError, "max_waiters_per_key must be"),
]


@pytest.mark.parametrize(("given", "error", "message"), BAD_OPTIONS)
def test_bad_options_for_keys_are_refused(
    client: Client, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        FairSemaphore(client, "jobs", 3, **given)


@pytest.mark.parametrize("kind", [Semaphore, FairSemaphore, Mutex])
async def test_a_key_needs_a_semaphore_with_keys(client: Client, kind: Any) -> None:
    """Without keys it would pass by in silence. None, written out, is no key anywhere."""
    sem = kind(client, "jobs", **({} if kind is Mutex else {"limit": 3}))
    assert not sem.keyed
    for call in (
        *(partial(sem.acquire, key="a"), partial(sem.try_acquire, key="a")),
        *(partial(sem.set_limit, 1, key="a"), partial(sem.back_off, 1.0, key="a")),
        partial(sem.status, keys_after="a"),
    ):
        with pytest.raises(ValueError, match="key_limit= or share=True"):
            await call()
    async with sem.acquire(key=None):
        pass
