"""`slots`: every permit stands for one of the named things, and no two for the same."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import (
    AcquireTimeout,
    AnySemaphore,
    FairSemaphore,
    ModeMismatch,
    Mutex,
    PermitLost,
    SlotsMismatch,
)
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client, Kind, key_of
from tests.harness.wait import (
    NOISE,
    all_free,
    give_back,
    queue_up,
    soon,
)

GPUS = ["cuda:0", "cuda:1", "cuda:2"]

MakeSlotted = Callable[..., tuple[AnySemaphore, AnySemaphore]]


@pytest.fixture
def slotted(kind: Kind, client: Client, other: Client, name: str) -> MakeSlotted:
    """Makes two semaphores with slots that share a name, in two processes."""
    return slotted_pairs(kind, name, client, other)


@pytest.fixture
def on_own_server(kind: Kind, client_a: Redis, client_b: Redis) -> MakeSlotted:
    """The same, on a server that the test may spoil."""
    return slotted_pairs(kind, "gpu", client_a, client_b)


def slotted_pairs(kind: Kind, name: str, client: Client, other: Client) -> MakeSlotted:
    def make(
        slots: Sequence[str | int] = GPUS, there: Sequence[str | int] | None = None, **options: Any
    ) -> tuple[AnySemaphore, AnySemaphore]:
        here = kind(client, name, slots=slots, **options)
        return here, kind(other, name, slots=there or slots, **options)

    return make


async def test_each_permit_has_a_slot_of_its_own(slotted: MakeSlotted) -> None:
    here, there = slotted()
    assert here.limit == 3
    one, two = await here.acquire(), await there.acquire()
    three = await here.acquire()
    assert {one.slot, two.slot, three.slot} == {*GPUS}
    assert await there.try_acquire() is None
    free = two.slot
    await two.release()
    again = await here.acquire()
    assert again.slot == free
    assert again.slots == (free,)
    await give_back(one, three, again)
    await all_free(here)


async def test_a_permit_for_several_has_several(slotted: MakeSlotted) -> None:
    """And status tells which."""
    here, there = slotted()
    two, one = await here.acquire(permits=2), await there.acquire()
    assert len(two.slots) == 2
    assert {*two.slots, *one.slots} == {*GPUS}
    assert two.slot == two.slots[0]
    for status in (await here.status(), await there.status()):
        found = {holder.id: holder.slots for holder in status.holders}
        assert found == {two.id: two.slots, one.id: one.slots}
    await give_back(two, one)


async def test_retry_after_goes_by_the_slots_under_a_higher_limit(slotted: MakeSlotted) -> None:
    here, _ = slotted(["gpu"])
    await here.set_limit(100)
    async with here:
        await asyncio.sleep(0.05)  # how long it is usually held
    async with here:
        with pytest.raises(AcquireTimeout) as caught:
            await here.acquire(timeout=0)
    assert caught.value.retry_after > 0.04


async def test_a_waiter_gets_the_slot_that_is_given_back(slotted: MakeSlotted) -> None:
    """Whether the reply to its own process says so, or a push message."""
    here, there = slotted(["a", "b"])
    held = [await here.acquire(), await here.acquire()]
    for waits_at in (there, here):
        waiter = await queue_up(waits_at)
        slot = held[0].slot
        await held.pop(0).release()
        held.append(await soon(waiter))
        assert held[-1].slot == slot
    await give_back(*held)
    await all_free(here)


@pytest.mark.parametrize(
    ("options", "slots"),
    [({"slots": range(8)}, (0,)), ({"limit": 1}, ())],
    ids=["numbers", "none"],
)
async def test_slots_are_numbers_where_numbers_are_given_and_none_without(
    client: Client, kind: Kind, name: str, options: dict[str, Any], slots: tuple[int, ...]
) -> None:
    async with kind(client, name, **options) as permit:
        assert permit.slots == slots
        assert permit.slot == next(iter(slots), None)
        assert not isinstance(permit.slot, str)


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


async def test_a_lost_permit_frees_its_slot(slotted: MakeSlotted) -> None:
    here, there = slotted(["a", "b"])
    keeper = await here.acquire()
    permit = await there.acquire()
    with pytest.raises(PermitLost):
        async with permit:
            assert await here.release(permit.id)
            await asyncio.sleep(30)
    again = await here.acquire()
    assert again.slot == permit.slot != keeper.slot
    await give_back(again, keeper)


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


async def test_one_list_may_be_the_beginning_of_the_other(slotted: MakeSlotted) -> None:
    """As when a deployment adds a device: a request gets slots of its own list."""
    short, long = slotted(["a", "b"], ["a", "b", "c"])
    first, second = await short.acquire(), await long.acquire()
    assert await short.try_acquire() is None, "two of two are in use, of the short list"
    third = await long.acquire()
    assert (first.slot, second.slot, third.slot) == ("a", "b", "c")
    await first.release()
    assert await short.try_acquire() is None, "by its own limit"
    await give_back(second, third)
    await all_free(long)


async def test_a_shorter_list_does_not_replace_the_longer(
    slotted: MakeSlotted, kind: Kind, client: Client, name: str
) -> None:
    """Or a third client could come with slots of another list."""
    short, long = slotted(["a"], ["a", "b"])
    async with long:
        assert await short.try_acquire() is None
        with pytest.raises(SlotsMismatch):
            await kind(client, name, slots=["a", "c"]).acquire(timeout=5)


async def test_a_slot_beyond_the_own_list_cannot_be_adopted(slotted: MakeSlotted) -> None:
    short, long = slotted(["a"], ["a", "b"])
    first, second = await long.acquire(), await long.acquire()
    handed_over = await second.detach()
    with pytest.raises(SlotsMismatch):
        await short.adopt(handed_over)
    adopted = await long.adopt(handed_over)
    assert adopted.slot == "b"
    await give_back(adopted, first)


async def test_a_set_limit_says_how_many_and_never_which(slotted: MakeSlotted) -> None:
    here, there = slotted()
    await here.set_limit(1)
    async with there:
        assert await here.try_acquire() is None
    await here.set_limit(30)
    assert (await there.status()).limit == 3
    held = [await here.acquire() for _ in GPUS]
    assert {permit.slot for permit in held} == {*GPUS}
    assert await there.try_acquire() is None
    await give_back(*held)


async def test_a_client_without_slots_is_refused(
    slotted: MakeSlotted, kind: Kind, client: Client, name: str
) -> None:
    here, _ = slotted()
    async with here:
        with pytest.raises(ModeMismatch, match="with slots"):
            await kind(client, name, 3).acquire(timeout=5)


def test_limit_and_slots_exclude_each_other(kind: Kind) -> None:
    with pytest.raises(TypeError, match="not both"):
        kind(MemoryBackend(), "gpu", 3, slots=GPUS)
    with pytest.raises(TypeError, match="limit"):
        Mutex(MemoryBackend(), "gpu", slots=GPUS)


async def test_any_text_is_a_slot(client: Client, kind: Kind, name: str) -> None:
    names = ["a,b", "a:b", "a+b", "%2C", "ü {x}", "list", "0"]
    semaphore = kind(client, name, slots=names)
    held = [await semaphore.acquire() for _ in names]
    assert [permit.slot for permit in held] == names
    listed = {holder.slots for holder in (await semaphore.status()).holders}
    assert listed == {(each,) for each in names}
    await give_back(*held)


# -- with other options


async def test_slots_go_with_keys(client: Client, other: Client, name: str) -> None:
    """Whose turn it is goes by the keys; what a permit has goes by the slots."""
    options: dict[str, Any] = {"slots": GPUS, "key_limit": 2, "share": True}
    here, there = (FairSemaphore(each, name, **options) for each in (client, other))
    held = [await here.acquire(key="a"), await here.acquire(key="a")]
    assert await there.try_acquire(key="a") is None
    held.append(await there.acquire(key="b"))
    assert {permit.slot for permit in held} == {*GPUS}
    assert {h.key for h in (await here.status()).holders if h.slots} == {"a", "b"}
    waiter = await queue_up(there, key="c")
    slot = held[0].slot
    await held.pop(0).release()
    held.append(await soon(waiter))
    assert held[-1].slot == slot
    await give_back(*held)


async def test_random_use_gives_no_slot_twice(slotted: MakeSlotted) -> None:
    """Tasks of two processes, with cancellations, revocations and permits for several."""
    here, there = slotted(range(5), lease=5.0)
    chosen = random.Random(7)
    users: Counter[int | str] = Counter()
    used: Counter[int | str] = Counter()

    async def work(semaphore: AnySemaphore) -> None:
        for _ in range(12):
            try:
                permits = chosen.choice((1, 1, 1, 2, 3))
                async with semaphore.acquire(permits=permits, timeout=chosen.random()) as permit:
                    assert len(permit.slots) == permits
                    users.update(permit.slots)
                    used.update(permit.slots)
                    assert max(users.values()) == 1, users
                    await asyncio.sleep(0)
                    users.subtract(permit.slots)
            except AcquireTimeout:
                pass

    async with asyncio.TaskGroup() as tasks:
        for number in range(12):
            tasks.create_task(work(here if number % 2 else there))
    assert {*used} == {*range(5)}
    await all_free(here)


# -- state that is lost, on Redis


async def test_nothing_is_granted_while_the_slots_in_use_are_not_known(
    on_own_server: MakeSlotted, admin: Redis
) -> None:
    """Evicted by Redis, for example: a free one cannot be told from one in use."""
    here, there = on_own_server(lease=1.0)
    async with here.acquire() as permit:
        assert await admin.delete(key_of(here, "facts")) == 1
        assert await there.try_acquire() is None
        waiter = await queue_up(there)
        assert not permit.lost
    async with await soon(waiter) as next_one:
        assert next_one.slot in GPUS


async def test_a_holder_whose_slots_are_lost_is_told_with_its_next_refresh(
    on_own_server: MakeSlotted, admin: Redis
) -> None:
    """Another may get the same slot, but not before its lease has ended."""
    here, there = on_own_server(lease=1.0)
    permit = await here.acquire()
    assert await admin.delete(key_of(here, "facts")) == 1
    lost = await soon(permit.wait_lost(), 1.0 / 3 + NOISE)
    assert lost.reason == "the server no longer holds it"
    assert await there.try_acquire() is None
    async with there.acquire(timeout=5) as next_one:
        assert next_one.slot in GPUS


@pytest.mark.parametrize("each", [1, 2])
async def test_slots_of_many_that_expired_at_once_are_given_again(
    client: Client, name: str, each: int
) -> None:
    """More of them than one call removes."""
    sem = FairSemaphore(client, name, slots=range(80 * each), key_limit=80 * each)
    permits = [await sem.acquire(key="a", permits=each) for _ in range(80)]
    await asyncio.gather(*(permit.detach(0.8) for permit in permits))
    await asyncio.sleep(1.0)
    async with sem.acquire(permits=60 * each, timeout=5, key=None) as permit:
        assert set(permit.slots) <= set(range(80 * each))
        assert len(set(permit.slots)) == 60 * each
        assert (await sem.status()).held == 60 * each


async def test_a_permit_whose_slot_is_not_known_is_not_adopted(
    on_own_server: MakeSlotted, admin: Redis
) -> None:
    """Its adopter would have none, and another permit would get the slot."""
    here, there = on_own_server(lease=1.0)
    job = await (await here.acquire()).detach(1.0)
    assert await admin.delete(key_of(here, "facts")) == 1
    with pytest.raises(PermitLost):
        await there.adopt(job)
    assert await there.try_acquire() is None
    async with there.acquire(timeout=5) as permit:  # once it has expired
        assert permit.slot in GPUS


async def test_slots_of_evicted_holders_are_free(on_own_server: MakeSlotted, admin: Redis) -> None:
    here, there = on_own_server(["a", "b"])
    permits = [await here.acquire(), await here.acquire()]
    assert await admin.delete(key_of(here, "holders")) == 1
    async with there.acquire(permits=2, timeout=5) as both:
        assert both.slots == ("a", "b")
        assert await admin.hkeys(key_of(here, "facts")) == [both.id.encode()]
    for permit in permits:
        assert not await permit.release()


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
        ("abc", TypeError, "slots must be a list"),
        (b"abc", TypeError, "slots must be a list"),
        ({"a", "b"}, TypeError, "slots must be a list"),
        (3, TypeError, "slots must be a list"),
    ],
)
def test_bad_slots_are_refused(kind: Kind, slots: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kind(MemoryBackend(), "gpu", slots=slots)
