"""Floors of a hand-off: publish to message, with a socket, a parser and nothing else."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import hiredis

from benchmarks._baselines import connect, packed
from benchmarks._children import JobContext


class _Blocking:
    """A blocking socket. It blocks its whole process, as a program without event loop does."""

    def __init__(self, connection: Any) -> None:
        self._socket = connection._sock
        self._reader = hiredis.Reader()
        self.send = self._socket.sendall

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251

    async def read(self) -> tuple[Any, float]:
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65536))
        return reply, time.monotonic()


class _Protocol(asyncio.Protocol):
    """A protocol on the event loop."""

    sleep = staticmethod(asyncio.sleep)

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._replies: asyncio.Queue[tuple[Any, float]] = asyncio.Queue()
        self.read = self._replies.get

    def connection_made(self, transport: Any) -> None:
        self.send = transport.write

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self._replies.put_nowait((reply, time.monotonic()))


@asynccontextmanager
async def _opened(url: str, *, blocking: bool) -> AsyncGenerator[_Blocking | _Protocol]:
    connection = connect(url)
    try:
        if blocking:
            yield _Blocking(connection)
            return
        connection._sock.settimeout(0)
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_connection(_Protocol, sock=connection._sock.dup())
        yield protocol
        transport.close()
    finally:
        connection.disconnect()


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish the time until *count* messages were received, each after *gap* seconds."""

    url: str
    channel: str
    count: int
    gap: float
    blocking: bool

    async def run(self, context: JobContext) -> None:
        async with _opened(self.url, blocking=self.blocking) as link:
            received = 0
            while received < self.count:
                await link.sleep(self.gap)
                link.send(packed("PUBLISH", self.channel, str(time.monotonic())))
                received += (await link.read())[0]


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive what `Publish` sends; returns the seconds that each message took."""

    published: Publish

    async def run(self, context: JobContext) -> list[float]:
        times: list[float] = []
        async with _opened(self.published.url, blocking=self.published.blocking) as link:
            link.send(packed("SUBSCRIBE", self.published.channel))
            await link.read()
            while len(times) < self.published.count:
                (_kind, _channel, sent), came = await link.read()
                times.append(came - float(sent))
        return times
