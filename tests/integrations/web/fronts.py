"""What limits the requests of a service, by the middleware or by the dependency, and clients."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from redis.asyncio import Redis

from redsem_async import FairSemaphore, SemaphoreGroup
from redsem_async.asgi import ConcurrencyLimitMiddleware
from redsem_async.fastapi import RequirePermit
from redsem_async.testing import EmbeddedRedis
from tests.integrations.web.exchange import Exchange
from tests.integrations.web.service import Service
from tests.integrations.web.uvicorns import Uvicorn, serving

FORMS = ("middleware", "dependency")
SERVICE = Path(__file__).with_name("service.py")


class Here:
    """A service in the event loop of the test, and its clients, who leave when it ends."""

    def __init__(self, service: Service, clients: AsyncExitStack) -> None:
        self.permits = service.permits
        self.go = service.may_go
        self._app = service.app
        self._clients = clients

    async def ask(self, path: str, body: bytes | None = None, **options: Any) -> Exchange:
        method = "GET" if body is None else "POST"
        exchange = Exchange(self._app, path, method=method, body=body or b"", **options)
        return await self._clients.enter_async_context(exchange)

    async def answer(self, path: str, body: bytes | None = None, **options: Any) -> Exchange:
        return await (await self.ask(path, body, **options)).answer()


class Front:
    """Serves in the event loop of the test, by one of `FORMS`."""

    def __init__(self, form: str, backend: Any) -> None:
        self.form = form
        self.backend = backend
        self.sem = FairSemaphore(backend, "web", 1)

    def gate(self, source: Any, **options: Any) -> object:
        """What limits requests."""
        if self.form == "dependency":
            return RequirePermit(source, **options)
        return ConcurrencyLimitMiddleware(FastAPI(), source, **options)

    @asynccontextmanager
    async def serve(
        self, *, per_tenant: bool = False, semaphore: Mapping[str, Any] | None = None, **gate: Any
    ) -> AsyncGenerator[Here]:
        """Serve it, with these options of the gate and of the semaphore."""
        sem = FairSemaphore(self.backend, "web", 1, **semaphore) if semaphore else self.sem
        source = SemaphoreGroup(self.backend, "web", 1) if per_tenant else sem
        service = Service(source, self.form, **gate)
        async with AsyncExitStack() as clients:
            yield Here(service, clients)
            service.may_go()


class There:
    """A service in a process of its own."""

    def __init__(self, client: httpx.AsyncClient, server: Uvicorn) -> None:
        self.client = client
        self.server = server

    async def entered(self) -> int:
        return int((await self.client.get("/free/entered")).text)

    async def go(self) -> None:
        (await self.client.post("/free/go")).raise_for_status()


class OnUvicorn:
    """Serves in processes of their own, on a Redis of this test alone."""

    def __init__(self, form: str, server: EmbeddedRedis, redis: Redis, folder: Path) -> None:
        self.redis = redis
        self.sem = FairSemaphore(redis, "web", 1)
        self._said = {"url": server.url, "form": form}
        self._folder = folder

    @asynccontextmanager
    async def serve(
        self, *, drain: float = 2.0, graceful: int | None = None, **semaphore: Any
    ) -> AsyncGenerator[There]:
        said = {"options": {"limit": 1, **semaphore}, "drain": drain, "graceful": graceful}
        uvicorn = Uvicorn(self._folder, str(SERVICE), "{fd}", json.dumps(self._said | said))
        limits = httpx.Limits(max_connections=None)
        async with (
            serving(uvicorn) as server,
            httpx.AsyncClient(base_url=server.url, timeout=30, limits=limits) as client,
        ):
            yield There(client, server)
