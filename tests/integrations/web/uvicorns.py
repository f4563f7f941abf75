"""Real uvicorn processes, and clients that behave badly."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from tests.harness.wait import until

# What a server says of an application that has left it, or a client, in the lurch.
COMPLAINTS = (
    "Response not awaited",
    "No response returned",
    "without completing response",
    "without starting response",
    "never awaited",
    "never retrieved",
    "was destroyed",
    "ResourceWarning",
    "DeprecationWarning",
    "Unexpected ASGI message",
)


class Uvicorn:
    """A process that serves; ``{fd}`` in its command stands for the socket it is given."""

    def __init__(self, folder: Path, *command: str, **environment: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port: int = listener.getsockname()[1]
            self.url = f"http://127.0.0.1:{self.port}"
            self._log = folder / f"uvicorn-{self.port}.log"
            fd = listener.fileno()
            arguments = [said.replace("{fd}", str(fd)) for said in command]
            with self._log.open("wb") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-X", "dev", *arguments],
                    env={**os.environ, **environment},
                    pass_fds=[fd],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )

    @property
    def log(self) -> str:
        """What it has written."""
        return self._log.read_text(errors="replace")

    def terminate(self) -> None:
        """SIGTERM, as Kubernetes sends it."""
        self.process.send_signal(signal.SIGTERM)

    async def ended(self, within: float = 15.0) -> int:
        """How it ended."""
        await until(lambda: self.process.poll() is not None, within=within)
        assert self.process.returncode is not None
        return self.process.returncode

    def complaints(self) -> list[str]:
        """What should not be in its log."""
        return [line for line in self.log.splitlines() if any(c in line for c in COMPLAINTS)]


@contextlib.asynccontextmanager
async def serving(server: Uvicorn) -> AsyncGenerator[Uvicorn]:
    """Wait until it serves; at the end it is ended, and must have nothing to complain of."""
    try:
        await until(lambda: "startup complete" in server.log or server.process.poll(), within=60)
        assert server.process.poll() is None, server.log
        yield server
    finally:
        server.process.kill()
        server.process.wait()
    assert server.complaints() == [], server.log


class RawClient:
    """A client that writes what it likes, and may go at any time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def get(cls, server: Uvicorn, path: str) -> "RawClient":
        """Send a request and do not wait for an answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await writer.drain()
        return cls(reader, writer)

    async def status(self) -> int:
        """Of the answer."""
        line = await asyncio.wait_for(self.reader.readline(), 15)
        return int(line.split()[1])

    async def hang_up(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
