"""SemaphoreTransport in httpx and httpx2: a permit from before the request to its body's end."""

import asyncio
import gc
import json
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from types import ModuleType
from typing import Any

import httpx
import httpx2
import pytest
from openai import APITimeoutError, AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

import redsem_async.httpx
import redsem_async.httpx2
from redsem_async import (
    AcquireTimeout,
    AnySemaphore,
    BackendUnavailable,
    FairSemaphore,
    PermitLost,
    QueueFull,
    Semaphore,
    SemaphoreGroup,
)
from redsem_async.testing import MemoryBackend
from tests.harness.wait import all_free, cancelled, until, waiting
from tests.integrations.upstream import Upstream

pytestmark = pytest.mark.one_mode

LEAVES = [redsem_async.httpx, redsem_async.httpx2]


@pytest.fixture(params=LEAVES, ids=["httpx", "httpx2"])
def leaf(request: pytest.FixtureRequest) -> Any:
    """The module under test."""
    return request.param


@pytest.fixture
def http(leaf: ModuleType) -> Any:
    """The client library that it is for."""
    return httpx if leaf is redsem_async.httpx else httpx2


@pytest.fixture
def backend() -> MemoryBackend:
    """Keeps the semaphores of a test."""
    return MemoryBackend()


@pytest.fixture(params=[Semaphore, FairSemaphore], ids=["zset", "fair"])
def sem(request: pytest.FixtureRequest, backend: MemoryBackend) -> AnySemaphore:
    """A semaphore with one place."""
    made: AnySemaphore = request.param(backend, "upstream", 1)
    return made


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """A server to call."""
    server = Upstream()
    await server.start()
    yield server
    await server.stop()


async def held(sem: AnySemaphore, count: int = 1) -> None:
    """Wait until so many permits are held."""

    async def are_held() -> bool:
        return (await sem.status()).held == count

    await until(are_held)


async def test_no_more_requests_run_than_there_are_permits(
    http: Any, leaf: Any, backend: MemoryBackend, upstream: Upstream
) -> None:
    """The upstream counts, and it knows nothing of semaphores."""
    sem = FairSemaphore(backend, "upstream", 3)
    async with http.AsyncClient(transport=leaf.SemaphoreTransport(sem)) as client:
        urls = [f"{upstream.url}/quick"] * 30
        answers = await asyncio.gather(*(client.get(url) for url in urls))
    assert {answer.status_code for answer in answers} == {200}
    assert upstream.most == 3
    await all_free(sem)


async def test_a_streamed_body_holds_the_permit_until_it_was_read(
    http: Any, leaf: Any, sem: AnySemaphore, upstream: Upstream
) -> None:
    """The headers are where the work begins: an LLM's answer, say."""
    async with http.AsyncClient(transport=leaf.SemaphoreTransport(sem)) as client:
        async with client.stream("GET", f"{upstream.url}/slow") as response:
            chunks = response.aiter_bytes()
            assert await anext(chunks) == b"{ "
            assert await sem.available() == 0
            upstream.go.set()
            assert b"".join([chunk async for chunk in chunks]) == b'"answer":"a"}'
            assert await sem.available() == 1, "before the block is left"
        second = await client.get(f"{upstream.url}/slow")
    assert second.json() == {"answer": "a"}
    await all_free(sem)


async def test_a_body_that_is_closed_unread_gives_the_permit_back(
    http: Any, leaf: Any, sem: AnySemaphore, upstream: Upstream
) -> None:
    """Whoever has seen enough leaves early."""
    async with http.AsyncClient(transport=leaf.SemaphoreTransport(sem)) as client:
        async with client.stream("GET", f"{upstream.url}/slow"):
            assert await sem.available() == 0
        assert await sem.available() == 1
        async with client.stream("GET", f"{upstream.url}/slow") as response:
            async for _ in response.aiter_bytes():
                break
        assert await sem.available() == 1


