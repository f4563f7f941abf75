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
from fastapi import Depends, FastAPI, Request, WebSocket
from fastapi.responses import StreamingResponse
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, PermitLost, SemaphoreGroup, aclose
from redsem_async.asgi import ConcurrencyLimitMiddleware, header
from redsem_async.fastapi import RequirePermit


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
    go, thread_may_go = asyncio.Event(), threading.Event()
    jobs: list[asyncio.Task[None]] = []
    entered = 0

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        await aclose(redis, drain=drain)
        await asyncio.gather(*jobs)
        await redis.aclose()

    async def enters() -> None:
        nonlocal entered
        entered += 1

    app = FastAPI(lifespan=lifespan)
    if form == "middleware":
        app.add_middleware(
            ConcurrencyLimitMiddleware,
            sem_or_group=sem,
            key=header("x-tenant") if per_tenant else None,
            exempt=lambda scope: scope["path"].startswith("/free"),
            **gate,
        )
        limited = [Depends(enters)]
    else:
        key = (lambda request: request.headers.get("x-tenant", "")) if per_tenant else None
        limited = [Depends(RequirePermit(sem, key=key, **gate)), Depends(enters)]

    @app.get("/free/entered")
    async def how_many() -> int:
        return entered

    @app.post("/free/go")
    async def may_go() -> None:
        go.set()
        thread_may_go.set()

    @app.post("/free/job")
    async def starts_a_job(seconds: float) -> None:
        async def job() -> None:
            try:
                async with sem if isinstance(sem, AnySemaphore) else sem["jobs"]:
                    started.set()
                    await asyncio.sleep(seconds)
                await redis.set(f"{name}-job", "done")
            except PermitLost:
                await redis.set(f"{name}-job", "stopped")

        started = asyncio.Event()
        jobs.append(asyncio.create_task(job()))
        await started.wait()

    @app.get("/work", dependencies=limited)
    async def work() -> int:
        inside: int = await redis.incr(f"{name}-inside")
        await asyncio.sleep(0.01)
        await redis.decr(f"{name}-inside")
        return inside

    @app.get("/wait", dependencies=limited)
    async def wait() -> str:
        await go.wait()
        return "yes"

    @app.get("/sync", dependencies=limited)
    def sync() -> str:
        thread_may_go.wait(20)
        return "yes"

    async def chunks() -> AsyncIterator[bytes]:
        while not go.is_set():
            yield b"."
            await asyncio.sleep(0.01)

    @app.get("/stream", dependencies=limited)
    async def stream() -> StreamingResponse:
        return StreamingResponse(chunks())

    @app.get("/stubborn", dependencies=limited)
    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.5)

    @app.post("/echo", dependencies=limited)
    async def echo(request: Request) -> int:
        return len(await request.body())

    @app.websocket("/ws", dependencies=limited)
    async def ws(websocket: WebSocket) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            await websocket.send_text(text)

    return app


if __name__ == "__main__":
    options = json.loads(sys.argv[2])
    graceful = options.pop("graceful", None)
    uvicorn.run(
        service(**options), fd=int(sys.argv[1]), timeout_graceful_shutdown=graceful, lifespan="on"
    )
