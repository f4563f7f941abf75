"""The dependency and the middleware in a real uvicorn, with clients that hang up."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, SemaphoreGroup
from tests.harness.servers import StartServer
from tests.harness.wait import all_free, until, waiting
from tests.integrations.uvicorns import RawClient, Uvicorn, serving

pytestmark = pytest.mark.release

SERVICE = Path(__file__).with_name("service.py")

Serve = Callable[..., AbstractAsyncContextManager[Uvicorn]]


@pytest.fixture(params=["dependency", "middleware"])
def form(request: pytest.FixtureRequest) -> str:
    """What limits the requests."""
    found: str = request.param
    return found


@pytest.fixture
def serve(form: str, server_url: str, name: str, tmp_path: Path) -> Serve:
    """Starts a service."""

    def start(**options: Any) -> AbstractAsyncContextManager[Uvicorn]:
        chosen = {"form": form, "url": server_url, "name": name, **options}
        return serving(Uvicorn(tmp_path, str(SERVICE), "{fd}", json.dumps(chosen)))

    return start


@pytest.fixture
async def server(serve: Serve) -> AsyncIterator[Uvicorn]:
    """A service with one place."""
    async with serve() as running:
        yield running


@pytest.fixture
def sem(redis: Redis, name: str) -> FairSemaphore:
    """The service's semaphore, as another process sees it."""
    return FairSemaphore(redis, name, 1, lease=30.0)


async def held(sem: AnySemaphore, count: int = 1) -> None:
    """Wait until so many permits are held."""

    async def are_held() -> bool:
        return (await sem.status()).held == count

    await until(are_held)


async def entered(server: Uvicorn) -> int:
    """How many requests have reached their handlers."""
    return int((await server.get("/free/entered")).text)