async def test_another_task_may_close_the_body(
    http: Any, leaf: Any, sem: AnySemaphore, upstream: Upstream
) -> None:
    """As clients do that hand a response about."""
    async with http.AsyncClient(transport=leaf.SemaphoreTransport(sem)) as client:
        request = client.build_request("GET", f"{upstream.url}/slow")
        response = await asyncio.create_task(client.send(request, stream=True))
        assert await sem.available() == 0
        await asyncio.create_task(response.aclose())
    await all_free(sem)


@pytest.mark.parametrize("path", ["/broken", "/refused"])
async def test_a_failed_request_gives_the_permit_back(
    http: Any, leaf: Any, sem: AnySemaphore, upstream: Upstream, path: str
) -> None:
    """Before the headers or in the middle of the body."""
    async with http.AsyncClient(transport=leaf.SemaphoreTransport(sem)) as client:
        with pytest.raises(http.RemoteProtocolError):
            await client.get(f"{upstream.url}{path}")
        await all_free(sem)


@pytest.mark.parametrize("path", ["/silent", "/slow"])
async def test_a_cancelled_request_gives_the_permit_back(
    http: Any, leaf: Any, sem: AnySemaphore, upstream: Upstream, path: str
) -> None:
    """Before the headers or in the middle of the body."""
    async with http.AsyncClient(transport=leaf.SemaphoreTransport(sem)) as client:
        request = asyncio.create_task(client.get(f"{upstream.url}{path}"))
        await until(lambda: upstream.inside == 1)
        await held(sem)
        await cancelled(request)
        await all_free(sem)


async def test_a_request_cancelled_in_line_leaves_nothing_behind(
    http: Any, leaf: Any, sem: AnySemaphore, upstream: Upstream
) -> None:
    """Nor does it ever reach the upstream."""
    async with http.AsyncClient(transport=leaf.SemaphoreTransport(sem)) as client, sem:
        request = asyncio.create_task(client.get(f"{upstream.url}/quick"))
        await waiting(sem, 1)
        await cancelled(request)
        assert request.cancelled()
        await waiting(sem, 0)
    assert upstream.requests == 0
    await all_free(sem)


async def test_no_permit_in_time_is_a_timeout_of_both_kinds(
    http: Any, leaf: Any, sem: AnySemaphore, upstream: Upstream
) -> None:
    """An SDK that tries again after httpx's timeouts does so here; nothing was sent."""
    transport = leaf.SemaphoreTransport(sem, timeout=0.05)
    async with http.AsyncClient(transport=transport) as client, sem:
        with pytest.raises(http.TimeoutException) as raised:
            await client.get(f"{upstream.url}/quick")
    error: Any = raised.value
    for kind in (leaf.PermitTimeout, AcquireTimeout, http.PoolTimeout, TimeoutError):
        assert isinstance(error, kind)
    assert (error.name, error.waited >= 0.05, error.retry_after >= 0) == ("upstream", True, True)
    assert str(error.request.url).endswith("/quick")
    assert "no permit of 'upstream'" in str(error)
    assert upstream.requests == 0
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.name, copy.waited, str(copy)) == (error.name, error.waited, str(error))
    with pytest.raises(RuntimeError):
        _ = leaf.PermitTimeout("upstream", 1.0).request  # as in the library's own


async def test_a_full_line_is_an_error_of_both_kinds(
    http: Any, leaf: Any, backend: MemoryBackend, upstream: Upstream
) -> None:
    """The same, at once."""
    sem = FairSemaphore(backend, "upstream", 1, max_waiters=0)
    async with http.AsyncClient(transport=leaf.SemaphoreTransport(sem)) as client, sem:
        with pytest.raises(http.PoolTimeout) as raised:
            await client.get(f"{upstream.url}/quick")
    error: Any = raised.value
    for kind in (leaf.PermitsQueueFull, QueueFull, http.PoolTimeout):
        assert isinstance(error, kind)
    assert error.max_waiters == 0
    assert str(error.request.url).endswith("/quick")
    assert pickle.loads(pickle.dumps(error)).name == "upstream"


