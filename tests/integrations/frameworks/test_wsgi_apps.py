"""Flask and Django under gunicorn, in several processes, with a real client."""

import asyncio
import signal
import socket

import httpx
import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore
from tests.harness.programs import Programs
from tests.harness.wait import available, until

GUNICORN = ("-m", "gunicorn", "--workers", "6", "--bind", "127.0.0.1:{port}", "{app}")


@pytest.mark.parametrize("server", [GUNICORN, (*GUNICORN, "--preload")], ids=["fork", "preload"])
@pytest.mark.parametrize(("app", "served"), [("flask_app:app", 2), ("site_of_django", 1)])
async def test_workers_share_the_limit_of_the_page(
    programs: Programs, app: str, served: int, server: tuple[str, ...]
) -> None:
    """The others get 503 after a second. A stopped server holds nothing."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = programs.start(*(part.format(port=port, app=app) for part in server))
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url) as client, Redis.from_url(programs.url) as redis:

        async def serves() -> bool:
            try:
                return (await client.get("/nowhere")).status_code == 404
            except httpx.TransportError:
                return False

        await until(serves, "the server answers", within=20)
        answers = await asyncio.gather(*(client.get("/render") for _ in range(6)))
        full = [answer for answer in answers if answer.status_code == 503]
        assert [answer.text for answer in answers].count("done") == served
        assert len(full) == 6 - served
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in full)

        sem = FairSemaphore(redis, "gpu", 2, key_limit=1 if served == 1 else None)
        last = asyncio.create_task(client.get("/render"))
        await available(sem, 1)
        running.send_signal(signal.SIGTERM)
        assert (await last).text == "done"
        await asyncio.to_thread(running.wait, 20)
        await available(sem, 2)
