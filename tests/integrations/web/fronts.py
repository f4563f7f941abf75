"""What limits the requests of a service, and clients of it: the same for every front.

A front is the middleware or the dependency, in this process or in a real uvicorn.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
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
from redsem_async.testing import EmbeddedRedis, MemoryBackend
from tests.harness.clients import Kind
from tests.harness.wait import cancelled, in_background, soon, until
from tests.integrations.web.exchange import Exchange
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


# -- in this process


class HereRequest:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def answer(self) -> Answer:
        exchange = self._exchange
        try:
            await exchange.done()
        except Exception as error:
            last = exchange.sent[-1]
            if last.get("more_body", last["type"] == "http.response.start"):
                raise CutOff from error
        return Answer(exchange.status, exchange.headers, exchange.body)

    async def streams(self) -> None:
        await self._exchange.heard("http.response.body")

    async def hang_up(self) -> None:
        self._exchange.hang_up()
        await self._exchange.done()


class HereSocket(HereRequest):
    _received = 0

    async def send(self, text: str) -> None:
        self._exchange.say({"type": "websocket.receive", "text": text})

    async def recv(self) -> Any:
        self._received += 1
        await self._exchange.heard("websocket.send", self._received)
        return self._exchange.sent[-1]["text"]

    async def closed(self) -> int:
        await self._exchange.done()
        code: int = self._exchange.sent[-1]["code"]
        return code


class Here:
    """A service in this process, with no server in between."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.exchanges: list[Exchange] = []

    def ask(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> HereRequest:
        said = dict(headers or {})
        if body is not None and len(body) < 100_000:
            said["content-length"] = str(len(body))
        raw = tuple((name.encode(), value.encode("latin-1")) for name, value in said.items())
        method = "GET" if body is None else "POST"
        return HereRequest(self.start(path, method=method, body=body or b"", headers=raw))

    async def connect(self) -> HereSocket:
        exchange = self.start("/ws", kind="websocket")
        await until(lambda: exchange.sent or exchange.task.done())
        if exchange.kinds[0] != "websocket.accept":
            raise Denied(await HereRequest(exchange).answer())
        return HereSocket(exchange)

    async def entered(self) -> int:
        return len(self.service.permits)

    async def go(self) -> None:
        self.service.may_go()

    def start(self, path: str, **options: Any) -> Exchange:
        """Begin an exchange; it is ended with the service."""
        self.exchanges.append(Exchange(self.service.app, path, **options))
        return self.exchanges[-1]

    async def end(self) -> None:
        self.service.may_go()
        await cancelled(*(exchange.task for exchange in self.exchanges))


class InProcess:
    """Serves in this process."""

    def __init__(self, form: str, kind: Kind) -> None:
        self.form = form
        self.backend = MemoryBackend()
        self.sem: AnySemaphore = kind(self.backend, "web", 1)
        self.group = SemaphoreGroup(self.backend, "web", 1)
        self.down = self.backend.down
        self.up = self.backend.up

    def gate(self, source: Any, **options: Any) -> object:
        """What limits requests."""
        if self.form == "dependency":
            return RequirePermit(source, **options)
        return ConcurrencyLimitMiddleware(FastAPI(), source, **options)

    @asynccontextmanager
    async def serve(
        self, *, per_tenant: bool = False, semaphore: Mapping[str, Any] | None = None, **gate: Any
    ) -> AsyncGenerator[Here]:
        sem: AnySemaphore | SemaphoreGroup = self.group if per_tenant else self.sem
        if semaphore:
            sem = type(self.sem)(self.backend, "web", 1, **semaphore)
        here = Here(Service(sem, self.form, **gate))
        try:
            yield here
        finally:
            await here.end()


# -- in a real uvicorn


class ThereRequest:
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


class ThereSocket:
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


class There:
    """A service in a real uvicorn."""

    def __init__(self, server: Uvicorn, client: httpx.AsyncClient) -> None:
        self.server = server
        self._client = client

    def ask(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> ThereRequest:
        raw = [(key, value.encode("latin-1")) for key, value in (headers or {}).items()]
        return ThereRequest(self._client, path, content=body, headers=raw)

    async def connect(self) -> ThereSocket:
        try:
            url = self.server.url.replace("http", "ws") + "/ws"
            return ThereSocket(await websockets.connect(url))
        except websockets.InvalidStatus as denied:
            response = denied.response
            headers = dict(response.headers.raw_items())
            raise Denied(Answer(response.status_code, headers, bytes(response.body))) from denied

    async def entered(self) -> int:
        return int((await self._client.get("/free/entered")).text)

    async def go(self) -> None:
        (await self._client.post("/free/go")).raise_for_status()


class OnUvicorn:
    """Serves in processes of their own, on a Redis of this test alone."""

    def __init__(self, form: str, server: EmbeddedRedis, redis: Redis, folder: Path) -> None:
        self.form = form
        self.redis = redis
        self.sem: AnySemaphore = FairSemaphore(redis, "web", 1)
        self.group = SemaphoreGroup(redis, "web", 1)
        self.down = server.kill
        self.up = server.restart
        self._url = server.url
        self._folder = folder

    @asynccontextmanager
    async def serve(
        self,
        *,
        limit: int = 1,
        per_tenant: bool = False,
        semaphore: Mapping[str, Any] | None = None,
        drain: float = 2.0,
        graceful: int | None = None,
        **gate: Any,
    ) -> AsyncGenerator[There]:
        said = {
            "url": self._url,
            "form": self.form,
            "options": {"limit": limit, "per_tenant": per_tenant, **(semaphore or {})},
            "drain": drain,
            "graceful": graceful,
            **gate,
        }
        uvicorn = Uvicorn(self._folder, str(SERVICE), "{fd}", json.dumps(said))
        limits = httpx.Limits(max_connections=None)
        async with (
            serving(uvicorn) as server,
            httpx.AsyncClient(base_url=server.url, timeout=30, limits=limits) as client,
        ):
            yield There(server, client)


Request = HereRequest | ThereRequest
Socket = HereSocket | ThereSocket
Served = Here | There
Front = InProcess | OnUvicorn