async def test_an_outage_is_not_the_upstreams(
    http: Any, leaf: Any, sem: AnySemaphore, backend: MemoryBackend, upstream: Upstream
) -> None:
    """Redis away is told as what it is."""
    backend.down()
    transport = leaf.SemaphoreTransport(sem, timeout=0.05)
    async with http.AsyncClient(transport=transport) as client:
        with pytest.raises(BackendUnavailable):
            await client.get(f"{upstream.url}/quick")


@pytest.mark.parametrize("path", ["/silent", "/slow"])
async def test_a_lost_permit_cancels_the_request(
    http: Any, leaf: Any, sem: AnySemaphore, upstream: Upstream, path: str
) -> None:
    """Before the headers or in the middle of the body: and the task itself lives on."""
    async with http.AsyncClient(transport=leaf.SemaphoreTransport(sem)) as client:
        request = asyncio.create_task(client.get(f"{upstream.url}{path}"))
        await until(lambda: upstream.inside == 1)
        await held(sem)
        await sem.clear()
        with pytest.raises(PermitLost):
            await request
        assert not request.cancelling()
        await all_free(sem)


async def test_a_request_does_not_outlive_its_permit_in_an_outage(
    http: Any, leaf: Any, backend: MemoryBackend
) -> None:
    """Giving it back takes its time then, and others may hold the place already."""
    sem = Semaphore(backend, "upstream", 1, lease=0.3)
    began, ended = asyncio.Event(), asyncio.Event()

    async def answer(request: Any) -> Any:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    transport = leaf.SemaphoreTransport(sem, http.MockTransport(answer))
    async with http.AsyncClient(transport=transport) as client:
        request = asyncio.create_task(client.get("http://upstream/"))
        await began.wait()
        backend.down()
        await asyncio.wait_for(ended.wait(), 0.8)  # a release is given a second at least
        with pytest.raises(PermitLost):
            await request


async def test_a_permit_lost_between_two_chunks_is_told_with_the_next(
    http: Any, leaf: Any, sem: AnySemaphore, upstream: Upstream
) -> None:
    """While the caller is busy elsewhere nobody may cancel it."""
    async with (
        http.AsyncClient(transport=leaf.SemaphoreTransport(sem)) as client,
        client.stream("GET", f"{upstream.url}/slow") as response,
    ):
        chunks = response.aiter_bytes()
        await anext(chunks)
        await sem.clear()
        await asyncio.sleep(0.05)  # busy elsewhere
        with pytest.raises(PermitLost):
            await anext(chunks)
    await all_free(sem)


async def test_without_cancel_on_loss_a_response_is_read_to_its_end(
    http: Any, leaf: Any, backend: MemoryBackend, upstream: Upstream
) -> None:
    """Where the limit caps load, half an answer would help nobody."""
    sem = Semaphore(backend, "upstream", 1, cancel_on_loss=False)
    async with http.AsyncClient(transport=leaf.SemaphoreTransport(sem)) as client:
        request = asyncio.create_task(client.get(f"{upstream.url}/slow"))
        await held(sem)
        await sem.clear()
        upstream.go.set()
        assert (await request).json() == {"answer": "a"}


async def test_a_redirect_waits_for_a_permit_of_its_own(
    http: Any, leaf: Any, sem: AnySemaphore, upstream: Upstream
) -> None:
    """It must not wait for the one that its first answer holds."""
    upstream.go.set()
    transport = leaf.SemaphoreTransport(sem, timeout=2)
    async with http.AsyncClient(transport=transport, follow_redirects=True) as client:
        assert (await client.get(f"{upstream.url}/redirect")).json() == {"answer": "a"}
    assert upstream.requests == 2
    await all_free(sem)


