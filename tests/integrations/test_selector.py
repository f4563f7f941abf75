"""What every decorator, middleware and transport says of its semaphore and its key."""

from typing import Any

import pytest
from fastapi import FastAPI

import redsem_async.httpx
import redsem_async.httpx2
from redsem_async import FairSemaphore, SemaphoreGroup
from redsem_async.asgi import ConcurrencyLimitMiddleware
from redsem_async.fastapi import RequirePermit
from redsem_async.pydantic_ai import SemaphoreLimiter
from redsem_async.taskiq import SemaphoreMiddleware
from redsem_async.testing import MemoryBackend
from redsem_async.throttle import ThrottledTaskGroup, throttled, throttled_map


async def job(*_: object) -> None: ...


def map_nothing(source: Any, **options: Any) -> object:
    return throttled_map(source, job, list[int](), **options)


def middleware(source: Any, **options: Any) -> object:
    return ConcurrencyLimitMiddleware(FastAPI(), source, **options)


NEED_A_KEY = [throttled, map_nothing, SemaphoreMiddleware, middleware, RequirePermit]
# A group has a semaphore for each host here, or for each model.
HAVE_A_KEY = [
    redsem_async.httpx.SemaphoreTransport,
    redsem_async.httpx2.SemaphoreTransport,
    SemaphoreLimiter,
]
# Tasks may have their keys one by one.
MAKERS: list[Any] = [*NEED_A_KEY, *HAVE_A_KEY, ThrottledTaskGroup]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("grouped", "options", "error", "says"),
    [
        (None, {}, TypeError, "expected a semaphore or a SemaphoreGroup"),
        (False, {"key": str}, TypeError, "key= goes with a SemaphoreGroup"),
        (True, {"key": 5}, TypeError, "key must be a str"),
        (True, {"key": job}, TypeError, "key must be a function, not a coroutine function"),
        (True, {"key": str, "permits": 3}, ValueError, "limit of 2"),
        (False, {"permits": 3}, ValueError, "limit of 2"),
        (True, {"key": str, "permits": 0}, ValueError, "permits"),
        (True, {"key": str, "timeout": -1}, ValueError, "timeout"),
    ],
)
async def test_bad_arguments_are_refused_at_once(
    make: Any, grouped: bool | None, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    """Not by the first job or request, at night."""
    source: Any = job  # as if the brackets of the decorator had been forgotten
    if grouped is not None:
        source = (SemaphoreGroup if grouped else FairSemaphore)(MemoryBackend(), "jobs", 2)
    with pytest.raises(error, match=says):
        make(source, **options)


@pytest.mark.parametrize("make", [*NEED_A_KEY, *HAVE_A_KEY])
@pytest.mark.parametrize("options", [{"key_limit": 1}, {"share": True}])
async def test_a_group_needs_a_key(make: Any, options: dict[str, Any]) -> None:
    """And a semaphore with keys: calls without one would pass its limits of keys, in silence."""
    group = SemaphoreGroup(MemoryBackend(), "jobs", 1)
    if make in HAVE_A_KEY:
        make(group)
    else:
        with pytest.raises(TypeError, match="key="):
            make(group)
    keyed = FairSemaphore(MemoryBackend(), "keyed", 3, **options)
    with pytest.raises(TypeError, match=r"needs key=.*key=None is for"):
        make(keyed)
    make(keyed, key=None)


async def test_calls_may_have_no_key_where_that_is_said() -> None:
    keyed = FairSemaphore(MemoryBackend(), "keyed", 3, key_limit=1)
    async with keyed.acquire(key=None):
        await throttled(keyed, key=None)(job)(1)
