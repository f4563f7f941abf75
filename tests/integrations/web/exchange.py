"""One exchange with an ASGI application, with no server in between."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any, Self

from tests.harness.wait import soon, until

Message = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]


class Exchange:
    """Runs *app* for one request or WebSocket: sends what a client does, keeps what it gets."""

    def __init__(
        self,
        app: App,
        path: str = "/",
        *,
        method: str = "GET",
        headers: tuple[tuple[bytes, bytes], ...] = (),
        kind: str = "http",
        body: bytes | None = b"",
        denial: bool = True,
        spec: str = "2.3",
    ) -> None:
        self.sent: list[Message] = []
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._gone: Message | None = None
        self.scope: dict[str, Any] = {
            "type": kind,
            "asgi": {"version": "3.0", "spec_version": spec},
            "http_version": "1.1",
            "method": method,
            "scheme": "http" if kind == "http" else "ws",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": list(headers),
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "state": {},
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}} if denial else {},
        }
        if kind == "websocket":
            self.say({"type": "websocket.connect"})
        elif body is not None:
            self.say({"type": "http.request", "body": body, "more_body": False})
        self.task = asyncio.ensure_future(app(self.scope, self._receive, self._send))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def say(self, message: Message) -> None:
        """Send *message*, as the server passes it on."""
        self._incoming.put_nowait(message)

    def hang_up(self) -> None:
        """The client goes."""
        kind = self.scope["type"]
        self.say({"type": f"{kind}.disconnect", **({"code": 1006} if kind != "http" else {})})

    @property
    def unread(self) -> int:
        """How many messages nobody has received yet."""
        return self._incoming.qsize()

    async def _receive(self) -> Message:
        if self._gone is not None:
            return self._gone
        message = await self._incoming.get()
        if message["type"].endswith(".disconnect"):
            self._gone = message
        return message

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
        await asyncio.sleep(0)

    async def heard(self, kind: str, count: int = 1) -> None:
        """Wait until the application has sent *count* messages of a kind."""
        await until(lambda: self.task.done() or self._count(kind) >= count)
        assert self._count(kind) >= count, (self.sent, self.task)

    def _count(self, kind: str) -> int:
        return sum(message["type"] == kind for message in self.sent)

    async def done(self) -> Self:
        """Wait until the application is done; its exception is raised here."""
        await soon(asyncio.shield(self.task), within=5)
        return self

    @property
    def kinds(self) -> list[str]:
        """The types of what was sent."""
        return [message["type"] for message in self.sent]

    @property
    def status(self) -> int:
        """Of the response, or of the denial."""
        started = [m for m in self.sent if m["type"].endswith("http.response.start")]
        assert len(started) == 1, self.sent
        status: int = started[0]["status"]
        return status

    @property
    def body(self) -> bytes:
        """What was sent of it."""
        return b"".join(m.get("body", b"") for m in self.sent if m["type"].endswith(".body"))

    @property
    def headers(self) -> dict[str, str]:
        """Of the response, or of the denial."""
        raw = [pair for message in self.sent for pair in message.get("headers", ())]
        return {name.decode().lower(): value.decode("latin-1") for name, value in raw}
