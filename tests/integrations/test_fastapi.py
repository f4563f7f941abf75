"""RequirePermit in FastAPI's routes, with no server in between; on a real one: test_uvicorn.py."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, Request, Security, WebSocket
from fastapi.responses import Response, StreamingResponse
from starlette.requests import ClientDisconnect

from redsem_async import AnySemaphore, FairSemaphore, Permit, Semaphore, SemaphoreGroup, aclose
from redsem_async.fastapi import RequirePermit, _see_that_responses_are_covered
from redsem_async.testing import MemoryBackend
from tests.harness.wait import all_free, until, waiting
from tests.integrations.exchange import Exchange

pytestmark = pytest.mark.one_mode

JSON: dict[str, Any] = {
    "method": "POST",
    "body": b'{"a": 1}',
    "headers": ((b"content-type", b"application/json"),),
}


SEM = Semaphore(MemoryBackend(), "module", 1, timeout=1)
Slot = Annotated[Permit, Depends(RequirePermit(SEM))]


@dataclass
class Service:
    """A FastAPI application whose handlers go on when they are told to."""

    app: FastAPI
    go: asyncio.Event = field(default_factory=asyncio.Event)
    thread_may_go: threading.Event = field(default_factory=threading.Event)
    permits: list[Permit | None] = field(default_factory=list[Permit | None])
    ended: list[BaseException | None] = field(default_factory=list[BaseException | None])

    async def entered(self, count: int = 1) -> None:
        await until(lambda: len(self.permits) == count)

    def request(self, path: str = "/plain", **options: Any) -> Exchange:
        return Exchange(self.app, path, **options)


def service_with(require: RequirePermit) -> Service:
    """A service every route of which needs a permit."""
    app = FastAPI()
    service = Service(app)
    slot = Depends(require)

    @app.get("/plain", responses=require.responses)
    async def plain(permit: Permit | None = slot) -> dict[str, str]:
        service.permits.append(permit)
        try:
            await service.go.wait()
        except BaseException as error:
            service.ended.append(error)
            raise
        return {"answer": "yes"}

    @app.get("/sync")
    def sync(permit: Permit | None = slot) -> dict[str, str]:
        service.permits.append(permit)
        service.thread_may_go.wait(10)
        return {"answer": "yes"}

    async def chunks() -> AsyncIterator[bytes]:
        try:
            while not service.go.is_set():
                yield b"."
                await asyncio.sleep(0.001)
        finally:
            service.ended.append(None)

    @app.get("/stream")
    async def stream(permit: Permit | None = slot) -> StreamingResponse:
        service.permits.append(permit)
        return StreamingResponse(chunks())

    def slow_chunks() -> Iterator[bytes]:
        yield b"."
        service.thread_may_go.wait(10)
        yield b"."

    @app.get("/sync-stream")
    def sync_stream(permit: Permit | None = slot) -> StreamingResponse:
        service.permits.append(permit)
        return StreamingResponse(slow_chunks())

    @app.post("/json")
    async def json(body: dict[str, int], permit: Permit | None = slot) -> dict[str, int]:
        service.permits.append(permit)
        return body

    @app.post("/raw")
    async def raw(request: Request, permit: Permit | None = slot) -> dict[str, int]:
        service.permits.append(permit)
        return {"bytes": len(await request.body())}

    @app.get("/twice")
    async def twice(one: Permit | None = slot, other: Permit | None = slot) -> dict[str, bool]:
        service.permits.append(one)
        return {"same": one is other}

    @app.get("/background")
    async def background(tasks: BackgroundTasks, permit: Permit | None = slot) -> dict[str, str]:
        service.permits.append(permit)
        tasks.add_task(service.go.wait)
        return {"answer": "yes"}

    @app.get("/error")
    async def error(permit: Permit | None = slot) -> None:
        raise ZeroDivisionError

    @app.websocket("/ws")
    async def ws(websocket: WebSocket, permit: Permit | None = slot) -> None:
        await websocket.accept()
        service.permits.append(permit)
        async for text in websocket.iter_text():
            await websocket.send_text(text)

    return service


@pytest.fixture
def backend() -> MemoryBackend:
    """Keeps the semaphores of a test."""
    return MemoryBackend()


@pytest.fixture(params=[Semaphore, FairSemaphore], ids=["zset", "fair"])
def sem(request: pytest.FixtureRequest, backend: MemoryBackend) -> AnySemaphore:
    """A semaphore with one place."""
    made: AnySemaphore = request.param(backend, "web", 1)
    return made


async def test_the_handler_is_given_the_permit_that_it_holds(sem: AnySemaphore) -> None:
    """For its fencing token, above all."""
    service = service_with(RequirePermit(sem))
    async with service.request() as exchange:
        await service.entered()
        [holder] = (await sem.status()).holders
        [permit] = service.permits
        assert permit is not None
        assert (permit.id, permit.fencing_token) == (holder.id, holder.fencing_token)
        service.go.set()
        await exchange.done()
    assert exchange.body == b'{"answer":"yes"}'
    await all_free(sem)


async def test_a_streamed_body_belongs_to_the_request(sem: AnySemaphore) -> None:
    """What streams is what lasts: a permit that ends with the headers would count nothing."""
    service = service_with(RequirePermit(sem))
    async with service.request("/stream") as exchange:
        await exchange.heard("http.response.body", 3)
        assert await sem.available() == 0
        service.go.set()
        await exchange.done()
    await all_free(sem)


@pytest.mark.parametrize("path", ["/sync", "/sync-stream"])
async def test_handlers_in_threads_hold_permits_too(sem: AnySemaphore, path: str) -> None:
    """FastAPI runs a plain `def` in a thread, and its generator too."""
    service = service_with(RequirePermit(sem))
    async with service.request(path) as exchange:
        await service.entered()
        assert await sem.available() == 0
        service.thread_may_go.set()
        await exchange.done()
    assert exchange.status == 200
    await all_free(sem)


async def test_who_waits_is_served_in_turn(sem: AnySemaphore) -> None:
    """Never two at once behind a limit of one."""
    service = service_with(RequirePermit(sem))
    async with service.request() as first, service.request() as second:
        await service.entered()
        await waiting(sem, 1)
        assert len(service.permits) == 1
        service.go.set()
        assert (await first.done()).status == (await second.done()).status == 200
    await all_free(sem)


@pytest.mark.parametrize("status", [503, 429])
async def test_full_is_answered_with_retry_after(sem: AnySemaphore, status: int) -> None:
    """A client, or the balancer before it, learns when to come back."""
    service = service_with(RequirePermit(sem, timeout=0.05, status=status))
    async with sem:
        refused = await service.request().done()
    assert refused.status == status
    assert refused.body == b'{"detail":"all places are taken"}'
    assert 1 <= int(refused.header(b"retry-after") or b"") <= 60
    assert service.permits == []


async def test_a_full_line_is_answered_at_once(backend: MemoryBackend) -> None:
    """`max_waiters` bounds how many requests a process keeps open for nothing."""
    sem = FairSemaphore(backend, "web", 1, max_waiters=0)
    service = service_with(RequirePermit(sem))
    async with sem:
        refused = await service.request().done()
    assert refused.status == 503
    assert int(refused.header(b"retry-after") or b"") >= 1


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/plain", {}),
        ("/json", JSON),
        ("/raw", {"method": "POST", "body": b"1234", "headers": ((b"content-length", b"4"),)}),
        ("/raw", {"method": "POST"}),  # with no body at all, as `curl -X POST` has it
        ("/ws", {"kind": "websocket"}),
    ],
)
async def test_a_client_that_hangs_up_in_line_gives_its_place_up(
    sem: AnySemaphore, path: str, options: dict[str, Any]
) -> None:
    """Nobody should hold a place in line, or be answered, who is not there any more."""
    service = service_with(RequirePermit(sem))
    async with sem, service.request(path, **options) as leaver:
        await waiting(sem, 1)
        leaver.hang_up()
        await leaver.done()
        await waiting(sem, 0)
        assert service.permits == []


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_client_that_hangs_up_in_its_second_line_gives_all_up(
    sem: AnySemaphore, backend: MemoryBackend, kind: str
) -> None:
    """A tenant's line and then everybody's, say: the first must not make us deaf."""
    first = FairSemaphore(backend, "first", 1)
    app = FastAPI()
    lines = [Depends(RequirePermit(first)), Depends(RequirePermit(sem))]

    @app.get("/", dependencies=lines)
    async def plain() -> None: ...

    @app.websocket("/", dependencies=lines)
    async def ws(websocket: WebSocket) -> None: ...

    async with sem, Exchange(app, kind=kind) as leaver:
        await waiting(sem, 1)
        leaver.hang_up()
        await leaver.done()
        await waiting(sem, 0)
        await all_free(first)


async def test_a_client_that_hangs_up_before_its_body_is_here_never_joins_the_line(
    sem: AnySemaphore,
) -> None:
    """Its place would be for nobody."""
    service = service_with(RequirePermit(sem))
    headers = ((b"content-length", b"4"),)
    async with service.request("/raw", method="POST", headers=headers, body=None) as leaver:
        leaver.hang_up()
        await leaver.done()
    assert leaver.status == 499
    assert not await sem.exists()


@pytest.mark.parametrize("length", [4, 100_000, None])
async def test_a_body_reaches_the_handler_that_reads_it_itself(
    sem: AnySemaphore, length: int | None
) -> None:
    """Listening for a hang-up takes nothing away from whom the body is for."""
    service = service_with(RequirePermit(sem))
    headers = () if length is None else ((b"content-length", str(length).encode()),)
    body = b"x" * (length or 70_000)
    exchange = service.request("/raw", method="POST", headers=headers, body=body)
    assert (await exchange.done()).body == f'{{"bytes":{len(body)}}}'.encode()
    await all_free(sem)


async def test_a_declared_body_reaches_the_handler(sem: AnySemaphore) -> None:
    """FastAPI has read it before anybody waits."""
    service = service_with(RequirePermit(sem))
    exchange = service.request("/json", **JSON)
    assert (await exchange.done()).body == b'{"a":1}'


@pytest.mark.parametrize("path", ["/plain", "/sync"])
async def test_a_permit_lost_before_the_headers_gives_503(
    sem: AnySemaphore, backend: MemoryBackend, path: str
) -> None:
    """A 500, or FastAPI's «Response not awaited», would blame the handler."""
    service = service_with(RequirePermit(sem))
    async with service.request(path) as exchange:
        await service.entered()
        assert service.permits[0] is not None
        backend.lose(service.permits[0])
        await exchange.done()
        service.thread_may_go.set()
    assert exchange.status == 503
    assert exchange.header(b"retry-after") == b"1"
    assert exchange.body == b'{"detail":"the place of this request was lost"}'
    await all_free(sem)


