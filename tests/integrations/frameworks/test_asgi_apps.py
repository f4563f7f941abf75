"""Starlette and Litestar under uvicorn, with a real client."""

import asyncio
import signal
import socket

import httpx
import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore
from tests.harness.programs import Programs
from tests.harness.wait import available, until


@pytest.mark.parametrize("app", ["starlette_app:app", "litestar_app:app"])
async def test_a_framework_answers_as_the_page_says(programs: Programs, app: str) -> None:
    """Two requests at a time; the others get 503, and a stopped server holds nothing."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ["--port", str(port), "--timeout-graceful-shutdown", "20"]
    server = programs.start("-m", "uvicorn", app, *arguments)
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url) as client, Redis.from_url(programs.url) as redis:

        async def serves() -> bool:
            try:
                return (await client.get("/health")).status_code == 200
            except httpx.ConnectError:
                return False

        await until(serves, "the server answers", within=20)
        answers = await asyncio.gather(*(client.get("/render") for _ in range(6)))
        done = [answer for answer in answers if answer.status_code == 200]
        full = [answer for answer in answers if answer.status_code == 503]
        assert (len(done), len(full)) == (2, 4)
        assert len({answer.json()["token"] for answer in done}) == 2
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in full)

        sem = FairSemaphore(redis, "gpu", 2)
        last = asyncio.create_task(client.get("/render"))
        await available(sem, 1)
        server.send_signal(signal.SIGTERM)
        assert (await last).status_code == 200
        await asyncio.to_thread(server.wait, 20)
        assert (await sem.status()).held == 0
