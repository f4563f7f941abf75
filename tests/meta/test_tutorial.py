"""The tutorial, step by step, as a newcomer takes it."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore
from tests.harness.programs import Programs, titled_blocks
from tests.harness.servers import StartServer
from tests.harness.wait import all_free, until

pytestmark = [pytest.mark.release, pytest.mark.timeout(180)]


@pytest.fixture
def programs(embedded: StartServer, tmp_path: Path) -> Iterator[Programs]:
    with ExitStack() as stack:
        yield Programs(tmp_path, embedded().url, stack, titled_blocks("tutorial.md"))


async def test_the_service_and_the_worker_share_the_limit(programs: Programs) -> None:
    """A tenant has two permits at a time; a killed worker is in the way for a lease."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ("service:app", "--workers", "2", "--port", str(port), "--log-level", "warning")
    programs.start("-m", "uvicorn", *arguments)
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
        Redis.from_url(programs.url) as redis,
    ):

        async def serves() -> bool:
            with suppress(httpx.TransportError):
                return (await client.get("/docs")).is_success
            return False

        async def ask(count: int) -> list[httpx.Response]:
            posts = (
                client.post(f"/reports/{n}", headers={"x-tenant": "acme"}) for n in range(count)
            )
            return await asyncio.gather(*posts)

        await until(serves, "the service answers", within=40)
        waited = [round(float(answer.json().split()[-2])) for answer in await ask(5)]
        assert sorted(waited) == [0, 0, 1, 1, 2]
        refused = [answer for answer in await ask(9) if answer.status_code == 503]
        assert [int(answer.headers["retry-after"]) >= 1 for answer in refused] == [True] * 3

        renderer = FairSemaphore(redis, "renderer", 3, key_limit=2, share=True)
        worker = programs.start("worker.py")

        async def it_holds() -> bool:
            holders = (await renderer.status()).holders
            return [holder.client.pid for holder in holders] == [worker.pid]

        await until(it_holds, "the worker holds a permit", within=40)
        shown = await asyncio.to_thread(programs.run, "-m", "redsem_async", "status", "renderer")
        assert "worker" in shown
        worker.kill()
        worker.wait()
        assert (await renderer.status()).held == 1
        await all_free(renderer, within=11)


def test_a_tenant_does_not_delay_another(programs: Programs) -> None:
    lines = [line.split() for line in programs.run("first.py").splitlines()]
    starts = {line[2]: round(float(line[0])) for line in lines}
    assert starts.pop("globex-1") == 0
    assert sorted(starts.values()) == [0, 0, 1, 1, 2]


def test_the_limit_is_tested_in_memory(programs: Programs) -> None:
    assert "2 passed" in programs.run("-m", "pytest", "-q", "-p", "no:cacheprovider")
