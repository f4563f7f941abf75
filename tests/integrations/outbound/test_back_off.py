"""Which responses of an upstream have every process back off, and for how long."""

import asyncio
import logging
import math
import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redsem_async import AnySemaphore, FairSemaphore, SemaphoreGroup
from redsem_async._integrations.overload import pause_for, seconds_of, told_by
from redsem_async.testing import MemoryBackend
from redsem_async.throttle import throttled, throttled_map
from tests.harness.wait import soon
from tests.integrations.outbound.conftest import ClientOf


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


TWENTY = {"Retry-After": "20"}


def at_once(_: Any) -> float:
    return 0


@pytest.mark.parametrize(
    ("status", "headers", "back_off", "told"),
    [
        *((429, TWENTY, True, (20, 0)), (503, TWENTY, True, (20, 0)), (429, TWENTY, False, None)),
        *((200, TWENTY, True, None), (429, {}, True, (0, 1)), (529, {}, at_once, (0, 1))),
    ],
)
async def test_a_response_that_is_refused_has_the_fleet_back_off(
    client_of: ClientOf,
    answering: Answering,
    backend: MemoryBackend,
    status: int,
    headers: dict[str, str],
    back_off: Any,
    told: tuple[int, int] | None,
) -> None:
    """It pauses until the told time, and cuts the limit in force to the use in any case."""
    here, there = (FairSemaphore(each, "upstream", 3) for each in (backend, backend.peer()))
    client = client_of(here, answering(status, headers), back_off=back_off)
    assert (await client.get("/")).status_code == status, "it is returned as it is"
    seen = await there.status()
    assert seen.held == 0
    assert (seen.back_off and (math.ceil(seen.back_off.seconds_left), seen.back_off.limit)) == told


async def test_keys_and_hosts_back_off_alone(
    client_of: ClientOf, answering: Answering, backend: MemoryBackend
) -> None:
    """It is the account of a tenant that is told to wait, and not the upstream of all."""
    sem, group = (
        FairSemaphore(backend, "upstream", 9, key_limit=3),
        SemaphoreGroup(backend, "g", 2),
    )
    answer = answering(429, {"Retry-After": "20"})
    client = client_of(sem, answer, back_off=True, key=operator.attrgetter("url.path"))
    await client.get("http://upstream/acme")
    status = await sem.status()
    assert status.back_off is None
    [key] = status.keys
    assert key.key == "/acme" and key.back_off is not None
    await client_of(sem, answer, back_off=True, key=None).get("http://upstream/")
    assert await pause_left(sem) > 15
    await client_of(group, answer, back_off=True).get("http://a.example/")
    assert await pause_left(group["a.example"]) > 15
    assert not await pause_left(group["b.example"])


async def test_a_function_of_the_response_decides(
    client_of: ClientOf, answering: Answering, backend: MemoryBackend, caplog: Any
) -> None:
    """One that fails fails no request: the upstream did the work, and has answered."""
    sem = FairSemaphore(backend, "upstream", 3)
    said: list[Any] = [None, math.nan, math.inf, -1.0, "soon", KeyError(), 20.0]

    def seconds(response: Any) -> Any:
        assert response.status_code == 529
        if isinstance(value := said.pop(0), Exception):
            raise value
        return value

    client = client_of(sem, answering(529, {"Retry-After": "20"}), back_off=seconds)
    while said:
        assert not await pause_left(sem)
        assert (await client.get("/")).status_code == 529
    assert await pause_left(sem) > 15
    warned = [(record.levelno, getattr(record, "redsem_event", "")) for record in caplog.records]
    assert warned == [(logging.WARNING, "back_off")] * 5


@pytest.mark.parametrize("back_off", [1, None, "True", asyncio.sleep])
def test_back_off_of_a_transport_is_a_flag_or_a_function(
    leaf: Any, backend: MemoryBackend, back_off: Any
) -> None:
    with pytest.raises(TypeError, match="back_off"):
        leaf.SemaphoreTransport(FairSemaphore(backend, "upstream", 1), back_off=back_off)


