"""`throttled_map`: results of many calls, a few at a time."""

import asyncio
import itertools
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Any, cast

import pytest

from redsem_async import FairSemaphore, PermitLost, QueueFull, SemaphoreGroup
from redsem_async.testing import MemoryBackend
from redsem_async.throttle import throttled_map
from tests.harness.wait import all_free, soon, until, waiting
from tests.integrations.background.load import Load, echo

pytestmark = pytest.mark.usefixtures("nothing_is_left")


async def endless() -> AsyncIterator[int]:
    for number in itertools.count():
        await asyncio.sleep(0)
        yield number


async def never_ends(number: int) -> int:
    await asyncio.Event().wait()
    return number


async def all_of(results: AsyncIterator[int]) -> list[int]:
    return [result async for result in results]


async def test_a_map_gives_each_result_once_and_as_it_is_ready(sem: FairSemaphore) -> None:
    """A slow call holds up no other result."""
    slow = asyncio.Event()
    load = Load()

    async def double(number: int) -> int:
        async with load:
            await (slow.wait() if number == 0 else asyncio.sleep(0))
            return 2 * number

    async with throttled_map(sem, double, range(20)) as results:
        assert sorted([await anext(results) for _ in range(19)]) == [2 * n for n in range(1, 20)]
        slow.set()
        assert await all_of(results) == [0]
    assert load.most == 2


async def test_progress_counts_what_is_done(sem: FairSemaphore) -> None:
    """With a total where there is one; before the result is given."""
    calls: list[tuple[int, int | None]] = []

    def on_progress(done: int, total: int | None) -> None:
        calls.append((done, total))

    async with throttled_map(sem, echo, range(5), on_progress=on_progress) as results:
        seen = [len(calls) async for _ in results]
    assert calls == [(done, 5) for done in range(1, 6)]
    assert all(done >= number for number, done in enumerate(seen, 1))
    calls.clear()
    async with throttled_map(sem, echo, iter([1, 2]), on_progress=on_progress) as results:
        await all_of(results)
    assert calls == [(1, None), (2, None)]


@pytest.mark.parametrize("taken", range(8))
async def test_a_break_leaves_no_task_behind(sem: FairSemaphore, load: Load, taken: int) -> None:
    closed = False

    async def items() -> AsyncIterator[int]:
        nonlocal closed
        try:
            async for number in endless():
                yield number
        finally:
            await asyncio.sleep(0)
            closed = True

    async with throttled_map(sem, load.job, items()) as results:
        for _ in range(taken):
            await anext(results)
        if taken % 2:
            await asyncio.sleep(0.005)  # until everything stands still for want of a consumer
    assert closed or taken == 0
    assert load.now == 0
    assert await all_of(results) == []


async def test_a_slow_consumer_holds_up_the_map_without_a_permit(sem: FairSemaphore) -> None:
    """Results that nobody takes are few, and hold no permits."""
    pulled = 0

    def items() -> Iterator[int]:
        nonlocal pulled
        while True:
            pulled += 1
            yield pulled

    async with throttled_map(sem, echo, items()) as results:
        await until(lambda: pulled == 4)  # twice the limit
        await all_free(sem)
        assert pulled == 4
        await anext(results)
        await until(lambda: pulled == 5)
        await all_free(sem)
        assert pulled == 5


@pytest.mark.parametrize(
    ("options", "count"), [({}, 2), ({"max_tasks": 5}, 5), ({"permits": 2}, 1)]
)
async def test_no_item_is_taken_too_early(sem: FairSemaphore, options: Any, count: int) -> None:
    """The rest is left for others."""
    pulled: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            pulled.append(number)
            yield number

    async with sem, sem, throttled_map(sem, echo, items(), **options):
        await waiting(sem, count)
        assert len(pulled) == count


async def test_nothing_is_kept_of_endless_items(sem: FairSemaphore) -> None:
    """Neither of an item nor of its result, once that was given."""

    class Large:
        pass

    alive = weakref.WeakSet[Large]()

    async def items() -> AsyncIterator[Large]:
        while True:
            yield made()

    def made() -> Large:
        alive.add(one := Large())
        return one

    async def job(_: Large) -> Large:
        return made()

    async with throttled_map(sem, job, items()) as results:
        for _ in range(300):
            await anext(results)
        assert len(alive) < 20


async def ended_by(error: type[Exception], sem: Any, job: Any, items: Any, **options: Any) -> int:
    """How many results a map gave that ended with *error* alone."""
    taken = 0
    with pytest.RaisesGroup(error):
        async with throttled_map(sem, job, items, **options) as results:
            async for _ in results:
                taken += 1
    return taken


async def test_a_failing_call_ends_the_map_like_a_group(sem: FairSemaphore, load: Load) -> None:
    """The other calls and the consumer are cancelled, and one flat group says why."""

    async def job(number: int) -> int:
        if number == 7:
            raise ZeroDivisionError
        return await load.job(number)

    assert await ended_by(ZeroDivisionError, sem, job, endless()) >= 5
    with pytest.RaisesGroup(KeyError):
        async with throttled_map(sem, load.job, endless()) as results:
            await anext(results)
            raise KeyError
    assert load.now == 0


def broken(at: int) -> Iterator[int]:
    yield from range(at)
    raise ZeroDivisionError


async def broken_async(at: int) -> AsyncIterator[int]:
    for number in broken(at):
        yield number


@pytest.mark.parametrize("at", [0, 1, 5])
@pytest.mark.parametrize("items", [broken, broken_async])
async def test_failing_items_end_it(
    sem: FairSemaphore, items: Callable[[int], Any], at: int
) -> None:
    """Rather than to look like the end of the items."""
    await ended_by(ZeroDivisionError, sem, echo, items(at))


