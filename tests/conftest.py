"""The server that the tests run on, semaphores on it and in memory, and names of their own.

``REDIS_URL`` names one that is there already. Otherwise it is ``REDIS_IMAGE`` in a container, the
binary in ``REDSEM_SERVER_BIN``, or the embedded one. The report's first lines say which.

On any server, tests keep to names of their own and flush nothing; a test that cannot takes
a server of its own from `embedded`. Under xdist, each worker has its server.

With ``REDSEM_LACKS=time`` the server lacks something, and tests on servers of their own are left
out.
"""

import asyncio
import gc
import logging
import re
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import AsyncExitStack, ExitStack, closing
from pathlib import Path
from typing import Any, cast

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis

import redsem_async
from redsem_async import AnySemaphore, FairSemaphore, Semaphore
from redsem_async.testing import MemoryBackend
from redsem_async.testing._embedded import EmbeddedRedis, embedded_redis
from tests.harness import lacking
from tests.harness.children import StartWorker, Worker
from tests.harness.clients import Client, Connect, Kind, Make, MakePair
from tests.harness.peer import Network
from tests.harness.proxy import Proxy, load_scripts
from tests.harness.replicas import Flock, Replicated, embedded_replicas, embedded_sentinels
from tests.harness.servers import StartServer, behind_stand_in, choose_server, chosen_server
from tests.harness.topologies import Cluster, embedded_cluster

# In every name that this run makes, so that what it leaves on a server can be found again.
_RUN = secrets.token_hex(4)


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The address of the server under test."""
    with ExitStack() as stack:
        url = choose_server(stack)
        client = stack.enter_context(closing(SyncRedis.from_url(url)))
        yield stack.enter_context(behind_stand_in(url))
        for key in cast("Iterator[bytes]", client.scan_iter(f"*{_RUN}*", count=1000)):
            client.unlink(key)


@pytest.fixture(autouse=lacking.REQUESTED != ())
def remarks_are_expected() -> Iterator[None]:
    """The log says of a server that lacks something what it lacks; tests of the log need not."""

    def is_none(record: logging.LogRecord) -> bool:
        return not any(remark in record.getMessage() for remark in lacking.REMARKS)

    logger = logging.getLogger("redsem_async")
    logger.addFilter(is_none)
    yield
    logger.removeFilter(is_none)


@pytest.fixture(autouse=True)
def the_log_stays_as_loud_as_it_is() -> Iterator[None]:
    """Or later tests of the same process would miss what they wait for."""
    before = logging.getLogger("redsem_async").level
    yield
    assert logging.getLogger("redsem_async").level == before


@pytest.fixture
async def redis(server_url: str) -> AsyncIterator[Redis]:
    """A client such as users have, closed after the test."""
    async with Redis.from_url(server_url) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A semaphore's name that nothing else uses."""
    return _unique(request)


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A prefix for keys that nothing else uses, below the usual one."""
    return f"redsem:{_unique(request)}"


@pytest.fixture
def embedded() -> Iterator[StartServer]:
    """Starts servers for this test alone, to flush, stop and kill."""
    with ExitStack() as stack:

        def start(*arguments: str, binary: str | Path | None = None) -> EmbeddedRedis:
            return stack.enter_context(embedded_redis(*arguments, binary=binary))

        yield start


@pytest.fixture(params=[Semaphore, FairSemaphore], ids=["zset", "fair"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Either semaphore."""
    return cast("Kind", request.param)


@pytest.fixture
def server(embedded: StartServer) -> EmbeddedRedis:
    """A server for this test alone."""
    return embedded()


@pytest.fixture
def client() -> MemoryBackend:
    """The first argument of a semaphore."""
    return MemoryBackend()


@pytest.fixture
def other(client: MemoryBackend) -> MemoryBackend:
    """A second client of the same memory: to the semaphores, another process."""
    return client.peer()


@pytest.fixture
async def other_redis(server_url: str) -> AsyncIterator[Redis]:
    """A second client of the server under test."""
    async with Redis.from_url(server_url) as second:
        yield second


@pytest.fixture
def make(client: Client, name: str) -> Make:
    """Makes semaphores that share a name, in memory."""
    return _maker(FairSemaphore, client, name)


@pytest.fixture
def pair(make: Make, other: Client) -> MakePair:
    """Makes two semaphores that share a name, in two processes."""
    return _pairs(make, other)


@pytest.fixture
def semaphore_pair(client: Client, name: str, other: Client) -> MakePair:
    """Makes two such semaphores that are not fair."""
    return _pairs(_maker(Semaphore, client, name), other)


@pytest.fixture
def make_on_redis(redis: Redis, name: str) -> Make:
    """Makes semaphores that share a name, in Redis: for tests that look into the server."""
    return _maker(FairSemaphore, redis, name)


