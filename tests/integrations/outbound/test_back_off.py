"""A 429 that one request is told has every process back off."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from redsem_async import AnySemaphore, FairSemaphore, SemaphoreGroup
from redsem_async._integrations.overload import LONGEST_PAUSE, DoublingPause, seconds_of
from redsem_async.testing import MemoryBackend
from redsem_async.throttle import throttled, throttled_map
from tests.harness.wait import soon

pytestmark = pytest.mark.one_mode


async def pause_left(sem: AnySemaphore) -> float:
    back_off = (await sem.status()).back_off
    return 0.0 if back_off is None else back_off.seconds_left


def answering(http: Any, status: int, headers: dict[str, str]) -> Any:
    def answer(_: Any) -> Any:
        return http.Response(status, headers=headers)

    return http.MockTransport(answer)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("headers", "seconds"), [({"Retry-After": "20"}, 20.0), ({"retry-after": "7.5"}, 7.5)]
)
async def test_a_response_that_is_refused_pauses_the_fleet(
    http: Any,
    leaf: Any,
    backend: MemoryBackend,
    status: int,
    headers: dict[str, str],
    seconds: float,
) -> None:
    here, there = (FairSemaphore(each, "upstream", 3) for each in (backend, backend.peer()))
    transport = leaf.SemaphoreTransport(here, answering(http, status, headers), back_off=True)
    async with http.AsyncClient(transport=transport, base_url="http://upstream") as client:
        response = await client.get("/")
    assert response.status_code == status, "it is returned as it is"
    assert await pause_left(there) == pytest.approx(seconds, abs=1.0)
    assert (await there.status()).held == 0


async def test_a_date_says_until_when(http: Any, leaf: Any, backend: MemoryBackend) -> None:
    sem = FairSemaphore(backend, "upstream", 3)
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    upstream = answering(http, 429, {"Retry-After": date})
    transport = leaf.SemaphoreTransport(sem, upstream, back_off=True)
    async with http.AsyncClient(transport=transport) as client:
        await client.get("http://upstream/")
    assert await pause_left(sem) == pytest.approx(30.0, abs=2.0)


async def test_without_retry_after_the_pause_doubles(
    http: Any, leaf: Any, backend: MemoryBackend
) -> None:
    sem = FairSemaphore(backend, "upstream", 3)
    transport = leaf.SemaphoreTransport(sem, answering(http, 429, {}), back_off=True)
    async with http.AsyncClient(transport=transport) as client:
        for least in (1.0, 2.0, 4.0):
            await client.get("http://upstream/")
            assert least - 0.2 < await pause_left(sem) <= 1.5 * least
            await sem.hold_off(0)


@pytest.mark.parametrize("status", [200, 404, 500])
async def test_other_responses_pause_nothing(
    http: Any, leaf: Any, backend: MemoryBackend, status: int
) -> None:
    sem = FairSemaphore(backend, "upstream", 3)
    upstream = answering(http, status, {"Retry-After": "20"})
    for back_off, answer in ((True, upstream), (False, answering(http, 429, {}))):
        transport = leaf.SemaphoreTransport(sem, answer, back_off=back_off)
        async with http.AsyncClient(transport=transport) as client:
            await client.get("http://upstream/")
        assert not await pause_left(sem)


async def test_hosts_of_a_group_back_off_apart(
    http: Any, leaf: Any, backend: MemoryBackend
) -> None:
    group = SemaphoreGroup(backend, "hosts", 2)
    upstream = answering(http, 429, {"Retry-After": "20"})
    transport = leaf.SemaphoreTransport(group, upstream, back_off=True)
    async with http.AsyncClient(transport=transport) as client:
        await client.get("http://a.example/")
    assert await pause_left(group["a.example"]) > 15
    assert not await pause_left(group["b.example"])


def test_back_off_of_a_transport_is_a_flag(leaf: Any, backend: MemoryBackend) -> None:
    with pytest.raises(TypeError, match="back_off"):
        leaf.SemaphoreTransport(FairSemaphore(backend, "upstream", 1), back_off=1)


# -- how long


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0.0), ("120", 120.0), ("-1", 0.0), ("inf", None), ("nan", None), ("soon", None)],
)
def test_retry_after_in_seconds(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("zone", ["+99999999999999", "99999999999"])
def test_a_date_that_no_clock_has_is_unclear(zone: str) -> None:
    assert seconds_of(f"Wed, 21 Oct 2015 07:28:00 {zone}") is None


def test_a_date_in_the_past_is_now() -> None:
    assert seconds_of("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


def test_twenty_refusals_of_one_moment_double_nothing() -> None:
    pause, now = DoublingPause(), time.monotonic()
    granted = [now - 1.0 + n / 100 for n in range(20)]
    assert all(1.0 <= pause.after(at, now + n / 50) <= 1.5 for n, at in enumerate(granted))
    assert 2.0 <= pause.after(now + 2.0, now + 2.1) <= 3.0


def test_the_pause_has_a_bound() -> None:
    pause = DoublingPause()
    longest = max(pause.after(at, at) for at in range(1, 30))
    assert LONGEST_PAUSE <= longest <= 1.5 * LONGEST_PAUSE


# -- functions


class Overloaded(Exception):
    pass


def told(error: Exception) -> float | None:
    return 20.0 if isinstance(error, Overloaded) else None


async def test_an_exception_of_a_decorated_function_pauses_the_fleet(
    backend: MemoryBackend,
) -> None:
    sem = FairSemaphore(backend, "jobs", 2)

    @throttled(sem, back_off=told)
    async def work(error: Exception | None) -> None:
        if error is not None:
            raise error

    await work(None)
    with pytest.raises(ZeroDivisionError):
        await work(ZeroDivisionError())
    assert not await pause_left(sem)
    with pytest.raises(Overloaded):
        await work(Overloaded())
    assert await pause_left(sem) > 15


async def test_an_exception_of_a_mapped_function_pauses_the_fleet(
    backend: MemoryBackend,
) -> None:
    sem = FairSemaphore(backend, "jobs", 2)

    async def work(_: int) -> None:
        raise Overloaded

    with pytest.raises(ExceptionGroup):
        async with throttled_map(sem, work, [1], back_off=told) as results:
            await soon(anext(aiter(results)))
    await asyncio.sleep(0)
    assert await pause_left(sem) > 15


def test_back_off_of_a_function_is_a_function(backend: MemoryBackend) -> None:
    sem = FairSemaphore(backend, "jobs", 2)
    with pytest.raises(TypeError, match="back_off"):
        throttled(sem, back_off=20.0)  # type: ignore[arg-type]
