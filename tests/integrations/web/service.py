"""A FastAPI service under a limit, in this process or in a real uvicorn.

``service.py FD OPTIONS`` serves it, with the options of `Service` in JSON. Every route but those
under ``/free`` needs a permit, by the dependency or by the middleware.
"""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request, WebSocket
from fastapi.requests import HTTPConnection
from fastapi.responses import StreamingResponse
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, Permit, PermitLost, SemaphoreGroup, aclose
from redsem_async.asgi import ConcurrencyLimitMiddleware, header
from redsem_async.fastapi import RequirePermit


def tenant(request: Request) -> str:
    return request.headers.get("x-tenant", "")


class Service:
    """The application, and what its routes share.

    Args:
        sem: a group has a semaphore for each value of the header X-Tenant.
        form: ``middleware`` or ``dependency``.
        gate: options of the form.
    """

    def __init__(self, sem: AnySemaphore | SemaphoreGroup, form: str, **gate: Any) -> None:
        self.sem = sem
        self.go = asyncio.Event()
        self.thread_may_go = threading.Event()
        self.permits: list[Permit | None] = []  # of the requests that have entered
        per_tenant = isinstance(sem, SemaphoreGroup)
        self.app = FastAPI()
        enter: Callable[..., Any] = self._enter
        if form == "middleware":
            self.app.add_middleware(
                ConcurrencyLimitMiddleware,
                sem_or_group=sem,
                key=header("X-Tenant") if per_tenant else None,
                exempt=lambda scope: scope["path"].startswith("/free"),
                **gate,
            )
        else:
            require = RequirePermit(sem, key=tenant if per_tenant else None, **gate)

            async def enter_with(permit: Annotated[Permit | None, Depends(require)]) -> None:
                self.permits.append(permit)

            enter = enter_with

        self.app.include_router(self._limited(), dependencies=[Depends(enter)])

    async def _enter(self, connection: HTTPConnection) -> None:
        self.permits.append(connection.scope["redsem_async.permit"])

    def may_go(self) -> None:
        """Have the handlers answer."""
        self.go.set()
        self.thread_may_go.set()

    def _limited(self) -> APIRouter:
        router = APIRouter()

        @router.get("/wait")
        async def wait() -> str:
            await self.go.wait()
            return "yes"

        @router.get("/sync")
        def sync() -> str:
            self.thread_may_go.wait(20)
            return "yes"

        async def chunks() -> AsyncIterator[bytes]:
            while not self.go.is_set():
                yield b"."
                await asyncio.sleep(0.005)

        @router.get("/stream")
        async def stream() -> StreamingResponse:
            return StreamingResponse(chunks())

        def slow_chunks() -> Iterator[bytes]:
            yield b"."
            self.thread_may_go.wait(20)

        @router.get("/sync-stream")
        def sync_stream() -> StreamingResponse:
            return StreamingResponse(slow_chunks())

        @router.get("/stubborn")
        async def stubborn() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.5)

        @router.post("/echo")
        async def echo(request: Request) -> int:
            return len(await request.body())

        @router.post("/json")
        async def declared(body: dict[str, int]) -> dict[str, int]:
            return body

        @router.post("/detach")
        async def detach() -> str:
            [permit] = self.permits
            assert permit is not None
            return await permit.detach(60)

        @router.get("/error")
        async def error() -> None:
            raise ZeroDivisionError

        @router.websocket("/ws")
        async def ws(websocket: WebSocket) -> None:
            await websocket.accept()
            async for text in websocket.iter_text():
                await websocket.send_text(text)

        return router


class Served(Service):
    """The same in a process of its own, on Redis."""

    def __init__(self, url: str, options: dict[str, Any], drain: float, **gate: Any) -> None:
        self._redis = Redis.from_url(url)
        super().__init__(FairSemaphore(self._redis, "web", **options), **gate)
        self._drain = drain
        self._jobs: list[asyncio.Task[None]] = []
        self.app.router.lifespan_context = self._lifespan
        self.app.include_router(self._free(), prefix="/free")

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncGenerator[None]:
        yield
        await aclose(self._redis, drain=self._drain)
        await asyncio.gather(*self._jobs)
        await self._redis.aclose()

    def _free(self) -> APIRouter:
        router = APIRouter()

        @router.get("/entered")
        async def entered() -> int:
            return len(self.permits)

        @router.post("/go")
        async def go() -> None:
            self.may_go()

        @router.post("/job")
        async def starts_a_job(seconds: float) -> None:
            assert isinstance(self.sem, AnySemaphore)
            permit = await self.sem.acquire()
            self._jobs.append(asyncio.create_task(self._job(permit, seconds)))

        return router

    async def _job(self, permit: Permit, seconds: float) -> None:
        try:
            async with permit:
                await asyncio.sleep(seconds)
            await self._redis.set("job", "done")
        except PermitLost:
            await self._redis.set("job", "stopped")


if __name__ == "__main__":
    said = json.loads(sys.argv[2])
    graceful = said.pop("graceful")
    uvicorn.run(
        Served(**said).app, fd=int(sys.argv[1]), timeout_graceful_shutdown=graceful, lifespan="on"
    )
