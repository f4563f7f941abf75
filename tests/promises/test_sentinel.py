"""A client that Sentinel gives is as good as any."""

import socket
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel

from redsem_async import AnySemaphore, BackendUnavailable, FairSemaphore, Semaphore
from redsem_async.testing import EmbeddedRedis
from redsem_async.testing._embedded import find_server
from tests.harness.servers import StartServer
from tests.harness.wait import queue_up, soon, until


def _sentinel(port: int) -> Sentinel:
    untyped: Any = Sentinel
    sentinel: Sentinel = untyped([("127.0.0.1", port)])
    return sentinel


@contextmanager
def sentinel_of(master: EmbeddedRedis, folder: Path) -> Generator[int]:
    """Start a sentinel that watches *master* as ``mymaster``, and give its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    settings = folder / "sentinel.conf"
    settings.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
        f"sentinel monitor mymaster 127.0.0.1 {master.port} 1\n"
    )
    command = [str(find_server()), str(settings), "--sentinel"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield port
        finally:
            process.terminate()


@asynccontextmanager
async def masters_client(port: int) -> AsyncGenerator[Redis]:
    """The client that ``master_for`` gives, once the sentinel knows its master."""
    sentinel = _sentinel(port)
    client: Redis = sentinel.master_for("mymaster")

    async def knows() -> bool:
        try:
            return bool(await client.ping())
        except ConnectionError:
            return False

    try:
        await until(knows, within=5)
        yield client
    finally:
        await client.aclose()
        for each in sentinel.sentinels:
            await each.aclose()


@pytest.mark.parametrize("kind", [Semaphore, FairSemaphore])
async def test_sentinels_client_will_do(
    kind: type[AnySemaphore], embedded: StartServer, tmp_path: Path
) -> None:
    """It finds its master when it connects; the hub's own connection does the same."""
    master = embedded()
    with sentinel_of(master, tmp_path) as port:
        async with masters_client(port) as client, Redis.from_url(master.url) as direct:
            here, there = kind(client, "watched", 1), kind(direct, "watched", 1)
            holder = await there.acquire()
            waiter = await queue_up(here)
            await holder.release()
            async with await soon(waiter) as permit:
                assert await there.try_acquire() is None
                assert (await there.status()).holders[0].id == permit.id


async def test_an_error_names_the_master_and_not_an_address(tmp_path: Path) -> None:
    """With Sentinel there is no address before there is a connection."""
    client: Redis = _sentinel(1).master_for("mymaster")
    with pytest.raises(BackendUnavailable, match="mymaster"):
        await FairSemaphore(client, "watched", 1).acquire(timeout=0.2)
    await soon(client.aclose())