@pytest.fixture
def nowhere() -> Redis:
    """A client of a port on which nobody listens: whatever is sent fails."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return Redis(port=port)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """Servers that the test scripts, in the place of the network."""
    network = Network()
    monkeypatch.setattr(asyncio, "open_connection", network.open_connection)
    yield network
    network.close()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes clients such as users have, and closes them after the test."""
    async with AsyncExitStack() as stack:

        def client(url: str, **options: Any) -> Redis:
            redis = Redis.from_url(url, **options)
            stack.push_async_callback(redis.aclose)
            stack.push_async_callback(redsem_async.aclose, redis)
            return redis

        yield client


@pytest.fixture
async def admin(server: EmbeddedRedis) -> AsyncIterator[Redis]:
    """A client of the test's own, to look at the server and to cause trouble."""
    async with Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def client_a(server: EmbeddedRedis, connect: Connect) -> Redis:
    """A client for semaphores, of a process called ``here``."""
    return connect(server.url, client_name="here")


@pytest.fixture
def client_b(server: EmbeddedRedis, connect: Connect) -> Redis:
    """Another client: to Redis it is another process, called ``there``."""
    return connect(server.url, client_name="there")


@pytest.fixture
async def unsubscribed(server: EmbeddedRedis, admin: Redis, connect: Connect) -> Redis:
    """A client for semaphores whose user may subscribe to nothing."""
    await admin.acl_setuser(
        "mute", enabled=True, nopass=True, categories=["+@all"], keys=["*"], reset_channels=True
    )
    return connect(server.url, username="mute", password="any", client_name="unsubscribed")


@pytest.fixture
async def proxy(server: EmbeddedRedis) -> AsyncIterator[Proxy]:
    """A proxy in front of the server, which is one that was in use before."""
    with closing(SyncRedis.from_url(server.url)) as client:
        load_scripts(client)
    async with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: Proxy, connect: Connect) -> Redis:
    """A client for semaphores that goes through the proxy."""
    return connect(proxy.url, client_name="proxied")


@pytest.fixture
async def start(server: EmbeddedRedis) -> AsyncIterator[StartWorker]:
    """Starts processes that run `child.py`, and ends them after the test."""
    async with AsyncExitStack() as stack:

        async def start(scenario: str, **options: Any) -> Worker:
            worker = await Worker.spawn(scenario, {"url": server.url, "name": "jobs", **options})
            stack.push_async_callback(worker.end)
            return worker

        yield start


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of three masters for this test alone, that serves what is left of it."""
    with embedded_cluster("--cluster-require-full-coverage", "no") as cluster:
        yield cluster


@pytest.fixture
def replicated_cluster() -> Iterator[Cluster]:
    """A cluster of three masters with a replica each, for this test alone."""
    with embedded_cluster(replicas=1) as cluster:
        yield cluster


@pytest.fixture
def replicated() -> Iterator[Replicated]:
    """A master and a replica for this test alone."""
    with embedded_replicas() as servers:
        yield servers


@pytest.fixture
def flock(replicated: Replicated) -> Iterator[Flock]:
    """The same, watched by three sentinels."""
    with embedded_sentinels(replicated) as flock:
        yield flock


def _unique(request: pytest.FixtureRequest) -> str:
    readable = re.sub(r"\W+", "-", request.node.name)[:60].strip("-")
    return f"{readable}-{_RUN}-{secrets.token_hex(4)}"


def _maker(kind: Kind, first: Client, name: str) -> Make:
    def make(limit: int = 1, *, client: Any = None, **options: Any) -> AnySemaphore:
        return kind(client or first, options.pop("name", name), limit, **options)

    return make


def _pairs(make: Make, other: Client) -> MakePair:
    def pair(limit: int = 1, **options: Any) -> tuple[AnySemaphore, AnySemaphore]:
        return make(limit, **options), make(limit, client=other, **options)

    return pair


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault", type=int, help="only tests that cause the fault of that number")


def pytest_configure() -> None:
    # A job in the background ignores these, and so would the programs that get them from tests.
    usual = {signal.SIGINT: signal.default_int_handler}
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual.get(number, signal.SIG_DFL))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    fault: int | None = config.getoption("fault")

    def is_asked_for(item: pytest.Item) -> bool:
        causes = (number for mark in item.iter_markers("fault") for number in mark.args)
        fixtures: list[str] = getattr(item, "fixturenames", [])
        shares = "server_url" in fixtures or "client" in fixtures
        return (fault is None or fault in causes) and (shares or not lacking.REQUESTED)

    config.hook.pytest_deselected(items=[item for item in items if not is_asked_for(item)])
    items[:] = filter(is_asked_for, items)


def pytest_collection_finish() -> None:
    gc.freeze()  # the collector passes over what is imported, so that a test may collect


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, object, object]:
    gc.disable()  # in Python 3.11, to collect while a failure's source is parsed is a SystemError
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_report_header() -> list[str]:
    lacks = f", behind a stand-in that lacks {lacking.REQUESTED}" if lacking.REQUESTED else ""
    return [f"under test: {redsem_async.__file__}", f"server: {chosen_server()}{lacks}"]