async def test_a_permit_lost_after_the_headers_ends_the_connection(
    sem: AnySemaphore, backend: MemoryBackend
) -> None:
    """An exception is how an application has its server cut a response off."""
    service = service_with(RequirePermit(sem))
    async with service.request("/stream") as exchange:
        await exchange.heard("http.response.body")
        assert service.permits[0] is not None
        backend.lose(service.permits[0])
        with pytest.raises(RuntimeError) as raised:
            await exchange.done()
    assert "not awaited" not in str(raised.value)
    assert "was lost" in str(raised.value.__cause__)
    assert exchange.sent[-1]["more_body"]
    assert service.ended == [None], "the stream was closed"
    await all_free(sem)


async def test_a_stream_whose_client_left_gives_its_permit_back(sem: AnySemaphore) -> None:
    """Cancelled streams that leak places are what users complain of most."""
    service = service_with(RequirePermit(sem))
    async with service.request("/stream") as exchange:
        await exchange.heard("http.response.body", 3)
        exchange.hang_up()
        await exchange.done()
    await all_free(sem)


async def test_a_websocket_holds_a_permit_until_it_is_closed(sem: AnySemaphore) -> None:
    """However long it lasts, and with its messages untouched."""
    service = service_with(RequirePermit(sem))
    async with service.request("/ws", kind="websocket") as socket:
        await socket.heard("websocket.accept")
        socket.say({"type": "websocket.receive", "text": "one"})
        await socket.heard("websocket.send")
        assert await sem.available() == 0
        socket.hang_up()
        await socket.done()
    await all_free(sem)


