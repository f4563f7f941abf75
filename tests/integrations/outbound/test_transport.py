"""SemaphoreTransport of httpx and httpx2: a permit from before the request to its body's end."""

import asyncio
import gc
import logging
import pickle
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from redsem_async import (
    AcquireTimeout,
    AnySemaphore,
    FairSemaphore,
    PermitLost,
    QueueFull,
    Semaphore,
    SemaphoreGroup,
)
from redsem_async.testing import MemoryBackend
from tests.harness.wait import all_free, cancelled, soon, takes_at_most, until, waiting
from tests.integrations.outbound.conftest import ClientOf
from tests.integrations.outbound.upstream import Upstream

EITHER_PART = pytest.mark.parametrize("path", ["/silent", "/slow"], ids=["headers", "body"])


async def test_a_streamed_body_holds_the_permit_until_it_was_read(
    client: Any, sem: AnySemaphore, upstream: Upstream
) -> None:
    """The headers are where the work begins: an LLM's answer, say."""
    async with client.stream("GET", "/slow") as response:
        chunks = response.aiter_bytes()
        assert await anext(chunks) == b"{ "
        assert await sem.locked()
        upstream.go.set()
        assert b"".join([chunk async for chunk in chunks]) == b'"answer":"a"}'
        assert not await sem.locked(), "before the block is left"
    assert (await client.get("/slow")).json() == {"answer": "a"}
    await all_free(sem)


async def test_a_closed_body_gives_the_permit_back(client: Any, sem: AnySemaphore) -> None:
    """Another task may close it, as clients do that hand a response about."""
    async with client.stream("GET", "/slow"):
        assert await sem.locked()
    assert not await sem.locked()
    async with client.stream("GET", "/slow") as response:
        async for _ in response.aiter_bytes():
            break
    assert not await sem.locked()
    request = client.build_request("GET", "/slow")
    response = await asyncio.create_task(client.send(request, stream=True))
    assert await sem.locked()
    await asyncio.create_task(response.aclose())
    await all_free(sem)


@pytest.mark.parametrize("path", ["/broken", "/refused"])
async def test_a_failed_request_is_over(
    http: Any, client: Any, sem: AnySemaphore, path: str
) -> None:
    """Before the headers or in the middle of the body."""
    with pytest.raises(http.RemoteProtocolError):
        await client.get(path)
    await all_free(sem)


@EITHER_PART
async def test_a_cancelled_request_gives_the_permit_back(
    client: Any, sem: AnySemaphore, upstream: Upstream, path: str
) -> None:
    """One that is cancelled in the queue never reaches the upstream."""
    request = asyncio.create_task(client.get(path))
    await until(lambda: upstream.inside == 1)
    await cancelled(request)
    async with sem:
        request = asyncio.create_task(client.get("/quick"))
        await waiting(sem, 1)
        await soon(cancelled(request), within=1.0)
        assert request.cancelled()
        await waiting(sem, 0)
    assert upstream.requests == 1
    await all_free(sem)


async def test_no_permit_in_time_is_a_timeout_of_both_kinds(
    client_of: ClientOf, http: Any, leaf: Any, sem: AnySemaphore, upstream: Upstream
) -> None:
    """An SDK that tries again after httpx's timeouts does so here; nothing was sent."""
    client = client_of(sem, timeout=0.05)
    async with sem:
        await sem.pause()
        with pytest.raises(http.TimeoutException) as raised:
            await client.get("/quick")
    error: Any = raised.value
    for kind in (leaf.PermitTimeout, AcquireTimeout, http.PoolTimeout, TimeoutError):
        assert isinstance(error, kind)
    assert (error.name, error.blocked_by) == ("upstream", "paused")
    assert 0.05 <= error.waited < 5.0, "which is the client's for a connection"
    assert str(error.request.url).endswith("/quick")
    assert "a permit of 'upstream'" in str(error)
    assert upstream.requests == 0
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.name, copy.waited, str(copy)) == (error.name, error.waited, str(error))
    with pytest.raises(RuntimeError):
        _ = leaf.PermitTimeout("upstream", 1.0).request  # as in the library's own


