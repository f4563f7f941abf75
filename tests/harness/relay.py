"""A port that leads to another one."""

import asyncio
import ssl
from collections.abc import Coroutine
from typing import Any, Self

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Relay:
    """Listens on a port of its own, and passes everything on to *upstream*, another.

    With *context* it speaks TLS, for a server that was not built with it.
    """

    def __init__(self, upstream: int, context: ssl.SSLContext | None = None) -> None:
        self.refusing = False  # new connections
        self._upstream = upstream
        self._context = context
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", ssl=self._context)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def relay(self, client: Ends, server: Ends) -> None:
        """Pass on what both write, until one of them ends."""
        await first_of(pump(client[0], server[1]), pump(server[0], client[1]))

    async def _accept(self, *client: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        ends: list[Ends] = [client]
        try:
            if not self.refusing:
                ends.append(await asyncio.open_connection("127.0.0.1", self._upstream))
                await self.relay(*ends)
        except (OSError, asyncio.CancelledError):
            pass  # one of them has gone, or all is over
        finally:
            for _, writer in ends:
                writer.transport.abort()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)


async def first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Run *works* until the first of them ends."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