@pytest.mark.parametrize("denial", [True, False])
async def test_a_websocket_that_finds_no_place_is_denied(sem: AnySemaphore, denial: bool) -> None:
    """With a whole response where the server can send one, and with a close code elsewhere."""
    service = service_with(RequirePermit(sem, timeout=0.05))
    async with sem:
        refused = await service.request("/ws", kind="websocket", denial=denial).done()
    if denial:
        assert refused.status == 503
        assert int(refused.header(b"retry-after") or b"") >= 1
    else:
        reason = "all places are taken"
        assert refused.sent == [{"type": "websocket.close", "code": 1013, "reason": reason}]


async def test_a_websocket_whose_permit_is_lost_is_closed(
    sem: AnySemaphore, backend: MemoryBackend
) -> None:
    """With the code that says to come back later."""
    service = service_with(RequirePermit(sem))
    async with service.request("/ws", kind="websocket") as socket:
        await service.entered()
        assert service.permits[0] is not None
        backend.lose(service.permits[0])
        await socket.done()
    assert socket.sent[-1]["type"] == "websocket.close"
    assert socket.sent[-1]["code"] == 1013
    await all_free(sem)


async def test_an_alias_says_it_once(backend: MemoryBackend) -> None:
    """As FastAPI's users write what many handlers need."""
    app = FastAPI()

    @app.get("/")
    async def handler(permit: Slot) -> int:
        return permit.fencing_token

    assert int((await Exchange(app).done()).body) > 0


