"""What answers the requests of a test."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any


class Upstream:
    """Answers once `go` is set, a chunk at a time, as a transport of *http* without a network."""

    def __init__(self, http: Any) -> None:
        self.go = asyncio.Event()
        self.inside = self.most = self.requests = 0
        self._http = http

    async def answer(self, request: Any) -> Any:
        self.requests += 1
        path = request.url.path
        if path == "/redirect":
            return self._http.Response(302, headers={"Location": "/slow"})
        if path == "/refused":
            raise self._http.RemoteProtocolError("refused")
        if path in ("/slow", "/broken"):
            return self._http.Response(200, content=self._chunks(broken=path == "/broken"))
        self._enters()
        try:
            await (asyncio.sleep(0.001) if path == "/quick" else self.go.wait())
        finally:
            self.inside -= 1
        return self._http.Response(200, content=self._end())

    def _enters(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)

    async def _chunks(self, *, broken: bool) -> AsyncIterator[bytes]:
        self._enters()
        try:
            yield b"{ "
            if broken:
                raise self._http.RemoteProtocolError("the body ended early")
            await self.go.wait()
            yield b'"answer":"a"}'
        finally:
            self.inside -= 1

    async def _end(self) -> AsyncIterator[bytes]:
        yield b"{}"
