"""An upstream that says 429, and two processes that call it with OpenAI's SDK.

    pip install 'redsem-async[httpx2]' openai
    REDIS_URL=redis://localhost:6379 python busy_upstream.py

A stand-in for the upstream is overloaded for three seconds and counts its refusals: first
while every request retries by itself, then while each 429 has both processes back off.
"""

import asyncio
import os
import sys
import time

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from redis.asyncio import Redis

from redsem_async import FairSemaphore, aclose
from redsem_async.httpx2 import SemaphoreTransport

LIMIT = 8  # concurrent calls
QUESTIONS = 50  # of each process
OVERLOADED = 3.0  # seconds

ANSWER = b'{"choices": [{"message": {"role": "assistant", "content": "Yes."}}]}'


async def call(url: str, name: str, *, back_off: bool) -> None:
    """One process: ask all questions at once."""
    redis = Redis.from_url(os.environ["REDIS_URL"])
    sem = FairSemaphore(redis, name, LIMIT)
    transport = SemaphoreTransport(sem, back_off=back_off, timeout=60)
    client = AsyncOpenAI(
        api_key="none",
        base_url=url,
        max_retries=20,
        http_client=DefaultAsyncHttpxClient(transport=transport),
    )
    async with client, asyncio.TaskGroup() as tasks:
        for _ in range(QUESTIONS):
            tasks.create_task(ask(client))
    await aclose(redis)
    await redis.aclose()


async def ask(client: AsyncOpenAI) -> None:
    question = "Is it over?"
    await client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": question}]
    )


class Upstream:
    """Answers, and counts how many calls it refused, and how many ran at once.

    It is overloaded from the first call on.
    """

    def __init__(self) -> None:
        self.refused = self.running = self.most = 0
        self.overloaded_until: float | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                writer.write(await self.answer())
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def answer(self) -> bytes:
        if self.overloaded_until is None:
            self.overloaded_until = time.monotonic() + OVERLOADED
        if time.monotonic() < self.overloaded_until:
            self.refused += 1
            return b"HTTP/1.1 429 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.02)
        self.running -= 1
        head = f"Content-Type: application/json\r\nContent-Length: {len(ANSWER)}\r\n\r\n"
        return f"HTTP/1.1 200 OK\r\n{head}".encode() + ANSWER


async def main() -> None:
    for back_off in (False, True):
        upstream = Upstream()
        server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        command = [sys.executable, __file__, url, f"busy-{back_off}", str(int(back_off))]
        processes = [await asyncio.create_subprocess_exec(*command) for _ in range(2)]
        codes = [await process.wait() for process in processes]
        assert codes == [0, 0], "a process failed"
        server.close()
        how = "the fleet backs off" if back_off else "each retries"
        print(f"{how}: {upstream.refused} refused, at most {upstream.most} at once")


if __name__ == "__main__":
    if sys.argv[1:]:
        address, name, backs_off = sys.argv[1:]
        asyncio.run(call(address, name, back_off=backs_off == "1"))
    else:
        asyncio.run(main())
