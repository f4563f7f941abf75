"""The upstream process: like a provider with a concurrency cap, it refuses excess requests.

It does not use semaphores, so its record is independent of them: it emits for each request when
it ``entered`` and ``left``, or that it was ``refused``.
"""

import asyncio
import contextlib
import json
import random

from ._ipc import emit, standard_input
from ._plan import UpstreamSetup

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"
_TOO_MANY = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 9\r\n\r\ntoo many\n"


class _Upstream:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, ``GET /<number>``, one after the other."""
        # The task is cancelled at the end, which Python 3.11 would log.
        over = (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError)
        with contextlib.suppress(*over):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1]
                writer.write(await self._answer(int(path[1:])))
                await writer.drain()
        writer.close()

    async def _answer(self, number: int) -> bytes:
        if self._inside >= self._limit:
            emit("refused", number)
            return _TOO_MANY
        self._inside += 1
        emit("entered", number)
        # As in a real service, started work continues when the client is gone.
        await asyncio.sleep(random.uniform(0.05, 0.12))
        self._inside -= 1
        emit("left", number)
        return _OK


async def _main() -> None:
    stdin = await standard_input()
    setup = UpstreamSetup(**json.loads(await stdin.readline()))
    server = await asyncio.start_server(_Upstream(setup.limit).serve, "127.0.0.1", 0)
    emit("listening", server.sockets[0].getsockname()[1])
    await stdin.read()
    server.close()


if __name__ == "__main__":
    asyncio.run(_main())
