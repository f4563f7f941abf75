"""Which responses of an upstream have every process back off, and for how long."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redsem_async import AnySemaphore, FairSemaphore, SemaphoreGroup
from redsem_async._integrations import overload
from redsem_async._integrations.overload import LONGEST_PAUSE, DoublingPause, seconds_of, told_by
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


LIMITS = [
    {"retry-after-ms": "20000", "retry-after": "60"},  # the more exact one
    {"Retry-After": "soon", "x-ratelimit-reset-requests": "20s"},
    {"x-ratelimit-reset-requests": "500ms", "x-ratelimit-reset-tokens": "0m20s"},
    {
        "x-ratelimit-reset-tokens": "6m0s",
        "x-ratelimit-remaining-tokens": "9",
        "x-ratelimit-reset": "20",
    },
    {"anthropic-ratelimit-requests-reset": "<ISO>", "anthropic-ratelimit-requests-remaining": "0"},
    {"X-RateLimit-Reset": "<EPOCH>", "X-RateLimit-Remaining": "0"},
    {"X-RateLimit-Reset": "<EPOCH>000"},
    {"X-Rate-Limit-Reset": "<EPOCH>"},
    {"RateLimit-Reset": "20"},
    {"RateLimit": '"burst";r=0;t=20, "daily";r=9;t=9999'},
    {"RateLimit": "limit=9, remaining=0, reset=20"},
]


@pytest.mark.parametrize("headers", LIMITS, ids=str)
async def test_a_rate_limit_that_is_used_up_says_until_when(
    client_of: ClientOf, answering: Answering, backend: MemoryBackend, headers: dict[str, str]
) -> None:
    """As upstreams say it, one in this way and one in that."""
    sem = FairSemaphore(backend, "upstream", 3)
    then = datetime.now(UTC) + timedelta(seconds=20)
    dates = {
        "<ISO>": then.isoformat().replace("+00:00", "Z"),
        "<EPOCH>": f"{then.timestamp():.0f}",
    }
    for mark, date in dates.items():
        headers = {name: value.replace(mark, date) for name, value in headers.items()}
    await client_of(sem, answering(429, headers), back_off=True).get("/")
    assert await pause_left(sem) == pytest.approx(20.0, abs=2.0)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("headers", [{"Retry-After": "0"}, {"Retry-After": "-3"}], ids=str)
async def test_without_a_time_the_pause_doubles(
    client_of: ClientOf,
    answering: Answering,
    backend: MemoryBackend,
    status: int,
    headers: dict[str, str],
) -> None:
    """So it does where it asks for nothing, as a date does that is over by this clock."""
    sem = FairSemaphore(backend, "upstream", 3)
    client = client_of(sem, answering(status, headers if status == 429 else {}), back_off=True)
    for least in (1.0, 2.0, 4.0):
        await client.get("/")
        assert least - 0.2 < await pause_left(sem) <= 1.5 * least
        await sem.back_off(0)


BARE = [
    {},
    {"Retry-After": "soon"},
    {"x-ratelimit-reset-tokens": "6m", "x-ratelimit-remaining-tokens": "9"},
]


@pytest.mark.parametrize("headers", BARE, ids=str)
async def test_a_bare_429_is_an_overload_the_third_time(
    client_of: ClientOf, answering: Answering, backend: MemoryBackend, headers: dict[str, str]
) -> None:
    """One says nothing of others: its request may be too large, or its account's quota used up."""
    sem, other = (FairSemaphore(backend, name, 3) for name in ("upstream", "other"))
    client = client_of(sem, answering(429, headers), back_off=True)
    for _ in range(2):
        await client.get("/")
        await client_of(other, answering(429, headers), back_off=True).get("/")
    assert not await pause_left(sem)
    await client.get("/")
    assert 0.8 < await pause_left(sem) <= 1.5
    assert not await pause_left(other)


