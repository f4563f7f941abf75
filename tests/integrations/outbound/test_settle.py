"""What a request really cost, as its response says."""

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from redsem_async import FairSemaphore, Rate, SemaphoreGroup
from redsem_async.testing import MemoryBackend
from tests.harness.wait import all_free
from tests.integrations.outbound.conftest import ClientOf
from tests.integrations.test_costs import COST, RATE, spent

USAGE = json.dumps({"usage": {"total_tokens": 7}}).encode()


class ResetError(Exception):
    """The connection is lost in the middle of the body."""


@pytest.fixture
def sem(backend: MemoryBackend) -> FairSemaphore:
    return FairSemaphore(backend, "llm", 1, rate={"requests": RATE, "tokens": RATE})


@pytest.fixture
def answering(http: Any) -> Callable[..., Any]:
    """Makes transports that answer with such a response."""

    def answering(status: int = 200, **options: Any) -> Any:
        def answer(_: Any) -> Any:
            return http.Response(status, **options)

        return http.MockTransport(answer)

    return answering


def tokens(response: Any) -> Any:
    """Raises unless the whole body was read."""
    assert response.request.url.path == "/chat"
    return {"tokens": response.json()["usage"]["total_tokens"]}


async def parts(*, broken: bool = False) -> AsyncIterator[bytes]:
    yield USAGE[:9]
    if broken:
        raise ResetError
    yield USAGE[9:]


async def zipped() -> AsyncIterator[bytes]:
    yield gzip.compress(USAGE)


async def read(client: Any) -> None:
    assert (await client.get("/chat")).json() == json.loads(USAGE)


async def iterated(client: Any) -> None:
    async with client.stream("GET", "/chat") as response:
        assert b"".join([part async for part in response.aiter_bytes()]) == USAGE


async def closed(client: Any) -> None:
    async with client.stream("GET", "/chat"):
        pass


async def left(client: Any) -> None:
    async with client.stream("GET", "/chat") as response:
        async for _ in response.aiter_raw():
            break


async def broken(client: Any) -> None:
    with pytest.raises(ResetError):
        await client.get("/chat")


def broken_parts() -> AsyncIterator[bytes]:
    return parts(broken=True)


GZIP = {"content-encoding": "gzip"}


@pytest.mark.parametrize(
    ("body", "headers", "reader", "cost", "failed"),
    [
        *((lambda: USAGE, {}, read, 7, 0), (parts, {}, read, 7, 0), (zipped, GZIP, read, 7, 0)),
        *((parts, {}, iterated, 7, 0), (zipped, GZIP, iterated, 7, 0)),
        *((parts, {}, closed, COST, 0), (parts, {}, left, COST, 1)),
        (broken_parts, {}, broken, COST, 1),
    ],
)
async def test_a_response_settles_what_its_request_cost(
    answering: Callable[..., Any],
    client_of: ClientOf,
    sem: FairSemaphore,
    caplog: pytest.LogCaptureFixture,
    body: Any,
    headers: dict[str, str],
    reader: Any,
    cost: int,
    failed: int,
) -> None:
    """Once it has been read, however. Otherwise the estimate counts, and no request fails."""
    wrapped = answering(content=body(), headers=headers)
    client = client_of(sem, wrapped, cost={"tokens": COST}, settle=tokens)
    await reader(client)
    await all_free(sem)
    assert (await spent(sem), await spent(sem, "tokens")) == (1, cost)
    logged = [
        record for record in caplog.records if getattr(record, "redsem_event", "") == "settle"
    ]
    assert [record.levelno for record in logged] == [logging.WARNING] * failed


async def test_an_application_may_be_what_answers(
    http: Any, client_of: ClientOf, sem: FairSemaphore
) -> None:
    async def app(scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": USAGE})

    wrapped = http.ASGITransport(app)
    await read(client_of(sem, wrapped, cost={"tokens": COST}, settle=tokens))
    assert await spent(sem, "tokens") == 7


async def test_a_response_may_have_cost_nothing(
    answering: Callable[..., Any], client_of: ClientOf, backend: MemoryBackend
) -> None:
    def nothing(_: object) -> int:
        return 0

    sem = FairSemaphore(backend, "free", 1, rate=RATE)
    await read(client_of(sem, answering(content=USAGE), cost=COST, settle=nothing))
    await all_free(sem)
    assert await spent(sem) == 0


@pytest.mark.parametrize("said", [None, {"tokens": -1}, {"words": 1}, 5])
async def test_what_is_no_cost_leaves_the_estimate(
    answering: Callable[..., Any], client_of: ClientOf, sem: FairSemaphore, said: Any, caplog: Any
) -> None:
    def settle(_: object) -> Any:
        return said

    await read(client_of(sem, answering(content=USAGE), cost={"tokens": COST}, settle=settle))
    await all_free(sem)
    assert await spent(sem, "tokens") == COST
    assert len(caplog.records) == (said is not None)


async def test_a_request_without_a_permit_settles_nothing(
    answering: Callable[..., Any], client_of: ClientOf, sem: FairSemaphore, backend: MemoryBackend
) -> None:
    asked: list[Any] = []
    options = {"cost": {"tokens": COST}, "settle": asked.append, "on_outage": "open"}
    client = client_of(sem, answering(content=parts()), **options)
    backend.down()
    await read(client)
    assert not asked


def test_settle_needs_a_rate_and_a_function(leaf: Any, backend: MemoryBackend) -> None:
    for source in (FairSemaphore(backend, "n", 1), SemaphoreGroup(backend, "g", 1)):
        with pytest.raises(TypeError, match="settle needs a FairSemaphore with rate="):
            leaf.SemaphoreTransport(source, settle=tokens)
    rated = SemaphoreGroup(backend, "g", 1, rate=Rate(1))
    leaf.SemaphoreTransport(rated, settle=tokens)
    for wrong in (5, asyncio.sleep):
        with pytest.raises(TypeError, match="settle must be a function"):
            leaf.SemaphoreTransport(rated, settle=wrong)


async def test_a_used_up_limit_backs_off_beside_a_rate(
    answering: Callable[..., Any], client_of: ClientOf, sem: FairSemaphore
) -> None:
    """And what was refused has cost no tokens, as the function of the response says."""
    used_up = {"x-ratelimit-reset-tokens": "20s", "x-ratelimit-remaining-tokens": "0"}

    def none_if_refused(response: Any) -> Any:
        return {"tokens": 0} if response.status_code == 429 else None

    options = {"cost": {"tokens": COST}, "settle": none_if_refused}
    await client_of(sem, answering(429, headers=used_up), back_off=True, **options).get("/chat")
    await all_free(sem)
    back_off = (await sem.status()).back_off
    assert back_off is not None and 15 < back_off.seconds_left <= 20
    assert (await spent(sem), await spent(sem, "tokens")) == (1, 0)