@pytest.mark.parametrize(("own", "pool"), [(None, 0.05), (0.05, 20.0), (20.0, 0.05), (0.05, None)])
async def test_a_permit_is_waited_for_as_long_as_for_a_connection(
    http: Any, leaf: Any, backend: MemoryBackend, own: float | None, pool: float | None
) -> None:
    """For the pool's timeout of the client, or for the semaphore's where that is shorter."""
    sem = FairSemaphore(backend, "upstream", 1, timeout=own)
    timeout = http.Timeout(20.0, pool=pool)
    client = http.AsyncClient(transport=leaf.SemaphoreTransport(sem), timeout=timeout)
    async with client, sem:
        with pytest.raises(leaf.PermitTimeout) as raised, takes_at_most(10.0):
            await client.get("http://upstream")
    assert raised.value.waited >= 0.05


async def test_a_full_queue_is_an_error_of_both_kinds(
    client_of: ClientOf, http: Any, leaf: Any, backend: MemoryBackend
) -> None:
    sem = FairSemaphore(backend, "upstream", 1, key_limit=1, max_waiters_per_key=0)
    client = client_of(sem, key="a")
    async with sem.acquire(key="a"):
        with pytest.raises(http.PoolTimeout) as raised:
            await client.get("/quick")
    error: Any = raised.value
    for kind in (leaf.PermitsQueueFull, QueueFull, http.PoolTimeout):
        assert isinstance(error, kind)
    assert (error.max_waiters, error.for_key) == (0, True)
    assert str(error.request.url).endswith("/quick")
    assert pickle.loads(pickle.dumps(error)).name == "upstream"


@EITHER_PART
async def test_a_lost_permit_cancels_the_request(
    client: Any, sem: AnySemaphore, upstream: Upstream, path: str
) -> None:
    """And the task itself lives on."""
    request = asyncio.create_task(client.get(path))
    await until(lambda: upstream.inside == 1)
    await sem.delete()
    with pytest.raises(PermitLost):
        await request
    assert not request.cancelling()
    await all_free(sem)


async def test_a_request_does_not_outlive_its_permit_in_an_outage(
    client_of: ClientOf, http: Any, backend: MemoryBackend
) -> None:
    """Giving it back takes its time then, and others may hold the permit already."""
    sem = Semaphore(backend, "upstream", 1, lease=0.3)
    began, ended = asyncio.Event(), asyncio.Event()

    async def answer(request: Any) -> Any:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    client = client_of(sem, http.MockTransport(answer))
    request = asyncio.create_task(client.get("http://upstream/"))
    await began.wait()
    backend.down()
    await soon(ended.wait(), within=0.8)  # a release is given a second at least
    with pytest.raises(PermitLost):
        await request


async def test_a_loss_between_chunks_is_raised_by_the_next(client: Any, sem: AnySemaphore) -> None:
    """While the caller does something else nothing may cancel it."""
    async with client.stream("GET", "/slow") as response:
        chunks = response.aiter_bytes()
        await anext(chunks)
        await sem.delete()
        await asyncio.sleep(0.05)  # something else
        with pytest.raises(PermitLost):
            await anext(chunks)
    await all_free(sem)


async def test_a_body_whose_close_fails_gives_the_permit_back(
    client_of: ClientOf, http: Any, sem: AnySemaphore
) -> None:
    body = http.ByteStream(b"{}")
    body.aclose = Mock(side_effect=http.CloseError("for a test"))
    answer = Mock(return_value=http.Response(200, stream=body))
    client = client_of(sem, http.MockTransport(answer))
    with pytest.raises(http.CloseError):
        await client.get("/")
    await all_free(sem)


async def test_a_redirect_has_its_own_permit(
    client: Any, sem: AnySemaphore, upstream: Upstream
) -> None:
    """It must not wait for the one that its first answer holds."""
    upstream.go.set()
    answer = await soon(client.get("/redirect", follow_redirects=True))
    assert answer.json() == {"answer": "a"}
    assert upstream.requests == 2
    await all_free(sem)


async def test_a_group_has_a_limit_for_each_host(
    client_of: ClientOf, backend: MemoryBackend, upstream: Upstream
) -> None:
    """Or whatever `key` makes of the request."""
    group = SemaphoreGroup(backend, "hosts", 1)
    client = client_of(group)
    request = asyncio.create_task(client.get("/silent"))
    await until(group["upstream"].locked)
    assert (await client.get("http://other/quick")).status_code == 200
    upstream.go.set()
    await request

    def path(request: Any) -> str:
        found: str = request.url.path
        return found

    client = client_of(group, key=path)
    async with group["/quick"]:
        assert (await client.get("/silent")).status_code == 200