@pytest.mark.parametrize(
    ("hold", "times", "pauses"),
    [
        (
            0.01,
            (1.0, 1.4, 1.8),
            True,
        ),  # a second at least: what is refused at once is held briefly
        (0.01, (1.0, 1.8, 2.6, 3.4), False),
        (30.0, (1.0, 15.0, 29.0), True),
        (30.0, (1.0, 25.0, 49.0), False),
        (None, (1.0, 1.4, 1.8), True),
    ],
)
async def test_bare_429s_count_within_a_usual_hold(
    client_of: ClientOf,
    answering: Answering,
    backend: MemoryBackend,
    monkeypatch: pytest.MonkeyPatch,
    hold: float | None,
    times: tuple[float, ...],
    pauses: bool,
) -> None:
    sem, clock = FairSemaphore(backend, "upstream", 3), iter(times)
    monkeypatch.setattr(overload, "clock", clock.__next__)
    monkeypatch.setattr(overload, "usual_hold_of", Mock(return_value=hold))
    client = client_of(sem, answering(429, {}), back_off=True)
    for _ in times:
        await client.get("/")
    assert (await pause_left(sem) > 0) is pauses


async def test_a_key_backs_off_alone(
    client_of: ClientOf, answering: Answering, backend: MemoryBackend
) -> None:
    """It is the account of a tenant that is told to wait, and not the upstream of all."""
    sem = FairSemaphore(backend, "upstream", 9, key_limit=3)
    answer = answering(429, {"Retry-After": "20"})

    def tenant(request: Any) -> str:
        found: str = request.url.path
        return found

    await client_of(sem, answer, back_off=True, key=tenant).get("http://upstream/acme")
    status = await sem.status()
    assert status.back_off is None
    [key] = status.keys
    assert key.key == "/acme" and key.back_off is not None
    await client_of(sem, answer, back_off=True, key=None).get("http://upstream/")
    assert await pause_left(sem) > 15


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


async def test_a_function_of_the_response_decides(
    client_of: ClientOf, answering: Answering, backend: MemoryBackend
) -> None:
    sem = FairSemaphore(backend, "upstream", 3)

    def seconds(response: Any) -> float | None:
        return 20.0 if response.status_code == 529 else None

    await client_of(sem, answering(429, {"Retry-After": "20"}), back_off=seconds).get("/")
    assert not await pause_left(sem)
    await client_of(sem, answering(529, {}), back_off=seconds).get("/")
    assert await pause_left(sem) > 15


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, "soon", ZeroDivisionError()], ids=str)
async def test_a_function_that_fails_fails_no_request(
    client_of: ClientOf,
    answering: Answering,
    backend: MemoryBackend,
    caplog: pytest.LogCaptureFixture,
    value: Any,
) -> None:
    """The upstream did the work, and has answered."""
    sem = FairSemaphore(backend, "upstream", 3)

    def seconds(_: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    response = await client_of(sem, answering(200, {}), back_off=seconds).get("/")
    assert response.status_code == 200
    assert [(r.levelno, getattr(r, "event", "")) for r in caplog.records] == [
        (logging.WARNING, "back_off")
    ]
    assert not await pause_left(sem)


async def test_hosts_of_a_group_back_off_apart(
    client_of: ClientOf, answering: Answering, backend: MemoryBackend
) -> None:
    group = SemaphoreGroup(backend, "hosts", 2)
    client = client_of(group, answering(429, {"Retry-After": "20"}), back_off=True)
    await client.get("http://a.example/")
    assert await pause_left(group["a.example"]) > 15
    assert not await pause_left(group["b.example"])


@pytest.mark.parametrize("back_off", [1, None, "True", asyncio.sleep])
def test_back_off_of_a_transport_is_a_flag_or_a_function(
    leaf: Any, backend: MemoryBackend, back_off: Any
) -> None:
    with pytest.raises(TypeError, match="back_off"):
        leaf.SemaphoreTransport(FairSemaphore(backend, "upstream", 1), back_off=back_off)


# -- how long


DATE = "Wed, 21 Oct 2015 07:28:00"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 1.5 ", 1.5),
        ("1h2m3.5s", 3723.5),
        ("17ms", 0.017),
        ("1d", 86400.0),
        ("5s and more", None),
        ("1.2.3s", None),
        ("2015-10-21T07:28:00Z", 0.0),
        ("2015-10-21T07:28:00", 0.0),
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


NAMES = [
    "retry-after-ms",
    "retry-after",
    "ratelimit",
    "x-ratelimit-reset",
    "x-ratelimit-remaining",
]
ODD = st.text() | st.text('0123456789.,;:=+-"_rt emsdhTZ')


@given(headers=st.dictionaries(st.sampled_from(NAMES), ODD))
def test_no_header_is_an_error(headers: dict[str, str]) -> None:
    """An upstream may say anything."""
    told = told_by(headers, limits=True)
    assert told is None or 0 <= told < math.inf


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