async def test_a_group_has_a_limit_for_each_host(
    http: Any, leaf: Any, backend: MemoryBackend, upstream: Upstream
) -> None:
    """Or whatever `key` makes of the request."""
    group = SemaphoreGroup(backend, "hosts", 1)
    async with http.AsyncClient(transport=leaf.SemaphoreTransport(group)) as client:
        request = asyncio.create_task(client.get(f"{upstream.url}/silent"))
        await held(group["127.0.0.1"])
        other = f"http://localhost:{upstream.port}/quick"
        assert (await client.get(other)).status_code == 200
        upstream.go.set()
        await request

    def path(request: Any) -> str:
        found: str = request.url.path
        return found

    by_path = leaf.SemaphoreTransport(group, key=path)
    async with http.AsyncClient(transport=by_path) as client, group["/quick"]:
        assert (await client.get(f"{upstream.url}/silent")).status_code == 200


async def test_a_response_made_with_its_content_holds_nothing(
    http: Any, leaf: Any, sem: AnySemaphore
) -> None:
    """As mocks make them: nobody ever closes these."""

    def answer(request: Any) -> Any:
        return http.Response(200, json={"answer": "yes"})

    mock = http.MockTransport(answer)
    async with http.AsyncClient(transport=leaf.SemaphoreTransport(sem, mock)) as client:
        for _ in range(3):
            assert (await client.get("http://upstream/")).json() == {"answer": "yes"}
            await all_free(sem)


async def test_a_response_that_is_dropped_gives_its_permit_back(
    http: Any, leaf: Any, sem: AnySemaphore, upstream: Upstream
) -> None:
    """With a warning, as an unclosed file does; the refresher must not keep it alive."""
    async with http.AsyncClient(transport=leaf.SemaphoreTransport(sem)) as client:
        request = client.build_request("GET", f"{upstream.url}/slow")
        responses = [await client.send(request, stream=True)]
        assert await sem.available() == 0

        def drop() -> None:
            responses.clear()
            gc.collect()

        with pytest.warns(ResourceWarning, match="dropped unread"):
            drop()
        await all_free(sem)


@pytest.mark.parametrize("cancel_on_loss", [True, False])
async def test_a_response_may_be_dropped_in_a_cycle(
    http: Any, leaf: Any, backend: MemoryBackend, upstream: Upstream, *, cancel_on_loss: bool
) -> None:
    """As a traceback makes them: the collector must not find the task that holds the permit."""
    sem = Semaphore(backend, "upstream", 1, cancel_on_loss=cancel_on_loss)
    complaints: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
    async with http.AsyncClient(transport=leaf.SemaphoreTransport(sem)) as client:
        request = client.build_request("GET", f"{upstream.url}/slow")
        responses = [await client.send(request, stream=True)]
        responses[0].extensions["itself"] = responses

        del responses
        with pytest.warns(ResourceWarning, match="dropped unread"):
            gc.collect()
        await all_free(sem)
    assert not complaints


async def test_a_body_that_no_client_can_read_holds_nothing(
    http: Any, leaf: Any, sem: AnySemaphore
) -> None:
    """A mock's mistake is told, and the next request does not wait for it."""

    def answer(request: Any) -> Any:
        return http.Response(200, content=iter([b"not async"]))

    mock = http.MockTransport(answer)
    async with http.AsyncClient(transport=leaf.SemaphoreTransport(sem, mock)) as client:
        with pytest.raises(AssertionError):
            await client.get("http://upstream/")
        await all_free(sem)


async def test_it_opens_and_closes_what_it_wraps(http: Any, leaf: Any, sem: AnySemaphore) -> None:
    """It is the only one who could."""
    said: list[str] = []

    class Wrapped:
        async def __aenter__(self) -> Any:
            said.append("opened")
            return self

        async def __aexit__(self, *exc: object) -> None:
            said.append("left")

        async def aclose(self) -> None:
            said.append("closed")

    async with http.AsyncClient(transport=leaf.SemaphoreTransport(sem, Wrapped())):
        pass
    await leaf.SemaphoreTransport(sem, Wrapped()).aclose()
    assert said == ["opened", "left", "closed"]


