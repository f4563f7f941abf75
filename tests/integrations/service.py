"""A FastAPI service for a real uvicorn: ``service.py FD OPTIONS``, the options in JSON.

Every route but those under ``/free`` is under a limit, by the dependency or by the middleware.
"""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request, WebSocket
from fastapi.responses import StreamingResponse
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, PermitLost, SemaphoreGroup, aclose
from redsem_async.asgi import ConcurrencyLimitMiddleware, header
from redsem_async.fastapi import RequirePermit


class State:
    """What the routes of a service share."""

    def __init__(self, redis: Redis, name: str) -> None:
        self.redis = redis
        self.name = name
        self.go = asyncio.Event()
        self.thread_may_go = threading.Event()
        self.entered = 0
        self.jobs: list[asyncio.Task[None]] = []

    async def enters(self) -> None:
        """A dependency of the limited routes, after the permit."""
        self.entered += 1


def service(
    *,
    form: str,
    url: str,
    name: str,
    limit: int = 1,
    per_tenant: bool = False,
    lease: float = 30.0,
    drain: float = 2.0,
    **gate: Any,
) -> FastAPI:
    """Make the application."""
    redis = Redis.from_url(url)
    sem: AnySemaphore | SemaphoreGroup
    sem = (SemaphoreGroup if per_tenant else FairSemaphore)(redis, name, limit, lease=lease)
    gate.setdefault("timeout", None)
    state = State(redis, name)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        await aclose(redis, drain=drain)
        await asyncio.gather(*state.jobs)
        await redis.aclose()

    app = FastAPI(lifespan=lifespan)
    limits = [Depends(state.enters)]
    if form == "middleware":
        app.add_middleware(
            ConcurrencyLimitMiddleware,
            sem_or_group=sem,
            key=header("x-tenant") if per_tenant else None,
            exempt=lambda scope: scope["path"].startswith("/free"),
            **gate,
        )
    else:
        require = RequirePermit(sem, key=tenant if per_tenant else None, **gate)
        limits.insert(0, Depends(require))
    app.include_router(free(state, sem), prefix="/free")
    app.include_router(limited(state), dependencies=limits)
    return app


def tenant(request: Request) -> str:
    return request.headers.get("x-tenant", "")


def free(state: State, sem: AnySemaphore | SemaphoreGroup) -> APIRouter:
    """Routes for the test to look in and to have its way."""
    router = APIRouter()

    @router.get("/entered")
    async def how_many() -> int:
        return state.entered

    @router.post("/go")
    async def may_go() -> None:
        state.go.set()
        state.thread_may_go.set()

    @router.post("/job")
    async def starts_a_job(seconds: float) -> None:
        async def job() -> None:
            try:
                async with sem if isinstance(sem, AnySemaphore) else sem["jobs"]:
                    started.set()
                    await asyncio.sleep(seconds)
                await state.redis.set(f"{state.name}-job", "done")
            except PermitLost:
                await state.redis.set(f"{state.name}-job", "stopped")

        started = asyncio.Event()
        state.jobs.append(asyncio.create_task(job()))
        await started.wait()

    return router


def limited(state: State) -> APIRouter:
    """What a client may ask for when it has a permit."""
    router = APIRouter()

    @router.get("/work")
    async def work() -> int:
        inside: int = await state.redis.incr(f"{state.name}-inside")
        await asyncio.sleep(0.01)
        await state.redis.decr(f"{state.name}-inside")
        return inside

    @router.get("/wait")
    async def wait() -> str:
        await state.go.wait()
        return "yes"

    @router.get("/sync")
    def sync() -> str:
        state.thread_may_go.wait(20)
        return "yes"

    async def chunks() -> AsyncIterator[bytes]:
        while not state.go.is_set():
            yield b"."
            await asyncio.sleep(0.01)

    @router.get("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(chunks())

    @router.get("/stubborn")
    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.5)

    @router.post("/echo")
    async def echo(request: Request) -> int:
        return len(await request.body())

    @router.websocket("/ws")
    async def ws(websocket: WebSocket) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            await websocket.send_text(text)

    return router


if __name__ == "__main__":
    options = json.loads(sys.argv[2])
    graceful = options.pop("graceful", None)
    uvicorn.run(
        service(**options), fd=int(sys.argv[1]), timeout_graceful_shutdown=graceful, lifespan="on"
    )
