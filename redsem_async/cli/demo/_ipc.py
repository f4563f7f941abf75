"""The demo's child processes, and their communication with it: lines over standard streams.

Pipes are independent of the Redis under test, and keep what a worker wrote before it was killed.
A child ends when its standard input is closed, so that no child outlives the demo, whatever ends
the demo.
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
    """An event in a child.

    Attributes:
        kind: see the module of the child.
        number: number of the request, or another number that depends on the kind.
        at: time by ``time.monotonic()``, which all processes of a machine share.
        detail: a description, for some kinds.
    """

    kind: str
    number: int
    at: float
    detail: str = ""


# -- in a child


def emit(kind: str, number: int = 0, detail: str = "") -> None:
    """Write an event to standard output, unbuffered, so that a SIGKILL cannot lose it."""
    line = json.dumps([kind, number, time.monotonic(), detail[:200]])
    try:
        os.write(sys.stdout.fileno(), line.encode() + b"\n")
    except BrokenPipeError:
        os._exit(0)  # The demo is gone, and its server too.


async def standard_input() -> asyncio.StreamReader:
    """The lines that the demo writes: first the setup as JSON, then one per request."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


# -- in the demo


class Child:
    """A child process that runs a module of the demo."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @contextlib.asynccontextmanager
    async def run(cls, module: str, setup: Mapping[str, Any]) -> AsyncGenerator[Self]:
        """Run *module* during a block; the process has ended after the block."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Ctrl-C reaches only the demo, which then stops its children in order.
            start_new_session=True,
        )
        child = cls(process)
        try:
            child._write(
                json.dumps(setup)
            )  # Not as arguments, because the URL may contain a password.
            yield child
        finally:
            await child._end()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, kind: str, number: int) -> None:
        """Assign a request. Few are in flight, so the pipe is never full."""
        self._write(f"{kind} {number}")

    async def events(self) -> AsyncIterator[Event]:
        """The events of the child, until it ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            yield Event(*json.loads(line))

    async def kill(self) -> int:
        """Kill the process with SIGKILL, and return its return code."""
        self._process.kill()
        return await self._process.wait()

    def close_stdin(self) -> None:
        """Ask the process to end by closing its standard input."""
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