async def test_a_response_made_with_its_content_holds_nothing(
    client_of: ClientOf, http: Any, sem: AnySemaphore
) -> None:
    """As mocks make them: nobody ever closes these."""

    def answer(request: Any) -> Any:
        if request.url.path == "/bad":
            return http.Response(200, content=iter([b"not async"]))
        return http.Response(200, json={"answer": "yes"})

    client = client_of(sem, http.MockTransport(answer))
    for _ in range(3):
        assert (await client.get("/")).json() == {"answer": "yes"}
        await all_free(sem)
    with pytest.raises(TypeError, match="no async body"):
        await client.get("/bad")
    await all_free(sem)


def _unread(caplog: pytest.LogCaptureFixture) -> list[str]:
    events = (record for record in caplog.records if record.levelno == logging.WARNING)
    return [r.getMessage() for r in events if getattr(r, "event", "") == "unread response"]


async def test_a_response_that_is_left_unread_is_named_once(
    client_of: ClientOf, backend: MemoryBackend, upstream: Upstream, caplog: Any
) -> None:
    """It holds its permit, and others wait: by what, is not to be seen otherwise.

    One that is read is not warned of, however long the upstream takes; and no timer is left of it.
    """
    client = client_of(FairSemaphore(backend, "upstream", 2, lease=1.0))
    loop: Any = asyncio.get_running_loop()

    def timers() -> int:
        return sum("expect_reading" in repr(t) for t in loop._scheduled if not t.cancelled())

    reading = asyncio.create_task(client.get("/slow"))
    await until(lambda: timers() == 1, "the body is read")
    url = "http://me:hunter3@upstream/slow?key=hunter2"
    response = await client.send(client.build_request("GET", url), stream=True)
    await until(lambda: bool(_unread(caplog)), "it is warned of")
    await asyncio.sleep(0.3)
    [said] = _unread(caplog)
    assert all(word in said for word in ("'upstream'", "GET upstream", "max_hold")), said
    assert not any(word in said for word in ("slow", "hunter", "me:")), said
    await response.aclose()
    upstream.go.set()
    assert (await reading).json() == {"answer": "a"}
    assert timers() == 0


@pytest.mark.parametrize("cancel_on_loss", [True, False])
async def test_a_response_that_is_dropped_gives_its_permit_back(
    client_of: ClientOf, backend: MemoryBackend, cancel_on_loss: bool
) -> None:
    """In a cycle, as tracebacks make them: the collector must not find the task that holds it."""
    sem = Semaphore(backend, "upstream", 1, cancel_on_loss=cancel_on_loss)
    complaints: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
    client = client_of(sem)
    request = client.build_request("GET", "/slow")
    responses = [await client.send(request, stream=True)]
    responses[0].extensions["itself"] = responses
    assert await sem.locked()
    del responses
    with pytest.warns(ResourceWarning, match="dropped unread"):
        gc.collect()
    await all_free(sem)
    assert not complaints


async def test_it_wraps_one_of_its_library(http: Any, leaf: Any, sem: AnySemaphore) -> None:
    """The error in another library's client names the right module."""
    name = "httpx" if http.__name__ == "httpx2" else "httpx2"
    other = pytest.importorskip(name)
    for wrapped in (http.HTTPTransport(), http.AsyncClient(), other.AsyncHTTPTransport()):
        with pytest.raises(TypeError, match="async transport"):
            leaf.SemaphoreTransport(sem, wrapped)
    client = other.AsyncClient(transport=leaf.SemaphoreTransport(sem))
    with pytest.raises(TypeError, match=rf"use redsem_async\.{name} in it"):
        await client.get("http://upstream/")


async def test_it_opens_and_closes_what_it_wraps(http: Any, leaf: Any, sem: AnySemaphore) -> None:
    wrapped = AsyncMock()
    async with http.AsyncClient(transport=leaf.SemaphoreTransport(sem, wrapped)):
        wrapped.__aenter__.assert_awaited_once()
        wrapped.__aexit__.assert_not_awaited()
    wrapped.__aexit__.assert_awaited_once()
    await leaf.SemaphoreTransport(sem, wrapped).aclose()
    wrapped.aclose.assert_awaited_once()
