"""What RequirePermit does beside the promises of every front."""

import asyncio
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, Request, Security, WebSocket
from fastapi.responses import Response
from starlette.requests import ClientDisconnect

from redsem_async import FairSemaphore, Permit
from redsem_async.fastapi import RequirePermit, _see_that_responses_are_covered
from redsem_async.testing import MemoryBackend
from tests.harness.wait import all_free, until, waiting
from tests.integrations.web.exchange import Exchange


@pytest.fixture
def limit(sem: FairSemaphore) -> Any:
    """The dependency."""
    return Depends(RequirePermit(sem))


@pytest.fixture
def app() -> FastAPI:
    return FastAPI()


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_client_that_hangs_up_in_its_second_queue_leaves_both(
    app: FastAPI, sem: FairSemaphore, backend: MemoryBackend, limit: Any, kind: str
) -> None:
    """One of its tenant and one for all, say: both notice a disconnect."""
    first = FairSemaphore(backend, "first", 1)
    limits = [Depends(RequirePermit(first)), limit]

    @app.get("/", dependencies=limits)
    async def plain() -> None: ...

    @app.websocket("/", dependencies=limits)
    async def ws(websocket: WebSocket) -> None: ...

    async with sem, Exchange(app, kind=kind) as leaver:
        await waiting(sem, 1)
        leaver.hang_up()
        await leaver.done()
        await waiting(sem, 0)
        await all_free(first)


async def test_a_client_that_hangs_up_before_its_body_has_arrived_never_waits(
    app: FastAPI, sem: FairSemaphore, limit: Any
) -> None:
    @app.post("/", dependencies=[limit])
    async def plain() -> None: ...

    headers = {"content-length": "4"}
    async with Exchange(app, method="POST", headers=headers, body=None) as leaver:
        leaver.hang_up()
        await leaver.done()
    assert leaver.status == 499
    assert not await sem.exists()
    headers = {"content-length": "99999"}  # which is not read before it has a permit
    async with sem, Exchange(app, method="POST", headers=headers, body=None):
        await waiting(sem, 1)


async def test_a_disconnect_that_the_handler_finds_is_its_own(
    app: FastAPI, sem: FairSemaphore, limit: Any
) -> None:
    """It may read the body itself, and handle what happens then."""

    @app.post("/", dependencies=[limit])
    async def reads(request: Request) -> None:
        await request.body()

    @app.exception_handler(ClientDisconnect)
    async def left(_: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=418)

    headers = {"transfer-encoding": "chunked"}
    async with Exchange(app, method="POST", headers=headers, body=None) as leaver:
        leaver.hang_up()
        await leaver.done()
    assert leaver.status == 418
    await all_free(sem)


async def test_who_waits_behind_an_accepted_websocket_reads_none_of_its_messages(
    app: FastAPI, sem: FairSemaphore, limit: Any
) -> None:
    """They are for the handler."""

    async def accept(websocket: WebSocket) -> None:
        await websocket.accept()

    @app.websocket("/", dependencies=[Depends(accept), limit])
    async def ws(websocket: WebSocket) -> None:
        await websocket.send_text(await websocket.receive_text())

    async with Exchange(app, kind="websocket") as socket:
        async with sem:
            socket.say({"type": "websocket.receive", "text": "one"})
            await waiting(sem, 1)
        await socket.done()
    assert "one" in [message.get("text") for message in socket.sent]


async def test_one_object_is_one_permit_in_a_request(app: FastAPI, sem: FairSemaphore) -> None:
    """With security scopes or without a cache FastAPI calls it again: it must not wait then."""
    require = RequirePermit(sem, timeout=0.5)

    async def user(permit: Annotated[Permit, Depends(require)]) -> Permit:
        return permit

    @app.get("/")
    async def plain(
        one: Annotated[Permit, Depends(require)],
        same: Annotated[Permit, Depends(require)],
        scoped: Annotated[Permit, Security(user, scopes=["all"])],
        again: Annotated[Permit, Depends(require, use_cache=False)],
    ) -> bool:
        return one is same is scoped is again

    for _ in range(2):
        assert (await Exchange(app).done()).body == b"true"
        await all_free(sem)


async def test_background_tasks_are_counted(app: FastAPI, sem: FairSemaphore, limit: Any) -> None:
    """In FastAPI dependencies end after them."""
    go = asyncio.Event()

    @app.get("/", dependencies=[limit])
    async def background(tasks: BackgroundTasks) -> None:
        tasks.add_task(go.wait)

    async with Exchange(app) as exchange:
        await exchange.heard("http.response.body")
        assert await sem.locked()
        go.set()
        await exchange.done()
    await all_free(sem)


async def test_a_middleware_of_starlette_in_between_changes_nothing(
    app: FastAPI, sem: FairSemaphore, limit: Any
) -> None:
    """BaseHTTPMiddleware runs the application in a task and with streams of its own."""

    @app.middleware("http")
    async def passes_on(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    @app.get("/", dependencies=[limit])
    async def waits() -> None:
        await asyncio.Event().wait()

    async with Exchange(app) as first:
        await until(sem.locked)
        async with Exchange(app) as leaver:
            await waiting(sem, 1)
            leaver.hang_up()
            await waiting(sem, 0)
        await sem.delete()
        assert (await first.done()).status == 503
    await all_free(sem)


async def test_openapi_shows_the_error_responses(app: FastAPI, sem: FairSemaphore) -> None:
    """Clients are generated from it."""
    require = RequirePermit(sem, status=429)
    app.get("/", responses=require.responses)(lambda: "yes")
    responses = app.openapi()["paths"]["/"]["get"]["responses"]
    assert {"200", "429", "503"} <= responses.keys()
    assert responses["429"]["headers"]["Retry-After"]["schema"]["type"] == "integer"
    assert set(RequirePermit(sem).responses) == {503}


@pytest.mark.parametrize("version", ["0.105.0", "0.117.1", "0.99.1"])
def test_a_version_that_ends_dependencies_early_is_refused(version: str) -> None:
    """Streamed bodies would not be limited."""
    with pytest.raises(ImportError, match="before the response was sent"):
        _see_that_responses_are_covered(version)
