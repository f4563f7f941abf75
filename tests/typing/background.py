"""Background work as type checkers see it. Checked, never run."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, assert_type

from redsem_async import AnySemaphore, SemaphoreGroup
from redsem_async.throttle import ThrottledTaskGroup, throttled, throttled_map


async def length(text: str, /, *, twice: bool = False) -> int:
    return len(text) * (1 + twice)


def tenant_of(text: str, /, *, twice: bool = False) -> str:
    return text


def cost_of(text: str, /, *, twice: bool = False) -> dict[str, int]:
    return {"tokens": len(text)}


async def functions(sem: AnySemaphore, group: SemaphoreGroup) -> None:
    """Signatures are kept: whatever the function does not take is an error."""
    guarded = throttled(sem, timeout=1)(length)
    assert_type(await guarded("a", twice=True), int)
    takes_text: Callable[[str], Coroutine[Any, Any, int]] = guarded
    assert_type(await takes_text("a"), int)
    _ = guarded(1)  # type: ignore[arg-type]
    costly = throttled(sem, cost=cost_of)(length)
    assert_type(await costly("a"), int)
    by_tenant = throttled(group, key=tenant_of, permits=2)(length)
    assert_type(await by_tenant("a"), int)


async def tasks(sem: AnySemaphore, group: SemaphoreGroup) -> None:
    """A task has the type of what its coroutine returns."""
    async with ThrottledTaskGroup(sem) as those, ThrottledTaskGroup(group) as keyed:
        first = those.create_task(length("a"), name="a")
        second = keyed.create_task(length("a"), key="acme")
    assert_type((first, second), tuple[asyncio.Task[int], asyncio.Task[int]])


async def maps(sem: AnySemaphore, group: SemaphoreGroup, texts: AsyncIterator[str]) -> None:
    """Items go in as the function takes them, and results come out as it gives them."""
    async with throttled_map(sem, length, ["a", "b"], on_progress=print) as results:
        assert_type(results, AsyncIterator[int])
    async with throttled_map(group, length, texts, key=lambda text: text.upper()) as results:
        async for result in results:
            assert_type(result, int)
    _ = throttled_map(sem, length, [1, 2])  # type: ignore[arg-type]
    _ = throttled_map(sem, length, ["a"], cost=len)
    _ = throttled_map(sem, length, ["a"], cost=str.upper)  # type: ignore[arg-type]
