"""A server to call."""

import asyncio
import json
import re

from tests.harness.wait import until


class Upstream:
    """A server that answers once `go` is set, a chunk at a time."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.inside = 0
        self.most = 0
        self.requests = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        self.go.set()
        self._server.close()
        for writer in self._writers:
            writer.close()
        await until(lambda: not self._writers)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if length := re.search(rb"content-length: (\d+)", head.lower()):
                    await reader.readexactly(int(length[1]))
                self.requests += 1
                self.inside += 1
                self.most = max(self.most, self.inside)
                try:
                    await self._answer(head.split()[1].decode(), writer)
                finally:
                    self.inside -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, path: str, writer: asyncio.StreamWriter) -> None:
        start = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        if path == "/quick":
            await asyncio.sleep(0.01)
            writer.write(start + b'Content-Length: 16\r\n\r\n{"answer":"yes"}')
        elif path == "/redirect":
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: /slow\r\nContent-Length: 2\r\n\r\nno")
        elif path == "/broken":
            writer.write(start + b"Content-Length: 100\r\n\r\nhalf")
            await writer.drain()
            writer.close()
        elif path == "/refused":
            writer.close()
        elif path == "/v1/chat/completions":
            await self._stream_words(writer)
        elif path == "/silent":
            await self.go.wait()
            writer.write(start + b"Content-Length: 2\r\n\r\n{}")
        else:
            writer.write(start + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{ \r\n")
            await writer.drain()
            await self.go.wait()
            writer.write(b'c\r\n"answer":"a"\r\n1\r\n}\r\n0\r\n\r\n')
        await writer.drain()

    async def _stream_words(self, writer: asyncio.StreamWriter) -> None:
        """As LLMs do: one word, and the other once `go` is set."""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        writer.write(b"Connection: close\r\n\r\n")
        for word in ("Good", " morning"):
            chunk = {"object": "chat.completion.chunk", "choices": [{"delta": {"content": word}}]}
            writer.write(f"data: {json.dumps(chunk)}\n\n".encode())
            await writer.drain()
            await self.go.wait()
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()
