"""`slots`: every permit stands for one of the named things, and no two for the same."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import (
    AnySemaphore,
    FairSemaphore,
    ModeMismatch,
    Mutex,
    PermitLost,
    Semaphore,
    SlotsMismatch,
)
from redsem_async.testing import MemoryBackend
from tests.harness.children import StartWorker
from tests.harness.clients import Client, Kind, Make
from tests.harness.wait import all_free, give_back, queue_up, soon
from tests.worlds.simulated_time import simulated

MILLISECOND = 0.001  # the server rounds to it
GPUS = ["cuda:0", "cuda:1", "cuda:2"]

MakeSlotted = Callable[..., tuple[AnySemaphore, AnySemaphore]]


@pytest.fixture
def slotted(client: Client, other: Client) -> MakeSlotted:
    """Makes two semaphores with slots that share a name, in two processes."""

    def make(
        slots: Sequence[str | int] = GPUS, there: Sequence[str | int] | None = None, **options: Any
    ) -> tuple[AnySemaphore, AnySemaphore]:
        here = FairSemaphore(client, "gpu", slots=slots, **options)
        return here, FairSemaphore(other, "gpu", slots=there or slots, **options)

    return make


@pytest.fixture
def loses_facts(client: MemoryBackend) -> Callable[[], None]:
    """Loses what the server knows of slots, as where Redis evicts the key."""

    def lose() -> None:
        assert client._store.redis.command("DEL", "redsem:{gpu}:facts") == 1

    return lose


@pytest.mark.parametrize("slots", [GPUS, [0, 1, 2]], ids=["texts", "numbers"])
async def test_each_permit_has_a_slot_of_its_own(
    slotted: MakeSlotted, make: Make, slots: list[str | int]
) -> None:
    here, there = slotted(slots)
    assert here.limit == 3
    one, two = await here.acquire(), await there.acquire()
    three = await here.acquire()
    assert {one.slot, two.slot, three.slot} == {*slots}
    assert await there.try_acquire() is None
    await two.release()
    again = await here.acquire()
    assert (again.slot, again.slots) == (two.slot, two.slots)
    await give_back(one, three, again)
    async with make(1) as without:
        assert (without.slot, without.slots) == (None, ())


async def test_a_slot_goes_on_with_detach_and_adopt(slotted: MakeSlotted) -> None:
    here, there = slotted()
    first, permit = await here.acquire(), await here.acquire()
    slot, handed_over = permit.slot, await permit.detach()
    await first.release()
    adopted = await there.adopt(handed_over)
    assert adopted.slot == slot
    others = [await here.acquire(), await here.acquire()]
    assert slot not in {other.slot for other in others}
    await give_back(adopted, *others)


# -- lists


async def test_another_list_is_refused_while_the_name_is_in_use(slotted: MakeSlotted) -> None:
    here, there = slotted(["a", "b"], ["b", "a"])
    permit = await here.acquire()
    with pytest.raises(SlotsMismatch, match=r"a, b.* has b, a") as caught:
        await there.acquire(timeout=5)
    assert (caught.value.found, caught.value.wanted) == ("a, b", "b, a")
    assert isinstance(caught.value, ModeMismatch)
    with pytest.raises(SlotsMismatch):
        await there.adopt(await permit.detach())
    await here.release(permit.id)
    async with there as now_it_is_free:
        assert now_it_is_free.slot == "b"


async def test_a_shorter_list_does_not_replace_the_longer(
    slotted: MakeSlotted, client: Client
) -> None:
    """Or a third client could come with slots of another list. None at all are another, too."""
    short, long = slotted(["a"], ["a", "b"])
    first, second = await long.acquire(), await long.acquire()
    assert await short.try_acquire() is None
    with pytest.raises(SlotsMismatch):
        await FairSemaphore(client, "gpu", slots=["a", "c"]).acquire()
    with pytest.raises(ModeMismatch, match="with slots"):
        await FairSemaphore(client, "gpu", 3).acquire()
    handed_over = await second.detach()
    with pytest.raises(SlotsMismatch):
        await short.adopt(handed_over)
    await give_back(first, long.adopt(handed_over))


async def test_any_text_is_a_slot(redis: Redis, name: str) -> None:
    """As Redis keeps it, in its own bytes."""
    names = ["a,b", "a:b", "a+b", "%2C", "ü {x}", "list", "0"]
    semaphore = FairSemaphore(redis, name, slots=names)
    held = [await semaphore.acquire() for _ in names]
    assert [permit.slot for permit in held] == names
    listed = {holder.slots for holder in (await semaphore.status()).holders}
    assert listed == {(each,) for each in names}
    await give_back(*held)


# -- state that is lost, on Redis


@pytest.mark.parametrize("detached", [False, True])
@simulated
async def test_nothing_is_granted_while_the_slots_in_use_are_not_known(
    slotted: MakeSlotted, loses_facts: Callable[[], None], detached: bool
) -> None:
    """A free one cannot be told from one in use. One that is detached is not adopted."""
    here, there = slotted(lease=1.0)
    permit = await here.acquire()
    job = await permit.detach(1.0) if detached else ""
    loses_facts()
    if detached:
        with pytest.raises(PermitLost):
            await there.adopt(job)
    assert await there.try_acquire() is None
    waiter = await queue_up(there)
    async with await waiter as next_one:
        assert next_one.slot in GPUS
    assert asyncio.get_running_loop().time() >= 0.9


@pytest.mark.parametrize("kind", [Semaphore, FairSemaphore], ids=["zset", "fair"])
@simulated
async def test_a_holder_whose_slots_are_lost_is_told_with_its_next_refresh(
    kind: Kind, client: MemoryBackend, loses_facts: Callable[[], None]
) -> None:
    """Another may get the same slot, but not before its lease has ended."""
    here, there = (kind(each, "gpu", slots=GPUS, lease=3.0) for each in (client, client.peer()))
    permit = await here.acquire()
    loses_facts()
    async with asyncio.timeout(1.1):
        lost = await permit.wait_lost()
    assert lost.reason == "the server no longer holds it"
    assert await there.try_acquire() is None
    async with there.acquire(timeout=5) as next_one:
        assert next_one.slot in GPUS


@pytest.mark.parametrize(
    ("slots", "error", "text"),
    [
        ([], ValueError, "1 to 500 strings or ints, not 0"),
        (range(501), ValueError, "1 to 500 strings or ints, not 501"),
        (["a", "a"], ValueError, "duplicate slot 'a'"),
        ([1, "1"], ValueError, "duplicate slot '1'"),
        ([""], ValueError, "a slot must have 1 to 512 bytes"),
        (["x" * 513], ValueError, "a slot must have 1 to 512 bytes"),
        (["\ud800"], ValueError, "UTF-8"),
        ([1.5], TypeError, "a slot must be a str or an int, not float"),
        ([True], TypeError, "a slot must be a str or an int, not bool"),
        *((slots, TypeError, "slots must be a list") for slots in ("abc", b"abc", {"a", "b"}, 3)),
    ],
)
def test_bad_slots_are_refused(slots: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        FairSemaphore(MemoryBackend(), "gpu", slots=slots)
    for kind, options in ((FairSemaphore, {"limit": 3}), (Mutex, {})):
        made: Any = kind
        with pytest.raises(TypeError, match="limit"):
            made(MemoryBackend(), "gpu", slots=GPUS, **options)


# -- killed holders: their slots come back with the lease, and never before


@pytest.mark.fault(1)
async def test_the_slot_of_a_killed_holder_comes_back_with_its_lease(
    client_a: Redis, start: StartWorker
) -> None:
    semaphore = FairSemaphore(client_a, "jobs", slots=GPUS[:2], lease=1.0)
    holder = await start("hold", kind=FairSemaphore, limit=None, slots=GPUS[:2], lease=1.0)
    held = await holder.heard("held")
    own = await semaphore.acquire()
    (before,) = [h for h in (await semaphore.status()).holders if h.id == held["id"]]
    assert {*before.slots, own.slot} == {*GPUS[:2]}
    waiter = await queue_up(semaphore)
    await holder.kill()
    asked = time.monotonic()
    left = [h.expires_in for h in (await semaphore.status()).holders if h.id == held["id"]]
    permit = await soon(waiter)
    assert time.monotonic() >= asked + max(left, default=0.0) - MILLISECOND
    assert permit.slots == before.slots
    await permit.release()
    await own.release()
    await all_free(semaphore)


@pytest.mark.fault(19)
async def test_the_slot_that_a_killed_waiter_did_not_receive_goes_to_the_next(
    client_a: Redis, start: StartWorker
) -> None:
    """The message to it has no subscriber: what it was to get is free again in the same script."""
    options: dict[str, Any] = {"slots": ["a"], "lease": 10.0}
    semaphore = FairSemaphore(client_a, "jobs", **options)
    holder = await semaphore.acquire()
    head = await start("wait", kind=FairSemaphore, limit=None, **options)
    await head.heard("waits")
    waiter = await queue_up(semaphore)
    await head.kill(client_a)
    await holder.release()
    async with await soon(waiter) as permit:
        assert permit.slots == ("a",)
