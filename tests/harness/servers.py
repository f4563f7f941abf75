"""What tests say of the servers and programs that they start."""

import asyncio
import os
import signal
import ssl
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol

from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness import lacking
from tests.harness.wait import cancelled


class StartServer(Protocol):
    """What the fixture `embedded` gives; see `embedded_redis`."""

    def __call__(self, *arguments: str, binary: str | Path | None = None) -> EmbeddedRedis: ...


@contextmanager
def stopped(server: EmbeddedRedis) -> Generator[None]:
    """The server's process does not run (SIGSTOP): it answers nothing, and closes nothing."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def complaints(stderr: str) -> list[str]:
    """What a program in debug mode said, but for asyncio's remarks on a busy machine.

    And but for what the library says of a server that lacks something, where it is to be one.
    """
    lines = [line for line in stderr.splitlines() if not line.startswith("Executing <")]
    remarks = lacking.REMARKS if lacking.REQUESTED else ()
    return [line for line in lines if not any(remark in line for remark in remarks)]


@asynccontextmanager
async def tls_in_front_of(server: EmbeddedRedis, context: ssl.SSLContext) -> AsyncGenerator[int]:
    """A port that speaks TLS for a server that was not built with it."""
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection("127.0.0.1", server.port)
        for source, sink in ((reader, inner[1]), (inner[0], writer)):
            tasks.add(asyncio.create_task(pump(source, sink)))

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await cancelled(*tasks)
