"""What a call costs, at every door: a number, or a function of what the door takes."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import httpx2
import pytest
from fastapi import Depends, FastAPI, Request
from taskiq import InMemoryBroker, TaskiqMessage

import redsem_async.httpx
import redsem_async.httpx2
from redsem_async import AnySemaphore, FairSemaphore, Rate, SemaphoreGroup
from redsem_async.asgi import ConcurrencyLimitMiddleware
from redsem_async.blocking import Portal
from redsem_async.fastapi import RequirePermit
from redsem_async.pydantic_ai import SemaphoreLimiter
from redsem_async.taskiq import SemaphoreMiddleware
from redsem_async.testing import MemoryBackend
from redsem_async.throttle import ThrottledTaskGroup, throttled, throttled_map
from tests.harness.wait import soon
from tests.integrations.test_selector import MAKERS, job
from tests.integrations.web.exchange import Exchange

RATE = Rate(1, per=100, burst=100)
TEXT = "abc"
COST = 30
TOLD_LATER: list[Any] = [ThrottledTaskGroup]  # whose tasks may have theirs one by one


async def decorated(sem: Any, **cost: Any) -> None:
    await throttled(sem, **cost)(job)(TEXT)


async def mapped(sem: Any, **cost: Any) -> None:
    async with throttled_map(sem, job, [TEXT], **cost) as results:
        await soon(anext(aiter(results)))


async def in_group(sem: Any, **cost: Any) -> None:
    async with ThrottledTaskGroup(sem, **cost) as tasks:
        _ = tasks.create_task(job(TEXT))


async def sent(sem: Any, **cost: Any) -> None:
    wrapped = httpx.MockTransport(lambda _: httpx.Response(200))
    transport = redsem_async.httpx.SemaphoreTransport(sem, wrapped, **cost)
    async with httpx.AsyncClient(transport=transport) as client:
        await client.get(f"http://upstream/{TEXT}")


async def sent2(sem: Any, **cost: Any) -> None:
    wrapped = httpx2.MockTransport(lambda _: httpx2.Response(200))
    transport = redsem_async.httpx2.SemaphoreTransport(sem, wrapped, **cost)
    async with httpx2.AsyncClient(transport=transport) as client:
        await client.get(f"http://upstream/{TEXT}")


async def behind_middleware(sem: Any, **cost: Any) -> None:
    await Exchange(ConcurrencyLimitMiddleware(FastAPI(), sem, **cost), f"/{TEXT}").done()


async def of_a_route(sem: Any, **cost: Any) -> None:
    app = FastAPI(dependencies=[Depends(RequirePermit(sem, **cost))])
    app.get("/{text}")(job)
    await Exchange(app, f"/{TEXT}").done()


async def as_taskiq_task(sem: Any, **cost: Any) -> None:
    broker = InMemoryBroker().with_middlewares(SemaphoreMiddleware(sem, **cost))
    result = await (await broker.task(task_name="job")(job).kiq(TEXT)).wait_result(timeout=5)
    result.raise_for_error()


async def of_a_model(sem: Any, **cost: Any) -> None:
    limiter = SemaphoreLimiter(sem, **cost)
    await limiter.acquire(TEXT)
    limiter.release()


def of_text(text: str) -> int:
    return 10 * len(text)


def of_less(text: str) -> int:
    return -len(text)


def of_request(request: httpx.Request | httpx2.Request | Request) -> int:
    return of_text(request.url.path[1:])


def of_scope(scope: Any) -> int:
    return of_text(scope["path"][1:])


def of_message(message: TaskiqMessage) -> int:
    return of_text(message.args[0])


def of_coroutine(coroutine: Any) -> int:
    return of_text(coroutine.__name__)  # job


DOORS: list[tuple[Callable[..., Awaitable[None]], Callable[..., Any]]] = [
    *((decorated, of_text), (mapped, of_text), (in_group, of_coroutine), (sent, of_request)),
    *((sent2, of_request), (behind_middleware, of_scope), (of_a_route, of_request)),
    *((as_taskiq_task, of_message), (of_a_model, of_text)),
]


async def spent(sem: AnySemaphore, rate: str = "requests") -> int:
    return round(100 - (await sem.status()).rates[rate].available)


@pytest.mark.parametrize(("door", "function"), DOORS)
async def test_a_cost_arrives(
    backend: MemoryBackend, door: Callable[..., Awaitable[None]], function: Any
) -> None:
    sem = FairSemaphore(backend, "costly", 9, rate=RATE)
    for cost, expected in (({}, 1), ({"cost": COST}, 31), ({"cost": function}, 61)):
        await door(sem, **cost)
        assert await spent(sem) == expected


async def test_a_task_may_cost_something_else(backend: MemoryBackend) -> None:
    """One without any says so where it is created, and is closed."""
    sem = FairSemaphore(backend, "costly", 9, rate={"requests": RATE, "tokens": RATE})
    async with ThrottledTaskGroup(sem) as tasks:
        _ = tasks.create_task(job(), cost={"tokens": COST})
        with pytest.raises(TypeError, match="cost must say what the request takes"):
            _ = tasks.create_task(job())
    async with ThrottledTaskGroup(sem, cost={"tokens": 1}) as tasks:
        _ = tasks.create_task(job())
    assert await spent(sem, "tokens") == COST + 1
    alone = FairSemaphore(backend, "free", 9, rate=RATE)
    async with ThrottledTaskGroup(alone, cost=COST) as tasks:
        _ = tasks.create_task(job(), cost=0)
    assert await spent(alone) == 0


def test_a_thread_may_say_the_cost() -> None:
    with Portal(MemoryBackend()) as portal:
        sem = portal.fair("costly", 9, rate=RATE)
        with sem.acquire(cost=COST):
            assert portal.run(spent(sem.wrapped)) == COST


async def test_each_key_of_a_group_has_a_rate_of_its_own(backend: MemoryBackend) -> None:
    group = SemaphoreGroup(backend, "tenant", lambda _: 9, rate=RATE)
    await throttled(group, key=str, cost=of_text)(job)(TEXT)
    assert await spent(group[TEXT]) == COST
    async with group["other"]:
        assert await spent(group["other"]) == 1


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("cost", "error", "says"),
    [
        ({"tokens": -1}, ValueError, "a cost of -1 is below 0"),
        (5, TypeError, "cost must be a dict, because there are several rates"),
        (job, TypeError, "cost must be a function, not a coroutine function"),
        (None, TypeError, "cost must say what the request takes from rate 'tokens'"),
    ],
)
def test_what_nothing_can_cost_is_refused_at_once(
    backend: MemoryBackend, make: Any, cost: Any, error: type[Exception], says: str
) -> None:
    for kind, key in ((FairSemaphore, {}), (SemaphoreGroup, {"key": "acme"})):
        source = kind(backend, "costly", 9, rate={"requests": RATE, "tokens": RATE})
        if cost is None and make in TOLD_LATER:
            make(source, **key)
        else:
            with pytest.raises(error, match=says):
                make(source, cost=cost, **key)


async def test_a_function_that_says_no_cost_is_an_error_of_the_call(
    backend: MemoryBackend,
) -> None:
    sem = FairSemaphore(backend, "costly", 9, rate=RATE)
    with pytest.raises(ValueError, match="a cost of -3 is below 0"):
        await throttled(sem, cost=of_less)(job)(TEXT)
    assert await spent(sem) == 0
