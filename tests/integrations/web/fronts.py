"""What limits the requests of a service, by the middleware or by the dependency, and clients."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import websockets
from fastapi import FastAPI
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, SemaphoreGroup
from redsem_async.asgi import ConcurrencyLimitMiddleware
from redsem_async.fastapi import RequirePermit
from redsem_async.testing import EmbeddedRedis
from tests.harness.asgi import in_uvicorn
from tests.harness.clients import Client, Kind
from tests.harness.wait import cancelled, in_background, soon
from tests.integrations.web.service import Service
from tests.integrations.web.uvicorns import Uvicorn, serving

FORMS = ("middleware", "dependency")
SERVICE = Path(__file__).with_name("service.py")


class CutOff(Exception):
    """The response ended before its end."""


class Denied(Exception):
    """The WebSocket was answered with a response."""

    def __init__(self, answer: "Answer") -> None:
        super().__init__(answer)
        self.answer = answer


class Answer(NamedTuple):
    """A whole response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def retry_after(self) -> int:
        return int(self.headers["retry-after"])


class Request:
    """One that has been sent."""

    def __init__(self, client: httpx.AsyncClient, path: str, **options: Any) -> None:
        self._began = asyncio.Event()
        self._task = in_background(self._read(client, path, **options))

    async def _read(self, client: httpx.AsyncClient, path: str, **options: Any) -> Answer:
        method = "GET" if options["content"] is None else "POST"
        body = b""
        async with client.stream(method, path, **options) as response:
            try:
                async for chunk in response.aiter_raw():
                    body += chunk
                    self._began.set()
            except httpx.RemoteProtocolError as error:
                raise CutOff from error
        return Answer(response.status_code, response.headers, body)

    async def answer(self) -> Answer:
        return await soon(self._task, within=15)

    async def streams(self) -> None:
        await soon(self._began.wait(), within=15)

    async def hang_up(self) -> None:
        await cancelled(self._task)


class Socket:
    """An open WebSocket."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self._socket = socket
        self.send = socket.send
        self.recv = socket.recv

    async def hang_up(self) -> None:
        self._socket.transport.abort()

    async def closed(self) -> int:
        await soon(self._socket.wait_closed(), within=15)
        assert self._socket.close_code is not None
        return self._socket.close_code


class Served:
    """A service behind an address."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    def ask(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Request:
        raw = [(key, value.encode("latin-1")) for key, value in (headers or {}).items()]
        return Request(self.client, path, content=body, headers=raw)

    async def connect(self) -> Socket:
        try:
            url = str(self.client.base_url).replace("http", "ws") + "/ws"
            return Socket(await websockets.connect(url))
        except websockets.InvalidStatus as denied:
            response = denied.response
            headers = dict(response.headers.raw_items())
            raise Denied(Answer(response.status_code, headers, bytes(response.body))) from denied


class Here(Served):
    """A service in the event loop of the test."""

    def __init__(self, client: httpx.AsyncClient, service: Service) -> None:
        super().__init__(client)
        self.permits = service.permits
        self.go = service.may_go


class There(Served):
    """A service in a process of its own."""

    def __init__(self, client: httpx.AsyncClient, server: Uvicorn) -> None:
        super().__init__(client)
        self.server = server

    async def entered(self) -> int:
        return int((await self.client.get("/free/entered")).text)

    async def go(self) -> None:
        (await self.client.post("/free/go")).raise_for_status()


def client_of(url: str) -> httpx.AsyncClient:
    """A client that has as many connections as it likes."""
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=url, timeout=30, limits=limits, trust_env=False)


class Front:
    """Serves in the event loop of the test.

    Args:
        form: one of `FORMS`.
        kind: of the semaphore.
        backend: where it is kept.
        down: takes that away.
        up: brings it back.
    """

    def __init__(
        self,
        form: str,
        kind: Kind,
        backend: Client,
        down: Callable[[], object],
        up: Callable[[], object],
    ) -> None:
        self.form = form
        self.backend: Any = backend
        self.sem: AnySemaphore = kind(backend, "web", 1)
        self.group = SemaphoreGroup(self.backend, "web", 1)
        self.down, self.up = down, up

    def gate(self, source: Any, **options: Any) -> object:
        """What limits requests."""
        if self.form == "dependency":
            return RequirePermit(source, **options)
        return ConcurrencyLimitMiddleware(FastAPI(), source, **options)

    def service(
        self, *, per_tenant: bool = False, semaphore: Mapping[str, Any] | None = None, **gate: Any
    ) -> Service:
        """The application, with these options of the gate and of the semaphore."""
        sem = type(self.sem)(self.backend, "web", 1, **semaphore) if semaphore else self.sem
        return Service(self.group if per_tenant else sem, self.form, **gate)

    @asynccontextmanager
    async def serve(self, **options: Any) -> AsyncGenerator[Here]:
        """Serve it, with options of `service`."""
        service = self.service(**options)
        async with in_uvicorn(service.app) as url, client_of(url) as client:
            try:
                yield Here(client, service)
            finally:
                service.may_go()


class OnUvicorn:
    """Serves in processes of their own, on a Redis of this test alone."""

    def __init__(self, form: str, server: EmbeddedRedis, redis: Redis, folder: Path) -> None:
        self.redis = redis
        self.sem: AnySemaphore = FairSemaphore(redis, "web", 1)
        self._form = form
        self._url = server.url
        self._folder = folder

    @asynccontextmanager
    async def serve(
        self, *, drain: float = 2.0, graceful: int | None = None, **semaphore: Any
    ) -> AsyncGenerator[There]:
        said = {
            "url": self._url,
            "form": self._form,
            "options": {"limit": 1, **semaphore},
            "drain": drain,
            "graceful": graceful,
        }
        uvicorn = Uvicorn(self._folder, str(SERVICE), "{fd}", json.dumps(said))
        async with serving(uvicorn) as server, client_of(server.url) as client:
            yield There(client, server)
