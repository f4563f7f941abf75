"""A server that throws keys away when its memory is full."""

import itertools
import logging
from collections.abc import Iterator

import pytest
from redis.asyncio import Redis

from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Connect, Kind, key_of
from tests.harness.servers import StartServer
from tests.harness.wait import EPSILON, takes_at_most, until

pytestmark = pytest.mark.release


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What the package warns of."""
    said: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    ear, logger = Ear(), logging.getLogger("redsem_async")
    logger.addHandler(ear)
    yield said
    logger.removeHandler(ear)


@pytest.mark.fault(34)
@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_an_evicting_policy_is_warned_of_once(
    kind: Kind, embedded: StartServer, connect: Connect, warnings: list[str], policy: str
) -> None:
    """Our keys expire, so that policies for those that do take them as well."""
    server = embedded("--maxmemory", "100mb", "--maxmemory-policy", policy)
    redis = connect(server.url, client_name="here")
    semaphore = kind(redis, "jobs", 1)
    async with semaphore, Redis.from_url(server.url) as admin:
        [number] = [c["id"] for c in await admin.client_list() if c["name"] == "here"]
        assert await admin.client_kill_filter(_id=number) == 1

        async def back() -> bool:
            return any(c["name"] == "here" for c in await admin.client_list())

        await semaphore.status()
        await until(back, "it is connected again")
    [warning] = warnings
    assert policy in warning
    assert f"127.0.0.1:{server.port}" in warning


@pytest.mark.fault(34)
@pytest.mark.parametrize(
    "settings",
    [("--maxmemory", "100mb"), ("--maxmemory-policy", "allkeys-lru")],
    ids=["noeviction", "no maxmemory"],
)
async def test_a_policy_that_evicts_nothing_is_no_warning(
    kind: Kind,
    embedded: StartServer,
    connect: Connect,
    warnings: list[str],
    settings: tuple[str, ...],
) -> None:
    """Nor is one that never comes to it, since memory has no bound."""
    async with kind(connect(embedded(*settings).url), "jobs", 1):
        pass
    assert not warnings


@pytest.mark.fault(34)
async def test_who_may_not_ask_goes_on_without(
    kind: Kind, server: EmbeddedRedis, admin: Redis, connect: Connect, warnings: list[str]
) -> None:
    """INFO is not among what a semaphore needs."""
    await admin.config_set("maxmemory", "100mb")
    await admin.config_set("maxmemory-policy", "allkeys-lru")
    await admin.acl_setuser(
        *("curious", True), passwords=["+x"], categories=["+@all"], commands=["-info"], keys=["*"]
    )
    await admin.acl_setuser("curious", channels=["*"], enabled=True)
    async with kind(connect(server.url, username="curious", password="x"), "jobs", 1):
        pass
    assert not warnings


@pytest.mark.fault(34)
async def test_what_is_evicted_is_lost_in_time(
    kind: Kind, embedded: StartServer, connect: Connect
) -> None:
    """Real evictions, under a real bound: the holder learns of it as of any loss."""
    # Flushed at once: keys would still be evicted for memory that a thread is yet to free.
    bound = ("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-random")
    server = embedded(*bound, "--lazyfree-lazy-user-flush", "no")
    semaphore = kind(connect(server.url), "jobs", 1, lease=3.0, refresh_interval=0.1)
    permit = await semaphore.acquire()
    async with Redis.from_url(server.url) as admin:

        async def evicted() -> bool:
            async with admin.pipeline(transaction=False) as pipeline:
                for n in range(200):
                    _ = pipeline.set(f"ballast-{next(numbers)}-{n}", "x" * 4000)
                await pipeline.execute()
            return not await admin.exists(key_of(semaphore, "holders"))

        numbers = itertools.count()
        await until(evicted, "the holders are evicted", within=20)
        stats = await admin.info("stats")
        assert stats["evicted_keys"] > 0
        with takes_at_most(0.1 + EPSILON):
            await permit.wait_lost()
        await admin.flushall()
    successor = await semaphore.acquire(timeout=5)
    assert successor.fencing_token > permit.fencing_token
    assert await successor.release()
