"""A 429 that one request is told has every process back off."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from redsem_async import AnySemaphore, FairSemaphore, SemaphoreGroup
from redsem_async._integrations.overload import LONGEST_PAUSE, DoublingPause, seconds_of
from redsem_async.testing import MemoryBackend
from redsem_async.throttle import throttled, throttled_map
from tests.harness.wait import soon
from tests.integrations.outbound.conftest import ClientOf

pytestmark = pytest.mark.one_mode


async def pause_left(sem: AnySemaphore) -> float:
    back_off = (await sem.status()).back_off
    return 0.0 if back_off is None else back_off.seconds_left


Answering = Callable[[int, dict[str, str]], Any]


@pytest.fixture
def answering(http: Any) -> Answering:
    """Makes transports that give each request an answer with this status and these headers."""

    def answering(status: int, headers: dict[str, str]) -> Any:
        def answer(_: Any) -> Any:
            return http.Response(status, headers=headers)

        return http.MockTransport(answer)

    return answering


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("headers", "seconds"), [({"Retry-After": "20"}, 20.0), ({"retry-after": "7.5"}, 7.5)]
)
async def test_a_response_that_is_refused_pauses_the_fleet(
    client_of: ClientOf,
    answering: Answering,
    backend: MemoryBackend,
    status: int,
    headers: dict[str, str],
    seconds: float,
) -> None:
    here, there = (FairSemaphore(each, "upstream", 3) for each in (backend, backend.peer()))
    response = await client_of(here, answering(status, headers), back_off=True).get("/")
    assert response.status_code == status, "it is returned as it is"
    assert await pause_left(there) == pytest.approx(seconds, abs=1.0)
    assert (await there.status()).held == 0


async def test_a_date_says_until_when(
    client_of: ClientOf, answering: Answering, backend: MemoryBackend
) -> None:
    sem = FairSemaphore(backend, "upstream", 3)
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    await client_of(sem, answering(429, {"Retry-After": date}), back_off=True).get("/")
    assert await pause_left(sem) == pytest.approx(30.0, abs=2.0)


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "0"}, {"Retry-After": "-3"}], ids=str)
async def test_without_retry_after_the_pause_doubles(
    client_of: ClientOf, answering: Answering, backend: MemoryBackend, headers: dict[str, str]
) -> None:
    """Nor where it asks for nothing, as a date does that is over by this clock."""
    sem = FairSemaphore(backend, "upstream", 3)
    client = client_of(sem, answering(429, headers), back_off=True)
    for least in (1.0, 2.0, 4.0):
        await client.get("/")
        assert least - 0.2 < await pause_left(sem) <= 1.5 * least
        await sem.back_off(0)


@pytest.mark.parametrize(
    ("status", "back_off"), [(200, True), (404, True), (500, True), (429, False)]
)
async def test_other_responses_pause_nothing(
    client_of: ClientOf, answering: Answering, backend: MemoryBackend, status: int, back_off: bool
) -> None:
    sem = FairSemaphore(backend, "upstream", 3)
    answer = answering(status, {"Retry-After": "20"})
    await client_of(sem, answer, back_off=back_off).get("/")
    assert not await pause_left(sem)


async def test_hosts_of_a_group_back_off_apart(
    client_of: ClientOf, answering: Answering, backend: MemoryBackend
) -> None:
    group = SemaphoreGroup(backend, "hosts", 2)
    client = client_of(group, answering(429, {"Retry-After": "20"}), back_off=True)
    await client.get("http://a.example/")
    assert await pause_left(group["a.example"]) > 15
    assert not await pause_left(group["b.example"])


def test_back_off_of_a_transport_is_a_flag(leaf: Any, backend: MemoryBackend) -> None:
    with pytest.raises(TypeError, match="back_off"):
        leaf.SemaphoreTransport(FairSemaphore(backend, "upstream", 1), back_off=1)


# -- how long


DATE = "Wed, 21 Oct 2015 07:28:00"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        ("-1", 0.0),
        ("inf", None),
        ("nan", None),
        ("soon", None),
        (f"{DATE} GMT", 0.0),  # in the past
        (f"{DATE} +99999999999999", None),  # no clock has these zones
        (f"{DATE} 99999999999", None),
    ],
)
def test_retry_after_in_seconds(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


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


@pytest.mark.parametrize("form", ["decorated", "mapped"])
async def test_an_exception_of_a_function_pauses_the_fleet(
    backend: MemoryBackend, form: str
) -> None:
    sem = FairSemaphore(backend, "jobs", 2)

    async def work(error: Exception) -> None:
        raise error

    async def call(error: Exception) -> None:
        if form == "decorated":
            await throttled(sem, back_off=told)(work)(error)
        else:
            async with throttled_map(sem, work, [error], back_off=told) as results:
                await soon(anext(aiter(results)))

    with pytest.RaisesGroup(ZeroDivisionError, allow_unwrapped=True):
        await call(ZeroDivisionError())
    assert not await pause_left(sem)
    with pytest.RaisesGroup(Overloaded, allow_unwrapped=True):
        await call(Overloaded())
    await asyncio.sleep(0)
    assert await pause_left(sem) > 15


def test_back_off_of_a_function_is_a_function(backend: MemoryBackend) -> None:
    sem = FairSemaphore(backend, "jobs", 2)
    with pytest.raises(TypeError, match="back_off"):
        throttled(sem, back_off=20.0)  # type: ignore[arg-type]
