"""One exchange with an ASGI application, with no server in between."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
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
        headers: Mapping[str, str] | None = None,
        kind: str = "http",
        body: bytes | None = b"",
        denial: bool = True,
    ) -> None:
        self.sent: list[Message] = []
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._gone: Message | None = None
        raw = [(k.lower().encode(), v.encode("latin-1")) for k, v in (headers or {}).items()]
        self.scope: dict[str, Any] = {
            "type": kind,
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http" if kind == "http" else "ws",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": raw,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "state": {},
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}} if denial else {},
        }
        if kind == "websocket":
            self.say({"type": "websocket.connect"})
        elif body is not None:
            for start in range(0, len(body) + 1, 16_384):
                part, more = body[start : start + 16_384], start + 16_384 <= len(body)
                self.say({"type": "http.request", "body": part, "more_body": more})
        self.task = asyncio.ensure_future(app(self.scope, self._receive, self._send))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
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

        def sent() -> bool:
            return [message["type"] for message in self.sent].count(kind) >= count

        await until(lambda: self.task.done() or sent())
        assert sent(), (self.sent, self.task)

    async def done(self) -> Self:
        """Wait until the application is done; its exception is raised here."""
        await soon(asyncio.shield(self.task), within=5)
        return self

    async def answer(self) -> Self:
        """Wait until the application is done; its exception is for the server's log."""
        await until(self.task.done, within=15)
        if not self.task.cancelled():
            self.task.exception()
        return self

    @property
    def status(self) -> int:
        """Of the response, or of the denial."""
        [started] = [m for m in self.sent if m["type"].endswith("http.response.start")]
        status: int = started["status"]
        return status

    @property
    def body(self) -> bytes:
        """What was sent of it."""
        return b"".join(m.get("body", b"") for m in self.sent if m["type"].endswith(".body"))

    @property
    def retry_after(self) -> int:
        """Of the response, or of the denial."""
        raw = dict(pair for message in self.sent for pair in message.get("headers", ()))
        return int(raw[b"retry-after"])
