"""Floors of a hand-off: from PUBLISH to the message, with a socket, a parser and nothing else."""

import asyncio
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import hiredis

from benchmarks._children import Context


class _Blocking:
    """A blocking socket. It blocks its whole process, as a program without an event loop does."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._reader = hiredis.Reader()
        self.send = self._socket.sendall
        self.close = self._socket.close

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - it has no event loop

    async def read(self) -> tuple[Any, float]:
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65536))
        return reply, time.monotonic()


class _OnTheLoop(asyncio.Protocol):
    """A protocol of asyncio."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._replies: asyncio.Queue[tuple[Any, float]] = asyncio.Queue()
        self.read = self._replies.get
        self.sleep = asyncio.sleep

    def connection_made(self, transport: Any) -> None:
        self.send = transport.write
        self.close = transport.close

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self._replies.put_nowait((reply, time.monotonic()))


def _packed(*words: str) -> bytes:
    texts = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    return f"*{len(words)}\r\n{texts}".encode()


async def _connected(url: str, *, blocking: bool) -> Any:
    parts = urlsplit(url)
    assert parts.hostname is not None
    at = parts.hostname, parts.port or 6379
    if blocking:
        return _Blocking(*at)
    _, protocol = await asyncio.get_running_loop().create_connection(_OnTheLoop, *at)
    return protocol


async def publish(
    _: Context,
    url: str,
    channel: str,
    count: int,
    gap: float,
    blocking: bool,  # noqa: FBT001
) -> None:
    """A job: publish the time until *count* messages were received, each after *gap* seconds."""
    link = await _connected(url, blocking=blocking)
    received = 0
    while received < count:
        await link.sleep(gap)
        link.send(_packed("PUBLISH", channel, str(time.monotonic())))
        received += (await link.read())[0]
    link.close()


async def receive(
    _: Context,
    url: str,
    channel: str,
    count: int,
    blocking: bool,  # noqa: FBT001
) -> list[float]:
    """A job: receive what `publish` sends; returns how many seconds each message took."""
    link = await _connected(url, blocking=blocking)
    link.send(_packed("SUBSCRIBE", channel))
    await link.read()
    times: list[float] = []
    while len(times) < count:
        (_kind, _channel, sent), came = await link.read()
        times.append(came - float(sent))
    link.close()
    return times