async def test_one_object_is_one_permit_in_a_request(sem: AnySemaphore) -> None:
    """Named twice it must not wait for itself."""
    service = service_with(RequirePermit(sem, timeout=0))
    assert (await service.request("/twice").done()).body == b'{"same":true}'


async def test_one_object_is_one_permit_under_security_scopes_too(sem: AnySemaphore) -> None:
    """FastAPI may call it again there: a request must not wait for itself."""
    require = RequirePermit(sem, timeout=0.5)
    app = FastAPI()

    async def user(permit: Annotated[Permit, Depends(require)]) -> Permit:
        return permit

    @app.get("/")
    async def plain(
        one: Annotated[Permit, Depends(require)],
        scoped: Annotated[Permit, Security(user, scopes=["all"])],
        again: Annotated[Permit, Depends(require, use_cache=False)],
    ) -> bool:
        return one is scoped is again

    for _ in range(2):
        assert (await Exchange(app).done()).body == b"true"
        await all_free(sem)


async def test_background_tasks_belong_to_the_response(sem: AnySemaphore) -> None:
    """So FastAPI has it: dependencies end after them."""
    service = service_with(RequirePermit(sem))
    async with service.request("/background") as exchange:
        await exchange.heard("http.response.body")
        assert await sem.available() == 0
        service.go.set()
        await exchange.done()
    await all_free(sem)


async def test_a_whole_router_can_require_a_permit(sem: AnySemaphore) -> None:
    """A handler that does not care for it need not name it."""
    app = FastAPI(dependencies=[Depends(RequirePermit(sem, timeout=0))])
    app.get("/")(lambda: "yes")
    async with sem:
        assert (await Exchange(app).done()).status == 503
    assert (await Exchange(app).done()).status == 200


async def test_each_tenant_has_a_limit_of_its_own(backend: MemoryBackend) -> None:
    """One that is at its limit does not stop another, whatever stands in the header."""
    group = SemaphoreGroup(backend, "tenants", 1)
    require = RequirePermit(
        group, key=lambda request: request.headers.get("x-tenant", ""), timeout=0.05
    )
    service = service_with(require)
    names = [b"acme", b"{odd}\xff\x00\r\n", "naïve ☃".encode(), b"", b"x" * 4000]
    taken = [service.request(headers=((b"x-tenant", name),)) for name in names]
    await service.entered(len(names))
    for name in names:
        refused = service.request(headers=((b"x-tenant", name),))
        assert (await refused.done()).status == 503
    service.go.set()
    for exchange in taken:
        assert (await exchange.done()).status == 200


async def test_closed_in_an_outage_means_503(sem: AnySemaphore, backend: MemoryBackend) -> None:
    """Fail closed, unless said otherwise."""
    service = service_with(RequirePermit(sem, timeout=0.05, status=429))
    service.go.set()
    backend.down()
    for _ in range(2):
        refused = await service.request().done()
        assert (refused.status, refused.header(b"retry-after")) == (503, b"1")
    backend.up()
    assert (await service.request().done()).status == 200


async def test_open_in_an_outage_lets_everybody_through(
    sem: AnySemaphore, backend: MemoryBackend
) -> None:
    """The handler is told by a permit that is none."""
    service = service_with(RequirePermit(sem, timeout=0.05, on_outage="open"))
    backend.down()
    exchanges = [service.request() for _ in range(5)]
    await service.entered(5)
    assert service.permits == [None] * 5
    service.go.set()
    assert [(await exchange.done()).status for exchange in exchanges] == [200] * 5


async def test_a_local_limit_rules_in_an_outage(sem: AnySemaphore, backend: MemoryBackend) -> None:
    """As many at a time as this process can bear."""
    service = service_with(RequirePermit(sem, timeout=0.05, on_outage=2))
    backend.down()
    exchanges = [service.request() for _ in range(5)]
    await service.entered(2)
    await until(lambda: sum(exchange.task.done() for exchange in exchanges) == 3)
    service.go.set()
    statuses = sorted([(await exchange.done()).status for exchange in exchanges])
    assert statuses == [200, 200, 503, 503, 503]
    assert (await service.request().done()).status == 200, "places are given back"