async def test_the_limit_holds_across_processes(
    serve: Serve, sem: FairSemaphore, redis: Redis
) -> None:
    """Handlers count themselves in Redis, and know nothing of semaphores."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serve(limit=3)) for _ in range(2)]
        limits = httpx.Limits(max_connections=None)
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=30, limits=limits))
        urls = [f"{server.url}/work" for server in servers] * 30
        answers = await asyncio.gather(*(client.get(url) for url in urls))
        assert {answer.status_code for answer in answers} == {200}
        assert max(int(answer.text) for answer in answers) == 3
        await all_free(sem)


@pytest.mark.parametrize("path", ["/wait", "/sync", "/stream"])
async def test_a_request_holds_a_permit_until_its_end(
    server: Uvicorn, sem: FairSemaphore, path: str
) -> None:
    """A coroutine, a thread, and a body that streams."""
    request = asyncio.create_task(server.get(path))
    await held(sem)
    second = asyncio.create_task(server.get("/wait"))
    await waiting(sem, 1)
    assert await entered(server) == 1
    await server.go()
    assert (await request).status_code == (await second).status_code == 200
    await all_free(sem)


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_a_client_that_hangs_up_in_line_gives_its_place_up(
    server: Uvicorn, sem: FairSemaphore, reset: bool
) -> None:
    """And its handler never runs."""
    async with sem:
        leaver = await RawClient.get(server, "/wait")
        await waiting(sem, 1)
        await leaver.hang_up(reset=reset)
        await waiting(sem, 0)
    await all_free(sem)
    assert await entered(server) == 0


async def test_a_client_that_hangs_up_in_line_with_a_body(
    server: Uvicorn, sem: FairSemaphore
) -> None:
    """The body that was sent is no reason to believe that it is still there."""
    async with sem:
        length = b"Content-Length: 4"
        leaver = await RawClient.send(server, b"POST", "/echo", length, body=b"1234")
        await waiting(sem, 1)
        await leaver.hang_up(reset=False)
        await waiting(sem, 0)
    assert await entered(server) == 0


async def test_a_body_is_not_lost_in_line(server: Uvicorn, sem: FairSemaphore) -> None:
    """Short, and longer than what may be read ahead."""
    async with httpx.AsyncClient(base_url=server.url, timeout=15) as client:
        for length in (4, 300_000):
            async with sem:
                request = asyncio.create_task(client.post("/echo", content=b"x" * length))
                await waiting(sem, 1)
            assert (await request).text == str(length)


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_a_client_that_hangs_up_in_a_stream_gives_its_permit_back(
    server: Uvicorn, sem: FairSemaphore, reset: bool
) -> None:
    """Streams that are cancelled and leak their places are what users complain of most."""
    leaver = await RawClient.get(server, "/stream")
    assert await leaver.status() == 200
    await held(sem)
    await leaver.hang_up(reset=reset)
    await all_free(sem)


async def test_full_is_answered_with_retry_after(serve: Serve, sem: FairSemaphore) -> None:
    """In time, and with a number that a client can wait for."""
    async with serve(timeout=0.1, status=429) as server, sem:
        refused = await server.get("/wait")
        assert refused.status_code == 429
        assert refused.json() == {"detail": "all places are taken"}
        assert 1 <= int(refused.headers["retry-after"]) <= 120
        assert await entered(server) == 0


async def test_a_permit_lost_before_the_headers_gives_503(
    server: Uvicorn, sem: FairSemaphore
) -> None:
    """The client can try again."""
    request = asyncio.create_task(server.get("/wait"))
    await held(sem)
    await sem.clear()
    answer = await request
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    await all_free(sem)


async def test_a_permit_lost_after_the_headers_ends_the_connection(
    server: Uvicorn, sem: FairSemaphore
) -> None:
    """In the middle of a chunked body, so that nobody takes it for a whole one."""
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=15) as client,
        client.stream("GET", "/stream") as response,
    ):
        chunks = response.aiter_bytes()
        await anext(chunks)
        await sem.clear()
        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in chunks:
                pass
    await all_free(sem)
    await until(lambda: "was lost" in server.log)


async def test_a_websocket_holds_a_permit_until_it_is_closed(
    server: Uvicorn, sem: FairSemaphore
) -> None:
    """However it ends: here, by a client that is gone at once."""
    url = server.url.replace("http", "ws") + "/ws"
    async with websockets.connect(url) as socket:
        await socket.send("hello")
        assert await socket.recv() == "hello"
        await held(sem)
        socket.transport.abort()
    await all_free(sem)


async def test_a_websocket_that_finds_no_place_is_denied(serve: Serve, sem: FairSemaphore) -> None:
    """With a whole HTTP response, as uvicorn can."""
    async with serve(timeout=0.1) as server, sem:
        with pytest.raises(websockets.InvalidStatus) as denied:
            async with websockets.connect(server.url.replace("http", "ws") + "/ws"):
                pass
        response = denied.value.response
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1


async def test_a_websocket_that_hangs_up_in_line_gives_its_place_up(
    server: Uvicorn, sem: FairSemaphore
) -> None:
    """The same as for a request."""
    upgrade = (
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
    async with sem:
        leaver = await RawClient.get(server, "/ws", *upgrade)
        await waiting(sem, 1)
        await leaver.hang_up(reset=False)
        await waiting(sem, 0)
    await all_free(sem)
    assert await entered(server) == 0


async def test_a_websocket_whose_permit_is_lost_is_closed(
    server: Uvicorn, sem: FairSemaphore
) -> None:
    """With the code that says to come back later."""
    async with websockets.connect(server.url.replace("http", "ws") + "/ws") as socket:
        await held(sem)
        await sem.clear()
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
    await all_free(sem)


async def test_raw_header_values_are_keys(serve: Serve, redis: Redis, name: str) -> None:
    """What clients put there must not become our errors."""
    group = SemaphoreGroup(redis, name, 1)
    odd = [b"acme", b"\xff\xfe {x}", b"*?[a]:/", b"%7B", b"", b"x" * 4000]
    async with serve(per_tenant=True, timeout=0.2) as server:
        for value in odd:
            first = await RawClient.get(server, "/wait", b"X-Tenant: " + value)
            await held(group[value.decode("latin-1")])
            second = await RawClient.get(server, "/wait", b"X-Tenant: " + value)
            assert await second.status() == 503
            await second.hang_up(reset=False)
            await first.hang_up(reset=False)
        assert await entered(server) == len(odd)


@pytest.mark.parametrize(("on_outage", "let_in"), [("closed", 0), ("open", 4), (2, 2)])
async def test_on_outage_rules_while_the_server_is_stopped(
    serve: Serve, embedded: StartServer, on_outage: str | int, let_in: int
) -> None:
    """A really stopped server, and all is well when it is back."""
    redis = embedded()
    async with serve(url=redis.url, timeout=0.3, on_outage=on_outage) as server:
        redis.kill()
        requests = [asyncio.create_task(server.get("/wait")) for _ in range(4)]
        await until(lambda: sum(request.done() for request in requests) == 4 - let_in)
        await server.go()
        answers = [await request for request in requests]
        refused = [answer for answer in answers if answer.status_code != 200]
        assert len(refused) == 4 - let_in
        assert {(a.status_code, a.headers["retry-after"]) for a in refused} <= {(503, "1")}
        redis.restart()

        async def is_well() -> bool:
            return (await server.get("/wait")).status_code == 200

        await until(is_well)
        async with Redis.from_url(redis.url) as client:
            assert await client.keys("*"), "the limit is Redis's again"


async def test_sigterm_lets_requests_finish(serve: Serve, sem: FairSemaphore) -> None:
    """Those in flight and those in line: uvicorn waits, and permits pass on meanwhile."""
    async with serve(graceful=10) as server:
        clients = [await RawClient.get(server, "/stream") for _ in range(2)]
        assert await clients[0].status() == 200
        await waiting(sem, 1)
        async with httpx.AsyncClient(base_url=server.url) as control:
            await control.get("/free/entered")  # connected before the door closes
            server.terminate()
            await until(lambda: "Shutting down" in server.log)
            await clients[0].hang_up(reset=False)
            assert await clients[1].status() == 200, "it was served in its turn"
            await clients[1].hang_up(reset=False)
        assert await server.ended() == -15
        assert "Application shutdown complete" in server.log
        status = await sem.status()
        assert (status.held, status.waiting) == (0, 0)


@pytest.mark.parametrize("path", ["/wait", "/stubborn", "/stream"])
async def test_sigterm_gives_back_what_is_held_too_long(
    serve: Serve, sem: FairSemaphore, path: str
) -> None:
    """What uvicorn cancels frees its place before the process ends, not a lease later."""
    async with serve(graceful=1) as server:
        stuck = await RawClient.get(server, path)
        await held(sem)
        in_line = await RawClient.get(server, path)
        await waiting(sem, 1)
        sent = time.monotonic()
        server.terminate()
        assert await server.ended() == -15
        assert time.monotonic() - sent < 8
        status = await sem.status()
        assert (status.held, status.waiting) == (0, 0)
        for client in (stuck, in_line):
            await client.hang_up(reset=False)


@pytest.mark.parametrize(
    ("drain", "seconds", "end"), [(10.0, 0.5, "done"), (0.2, 60.0, "stopped")]
)
async def test_sigterm_leaves_jobs_the_time_of_the_drain(
    serve: Serve,
    sem: FairSemaphore,
    redis: Redis,
    name: str,
    drain: float,
    seconds: float,
    end: str,
) -> None:
    """`aclose` in the lifespan: who is no request may finish in time, and is stopped then."""
    async with serve(drain=drain) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            (await client.post("/free/job", params={"seconds": seconds})).raise_for_status()
        await held(sem)
        server.terminate()
        assert await server.ended() == -15
        assert await redis.get(f"{name}-job") == end.encode()
        assert (await sem.status()).held == 0