class SDK:
    """In the way of those that are generated: retries, streams, a client of the user's own."""

    def __init__(self, http: Any, base_url: str, http_client: Any) -> None:
        self._http = http
        self._base_url = base_url
        self._client = http_client

    async def complete(self, prompt: str, retries: int = 2) -> dict[str, str]:
        for left in reversed(range(retries + 1)):
            try:
                answer = await self._client.post(f"{self._base_url}/quick", json=prompt)
                answer.raise_for_status()
                made: dict[str, str] = {"text": answer.text}
            except self._http.TimeoutException:
                if not left:
                    raise
            else:
                return made
        raise AssertionError

    async def stream(self, prompt: str) -> AsyncIterator[str]:
        request = self._client.build_request("POST", f"{self._base_url}/slow", json=prompt)
        response = await self._client.send(request, stream=True)
        try:
            async for line in response.aiter_text():
                yield line
        finally:
            await response.aclose()


async def test_an_sdk_that_takes_a_client_runs_under_the_cap(
    http: Any, leaf: Any, backend: MemoryBackend, upstream: Upstream
) -> None:
    """It knows nothing of semaphores; what it retries is a full line too."""
    sem = FairSemaphore(backend, "upstream", 2, timeout=0.05)
    async with http.AsyncClient(transport=leaf.SemaphoreTransport(sem)) as client:
        sdk = SDK(http, upstream.url, client)
        answers = await asyncio.gather(*(sdk.complete("?", retries=20) for _ in range(20)))
        assert len(answers) == 20
        assert upstream.most == 2
        stream = sdk.stream("?")
        assert await anext(stream) == "{ "
        assert await sem.available() == 1
        upstream.go.set()
        rest = "".join([text async for text in stream])
        assert json.loads("{" + rest) == {"answer": "a"}
    await all_free(sem)


async def words(client: AsyncOpenAI, say: Callable[[str], None]) -> None:
    """Ask for an answer that is streamed, and say its words as they come."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "?"}]
    async with await client.chat.completions.create(
        model="any", messages=messages, stream=True
    ) as stream:
        async for chunk in stream:
            say(chunk.choices[0].delta.content or "")


async def test_openais_sdk_runs_under_the_cap(
    http: Any, leaf: Any, backend: MemoryBackend, upstream: Upstream
) -> None:
    """Its streams hold their permits to the end, and a full line is its timeout."""
    sem = FairSemaphore(backend, "openai", 2)
    async with AsyncOpenAI(
        api_key="x",
        base_url=f"{upstream.url}/v1",
        http_client=http.AsyncClient(transport=leaf.SemaphoreTransport(sem)),
    ) as client:
        said: list[str] = []
        asked = [asyncio.create_task(words(client, said.append)) for _ in range(4)]
        await until(lambda: len(said) == 2)
        await waiting(sem, 2)
        upstream.go.set()
        await asyncio.gather(*asked)
        assert sorted(said) == [" morning"] * 4 + ["Good"] * 4
        assert upstream.most == 2
        async with sem.acquire(permits=2):
            hurried = http.AsyncClient(transport=leaf.SemaphoreTransport(sem, timeout=0))
            async with client.with_options(http_client=hurried, max_retries=0) as busy:
                with pytest.raises(APITimeoutError) as timeout:
                    await words(busy, said.append)
        assert isinstance(timeout.value.__cause__, AcquireTimeout)
    await all_free(sem)


@pytest.mark.parametrize("name", ["httpx", "httpx2"])
def test_without_the_client_library_the_extra_is_named(name: str) -> None:
    """The error says what to do."""
    code = f"import sys; sys.modules['{name}'] = None; import redsem_async.{name}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"pip install 'redsem-async[{name}]'" in done.stderr.splitlines()[-1]