async def test_aclose_turns_those_in_line_away(sem: AnySemaphore, backend: MemoryBackend) -> None:
    """At the end of a process they learn at once that they had better go elsewhere."""
    service = service_with(RequirePermit(sem))
    async with service.request() as first, service.request() as in_line:
        await service.entered()
        await waiting(sem, 1)
        closing = asyncio.create_task(aclose(backend, drain=5.0))
        assert (await in_line.done()).status == 503
        service.go.set()
        assert (await first.done()).status == 200
        await closing


async def test_a_permit_that_is_handed_on_outlives_the_request(sem: AnySemaphore) -> None:
    """To a worker, which takes it over by the id that the handler put into its job."""
    app = FastAPI()

    @app.post("/")
    async def handler(permit: Annotated[Permit, Depends(RequirePermit(sem))]) -> str:
        return await permit.detach(expires_in=60)

    answer = await Exchange(app, method="POST").done()
    assert await sem.available() == 0
    async with sem.adopt(answer.body.decode().strip('"')):
        assert await sem.available() == 0
    await all_free(sem)


async def test_an_error_of_the_handler_is_its_own(sem: AnySemaphore) -> None:
    """It passes through, and the permit is given back."""
    service = service_with(RequirePermit(sem))
    with pytest.raises(ZeroDivisionError):
        await service.request("/error").done()
    await all_free(sem)


async def test_a_hang_up_that_the_handler_finds_is_its_own(sem: AnySemaphore) -> None:
    """Only of the line do we say that its client left; who reads a body has ways of its own."""
    app = FastAPI()

    @app.post("/", dependencies=[Depends(RequirePermit(sem))])
    async def reads(request: Request) -> None:
        await request.body()

    @app.exception_handler(ClientDisconnect)
    async def left(_: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=418)

    headers = ((b"transfer-encoding", b"chunked"),)
    async with Exchange(app, method="POST", headers=headers, body=None) as leaver:
        leaver.hang_up()
        await leaver.done()
    assert leaver.status == 418
    await all_free(sem)


@pytest.mark.parametrize("path", ["/plain", "/stream"])
async def test_cancelled_it_leaves_nothing_behind(sem: AnySemaphore, path: str) -> None:
    """As a server does that has waited long enough for its requests."""
    service = service_with(RequirePermit(sem))
    async with service.request(path) as held, service.request() as in_line:
        await service.entered()
        await waiting(sem, 1)
        for exchange in (in_line, held):
            exchange.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await exchange.done()
    await all_free(sem)


async def test_a_middleware_of_starlettes_in_between_changes_nothing(
    sem: AnySemaphore, backend: MemoryBackend
) -> None:
    """BaseHTTPMiddleware runs the application in a task and with streams of its own."""
    service = service_with(RequirePermit(sem))

    @service.app.middleware("http")
    async def passes_on(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    async with service.request() as first, service.request() as leaver:
        await service.entered()
        await waiting(sem, 1)
        leaver.hang_up()
        await waiting(sem, 0)
        assert service.permits[0] is not None
        backend.lose(service.permits[0])
        assert (await first.done()).status == 503
    await all_free(sem)


async def test_openapi_shows_the_answers_that_a_route_may_give(sem: AnySemaphore) -> None:
    """Clients are generated from it."""
    require = RequirePermit(sem, status=429)
    responses = service_with(require).app.openapi()["paths"]["/plain"]["get"]["responses"]
    assert {"200", "429", "503"} <= responses.keys()
    assert responses["429"]["headers"]["Retry-After"]["schema"]["type"] == "integer"
    assert set(RequirePermit(sem).responses) == {503}


@pytest.mark.parametrize("version", ["0.105.0", "0.117.1", "0.99.1"])
def test_a_version_that_ends_dependencies_early_is_refused(version: str) -> None:
    """A limit that leaves streamed bodies out would be believed to hold."""
    with pytest.raises(ImportError, match="before the response was sent"):
        _see_that_responses_are_covered(version)


def test_without_fastapi_the_extra_is_named() -> None:
    """The error says what to do."""
    code = "import sys; sys.modules['fastapi'] = None; import redsem_async.fastapi"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "pip install 'redsem-async[fastapi]'" in done.stderr.splitlines()[-1]
