"""The demo's processes, and how they talk with it: lines through their standard streams.

Not through the Redis under show. A pipe is a bounded queue, and it outlives its writer: what a
worker said before it was killed is still read, to the last line. Its end is a message too: a
child ends when its standard input does, so that none outlives the demo, however that ends.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

_EXIT_TIMEOUT = 2.0  # seconds for a child to end by itself


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a child.

    Attributes:
        kind: what; see the module of the child.
        number: of the request, or whatever else the kind goes with.
        at: when, by ``time.monotonic()``: one clock for all processes of a machine.
        detail: in words, where there is more to say.
    """

    kind: str
    number: int
    at: float
    detail: str = ""


# -- in a child


def emit(kind: str, number: int = 0, detail: str = "") -> None:
    """Say that something happened, now; it is out when this returns.

    Nothing is buffered here: what happened before a SIGKILL has been said.
    """
    line = json.dumps([kind, number, time.monotonic(), detail[:200]])
    try:
        os.write(sys.stdout.fileno(), line.encode() + b"\n")
    except BrokenPipeError:
        os._exit(0)  # The demo was killed, and its server with it: nothing is left to do.


async def standard_input() -> asyncio.StreamReader:
    """The lines of the demo: first what it set up, as JSON, then one for each order."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


# -- in the demo


class Child:
    """A process of the demo: one of its modules, run by this Python."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @contextlib.asynccontextmanager
    async def run(cls, module: str, setup: Mapping[str, Any]) -> AsyncGenerator[Self]:
        """Run *module* for the length of a block; it is gone at the end."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # A terminal's Ctrl-C is for the demo alone, which ends the others in order.
            start_new_session=True,
        )
        child = cls(process)
        try:
            child._write(json.dumps(setup))  # Not as arguments: a URL may have a password.
            yield child
        finally:
            await child._end()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def send(self, kind: str, number: int) -> None:
        """Send an order. Few are under way at once, so this need not wait."""
        self._write(f"{kind} {number}")

    async def events(self) -> AsyncIterator[Event]:
        """What the child says, until it ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            yield Event(*json.loads(line))

    async def kill(self) -> int:
        """End it as ``kill -9`` does; the return code tells that it was so."""
        self._process.kill()
        return await self._process.wait()

    def close_stdin(self) -> None:
        """Have it end by itself; its events end with it."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    async def _end(self) -> None:
        try:
            self.close_stdin()
            async with asyncio.timeout(_EXIT_TIMEOUT):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            if self._process.returncode is None:
                await self.kill()
