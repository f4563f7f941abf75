"""`throttled`: calls of a function wait for permits; and the arguments of all three tools."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redsem_async import AcquireTimeout, FairSemaphore, PermitLost, SemaphoreGroup
from redsem_async.testing import MemoryBackend
from redsem_async.throttle import throttled
from tests.harness.wait import cancelled, until
from tests.integrations.background.load import Load, echo

pytestmark = pytest.mark.usefixtures("nothing_is_left")


async def test_throttled_calls_stay_within_the_limit(sem: FairSemaphore, load: Load) -> None:
    """And it looks like the function that it wraps."""

    @throttled(sem)
    async def double(number: int, /, *, by: int = 2) -> int:
        """Twice as much."""
        return by * await load.job(number)

    assert await asyncio.gather(*(double(n) for n in range(20))) == [2 * n for n in range(20)]
    assert await double(2, by=5) == 10
    assert load.most == 2
    assert (double.__name__, double.__doc__) == ("double", "Twice as much.")
    assert str(inspect.signature(double)) == "(number: int, /, *, by: int = 2) -> int"
    assert inspect.iscoroutinefunction(double)


async def test_methods_may_be_throttled(backend: MemoryBackend) -> None:
    """And the key may come from the object."""
    group = SemaphoreGroup(backend, "tenant", 1)

    def tenant_of(account: "Account", _other: str) -> str:
        return account.tenant

    def name_of(cls: type) -> str:
        return cls.__name__

    class Account:
        tenant = "acme"

        @throttled(group, key=tenant_of)
        async def held(self, other: str) -> tuple[int, int]:
            return await group[self.tenant].available(), await group[other].available()

        @classmethod
        @throttled(group, key=name_of)
        async def of_the_class(cls) -> int:
            return await group["Account"].available()

        @staticmethod
        @throttled(group, key=lambda: "nobody")
        async def of_nobody() -> int:
            return await group["nobody"].available()

    assert await Account().held("umbrella") == (0, 1)
    assert await Account.of_the_class() == 0
    assert await Account.of_nobody() == 0

    async def names(**named: int) -> list[str]:
        return [*named]

    for throttle in (throttled(group, key="acme"), throttled(FairSemaphore(backend, "jobs", 1))):
        called = throttle(names)(key=1, self=2, sem=3, args=4)  # names that our own functions use
        assert await called == ["key", "self", "sem", "args"]


async def test_a_key_function_that_gives_none_is_an_error(backend: MemoryBackend) -> None:
    """As for a group: a header that is missing is no way round the limit of a key."""
    headers: dict[int, str] = {}
    nothing: Any = headers.get
    for source in (SemaphoreGroup(backend, "g", 3), FairSemaphore(backend, "k", 3, key_limit=1)):
        with pytest.raises(TypeError, match="key must be"):
            await throttled(source, key=nothing)(echo)(1)


async def test_a_call_without_permit_never_begins_or_ends(sem: FairSemaphore, load: Load) -> None:
    """And cleans up first."""
    async with sem, sem:
        with pytest.raises(AcquireTimeout):
            await throttled(sem, timeout=0)(load.job)(1)
    assert load.began == 0

    @throttled(sem)
    async def job() -> None:
        async with load:
            [holder] = (await sem.status()).holders
            assert await sem.release(holder.id)
            await asyncio.Event().wait()

    with pytest.raises(PermitLost):
        await job()
    assert (load.began, load.now) == (1, 0)


async def test_a_cancelled_call_backs_nobody_off(sem: FairSemaphore, load: Load) -> None:
    asked: list[Exception] = []
    call = asyncio.create_task(throttled(sem, back_off=asked.append)(load.stays)())
    await until(lambda: load.now)
    await cancelled(call)
    assert not asked


def plain(_: object = None) -> int:
    return 1


async def generator() -> AsyncIterator[int]:
    yield 1


NO_ASYNC_FUNCTIONS: list[tuple[object, str]] = [
    (plain, "plain is not: make it `async def`, .* asyncio.to_thread"),
    (generator, "generator is an async generator: use `async with sem.acquire"),
    (classmethod(plain), "below @classmethod"),
    (staticmethod(generator), "below @classmethod or @staticmethod"),
    (Load, "Load is not"),
]


@pytest.mark.parametrize(("function", "says"), NO_ASYNC_FUNCTIONS)
async def test_other_than_async_is_refused(sem: FairSemaphore, function: Any, says: str) -> None:
    """Where it is decorated, not where it is called the first time."""
    with pytest.raises(TypeError, match=says):
        throttled(sem)(function)
