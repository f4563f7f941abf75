"""What takes part in a round, that is, the upstream and worker processes."""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from ._record import Step

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"
_TOO_MANY = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 9\r\n\r\ntoo many\n"


class Upstream:
    """Like a provider with a concurrency cap, it refuses excess requests.

    It does not know the semaphore, so the events that it records are independent of it.
    """

    def __init__(self, events: list[Step]) -> None:
        """Append to *events*, and refuse every request until `accept` is called."""
        self.inside = self.capacity = 0
        self._events = events

    def accept(self, capacity: int) -> None:
        """Process up to *capacity* requests at once from now on."""
        self.capacity = capacity
        self._record("capacity", capacity)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncGenerator[str]:
        """Answer requests during a block, at this URL."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, ``GET /<number>``, one after the other."""
        # The task is cancelled at the end, which Python 3.11 would log.
        over = (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError)
        with contextlib.suppress(*over):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(int(head.split(b" ", 2)[1][1:])))
                await writer.drain()
        writer.close()

    async def _answer(self, number: int) -> bytes:
        if self.inside >= self.capacity:
            self._record("refused", number)
            return _TOO_MANY
        self.inside += 1
        self._record("entered", number)
        # As in a real service, started work continues when the client is gone.
        await asyncio.sleep(random.uniform(0.05, 0.12))
        self.inside -= 1
        self._record("left", number)
        return _OK

    def _record(self, kind: str, number: int) -> None:
        self._events.append(Step(kind, number, time.monotonic()))


@dataclass(eq=False, slots=True)
class Worker:
    """A process that runs `_worker`, and its requests."""

    label: str  # also in status()
    process: asyncio.subprocess.Process
    queued: set[int] = field(default_factory=set[int])  # assigned and not started yet
    started: set[int] = field(default_factory=set[int])  # and not answered yet
    counts: Counter[str] = field(default_factory=Counter[str])  # of its events, by kind
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # and all its events were read

    def write(self, line: object) -> None:
        """Write *line* as JSON. Few requests are in flight, so the pipe is never full."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line).encode() + b"\n")