async def test_on_progress_that_fails_and_a_full_queue_end_the_map(backend: MemoryBackend) -> None:
    def fails(done: int, _: object) -> None:
        assert done < 3

    narrow = FairSemaphore(backend, "narrow", 1, max_waiters=0)
    await ended_by(AssertionError, narrow, echo, endless(), max_tasks=1, on_progress=fails)
    async with narrow:
        assert await ended_by(QueueFull, narrow, echo, range(3)) == 0


async def test_a_lost_permit_ends_the_map_and_interrupts_its_consumer(sem: FairSemaphore) -> None:
    """Though it does something else than to wait for a result."""
    with pytest.RaisesGroup(PermitLost):
        async with throttled_map(sem, asyncio.sleep, [5, 5, 5]):
            await until(sem.locked)
            assert await sem.release((await sem.status()).holders[0].id)
            await asyncio.Event().wait()


async def test_a_call_that_ends_as_cancelled_has_no_result(sem: FairSemaphore) -> None:
    """As in a task group, the others go on."""

    async def job(number: int) -> int:
        if number % 2:
            raise asyncio.CancelledError
        return number

    async with throttled_map(sem, job, range(40)) as results:
        assert await all_of(results) == list(range(0, 40, 2))


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_a_cancelled_map_is_cancelled_and_no_more(sem: FairSemaphore, turns: int) -> None:
    async def run() -> None:
        async with throttled_map(sem, echo, endless()) as results:
            async for _ in results:
                await asyncio.sleep(0)

    task = asyncio.create_task(run())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)


async def test_a_generator_that_swallows_its_cancellation_is_over(sem: FairSemaphore) -> None:
    """And must not keep the map for ever."""
    began: list[int] = []

    async def stubborn() -> AsyncIterator[int]:
        for number in itertools.count():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(5 if number == 3 else 0)
            yield number

    async def job(number: int) -> int:
        began.append(number)
        return number

    async with asyncio.timeout(2), throttled_map(sem, job, stubborn()) as results:
        for _ in range(3):
            await anext(results)
    assert began == [0, 1, 2]


async def test_items_that_end_as_cancelled_are_a_failure(sem: FairSemaphore) -> None:
    """Somebody else cancelled what the generator awaits: that is no end of the items."""

    async def pages() -> AsyncIterator[int]:
        yield 1
        page = asyncio.ensure_future(asyncio.Event().wait())
        page.cancel()
        await page
        yield 2

    assert await ended_by(RuntimeError, sem, echo, pages()) <= 1


async def test_several_consumers_share_the_results(sem: FairSemaphore) -> None:
    """And one in another task learns that the map is over."""
    async with throttled_map(sem, echo, range(30)) as results, asyncio.TaskGroup() as consumers:
        tasks = [consumers.create_task(all_of(results)) for _ in range(3)]
    assert sorted(itertools.chain(*(task.result() for task in tasks))) == list(range(30))
    async with throttled_map(sem, never_ends, [1]) as never:
        consumer = asyncio.create_task(all_of(never))
        await asyncio.sleep(0)
    assert await soon(consumer) == []


async def test_consumers_learn_of_a_failure_before_the_block_is_left(sem: FairSemaphore) -> None:
    """The clean-up of the block may wait for them."""

    async def fail(item: int) -> int:
        raise ValueError(item)

    taken: list[list[int]] = []
    with pytest.RaisesGroup(*[ValueError] * 2):
        async with asyncio.timeout(5), throttled_map(sem, fail, range(5)) as results:
            consumers = [asyncio.create_task(all_of(results)) for _ in range(2)]
            try:
                await asyncio.Event().wait()
            finally:
                taken = await asyncio.gather(*consumers)
    assert taken == [[], []]


async def test_a_generator_around_a_map_may_be_closed(sem: FairSemaphore) -> None:
    """As when the client of a streamed response leaves: that is no error."""

    async def stream() -> AsyncGenerator[int]:
        async with throttled_map(sem, echo, itertools.count()) as results:
            async for result in results:
                yield result

    async with aclosing(stream()) as results:
        async for result in results:
            if result > 5:
                break


async def test_a_map_may_choose_from_a_group_of_semaphores(backend: MemoryBackend) -> None:
    """A busy key does not hold up the others."""
    group = SemaphoreGroup(backend, "domain", 1)
    inside = {"a": Load(), "b": Load()}

    async def job(key: str) -> str:
        await inside[key].job()
        return key

    async with throttled_map(group, job, "a" * 10 + "b" * 2, key=str) as results:
        order = [result async for result in results]
    assert (inside["a"].most, inside["b"].most) == (1, 1)
    assert order[-1] == "a" != order[1]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"items": 3}, TypeError, "iterable or async iterable"),
        ({"fn": None}, TypeError, "fn must be an async function"),
        ({"on_progress": 5}, TypeError, "on_progress must be a function"),
        ({"on_progress": echo}, TypeError, "coroutine function"),
        ({"max_tasks": 0}, ValueError, "max_tasks must be at least 1"),
        ({"max_tasks": True}, TypeError, "max_tasks must be an int"),
    ],
)
async def test_a_map_checks_its_arguments(
    sem: FairSemaphore, arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        cast("Any", throttled_map)(sem, **{"fn": echo, "items": [], **arguments})


async def test_it_is_a_block_and_no_iterable(sem: FairSemaphore) -> None:
    """The error says what to write."""
    results: Any = throttled_map(sem, asyncio.sleep, [0])
    with pytest.raises(TypeError, match="async with throttled_map"):
        async for _ in results:
            pass
    with pytest.raises(TypeError, match="async with throttled_map"):
        await results