USED_UP, LEFT = (
    {"x-ratelimit-reset-tokens": "6s", "x-ratelimit-remaining-tokens": left} for left in "09"
)


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        *((status, TWENTY, None) for status in (200, 404, 500, 529)),
        *((status, {"retry-after": "20"}, 20.0) for status in (429, 503)),
        *((429, {"retry-after": text}, 0.0) for text in ("0", "-3", "soon")),
        *((429, {}, 0.0), (503, {}, 0.0), (429, USED_UP, 6.0), (429, LEFT, 0.0)),
        (503, USED_UP, 0.0),
    ],
)
def test_what_counts_as_an_overload(
    status: int, headers: dict[str, str], seconds: float | None
) -> None:
    """Where no time is told, nobody guesses one."""
    response: Any = SimpleNamespace(status_code=status, headers=headers)
    assert pause_for(response) == seconds


THEN = datetime.now(UTC) + timedelta(seconds=2000)
EPOCH = f"{THEN.timestamp():.0f}"
LIMITS = [
    {"retry-after-ms": "2000000", "retry-after": "60"},  # the more exact one
    {"retry-after": format_datetime(THEN, usegmt=True)},
    {"retry-after": "soon", "x-ratelimit-reset-requests": "2000s"},
    {"x-ratelimit-reset-requests": "500ms", "x-ratelimit-reset-tokens": "33m20s"},
    {
        "x-ratelimit-reset-tokens": "60m0s",
        "x-ratelimit-remaining-tokens": "9",
        "x-ratelimit-reset": "2000",
    },
    {
        "anthropic-ratelimit-requests-reset": THEN.isoformat().replace("+00:00", "Z"),
        "anthropic-ratelimit-requests-remaining": "0",
    },
    {"x-ratelimit-reset": EPOCH, "x-ratelimit-remaining": "0"},
    {"x-ratelimit-reset": f"{EPOCH}000"},
    {"x-rate-limit-reset": EPOCH},
    {"ratelimit-reset": "2000"},
    {"ratelimit": '"burst";r=0;t=2000, "daily";r=9;t=9999'},
    {"ratelimit": "limit=9, remaining=0, reset=2000"},
]


@pytest.mark.parametrize("headers", LIMITS, ids="-".join)
def test_a_rate_limit_that_is_used_up_says_until_when(headers: dict[str, str]) -> None:
    """As upstreams say it, one in this way and one in that."""
    told = told_by(headers, limits=True)
    assert told is not None and 1000 < told <= 2001
    if not any(name.startswith("retry") for name in headers):
        assert told_by(headers, limits=False) is None


DATE = "Wed, 21 Oct 2015 07:28:00"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("0", 0.0), ("120", 120.0), (" 1.5 ", 1.5), ("-1", 0.0), ("inf", None), ("nan", None)),
        *(("1h2m3.5s", 3723.5), ("17ms", 0.017), ("1d", 86400.0), ("soon", None)),
        *(("5s and more", None), ("1.2.3s", None)),
        *(("2015-10-21T07:28:00Z", 0.0), ("2015-10-21T07:28:00", 0.0), (f"{DATE} GMT", 0.0)),
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
# A text of letters that are given needs no table of all of Unicode, which takes seconds to make.
ODD = st.text([*map(chr, range(300))]) | st.text('0123456789.,;:=+-"_rt emsdhTZ')


@settings(deadline=None)
@given(headers=st.dictionaries(st.sampled_from(NAMES), ODD))
def test_no_header_is_an_error(headers: dict[str, str]) -> None:
    """An upstream may say anything."""
    told = told_by(headers, limits=True)
    assert told is None or 0 <= told < math.inf


class Overloaded(Exception):
    pass


def told(error: Exception) -> float | None:
    return 20.0 if isinstance(error, Overloaded) else None


@pytest.mark.parametrize("form", ["decorated", "mapped"])
async def test_an_exception_pauses_the_fleet(backend: MemoryBackend, form: str) -> None:
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
    with pytest.raises(TypeError, match="back_off"):
        throttled(sem, back_off=20.0)  # type: ignore[arg-type]
