"""Servers and programs that tests start, and what they say."""

import gc
import os
import signal
import ssl
import warnings
from collections.abc import AsyncGenerator, Generator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from redis import Redis as SyncRedis

from redsem_async.testing._embedded import EmbeddedRedis, embedded_redis
from tests.harness import lacking
from tests.harness.relay import Relay


class StartServer(Protocol):
    """What the fixture `embedded` gives; see `embedded_redis`."""

    def __call__(self, *arguments: str, binary: str | Path | None = None) -> EmbeddedRedis: ...


@contextmanager
def stopped(server: EmbeddedRedis) -> Generator[None]:
    """The server's process does not run (SIGSTOP): it answers nothing, and closes nothing."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def complaints(stderr: str) -> list[str]:
    """What a program in debug mode said, but for asyncio's remarks on a busy machine.

    And but for what the library says of a server that lacks something, where it is to be one.
    """
    lines = [line for line in stderr.splitlines() if not line.startswith("Executing <")]
    remarks = lacking.REMARKS if lacking.REQUESTED else ()
    return [line for line in lines if not any(remark in line for remark in remarks)]


@asynccontextmanager
async def trusted_tls(server: EmbeddedRedis) -> AsyncGenerator[tuple[str, str]]:
    """An address that speaks TLS for *server*, and the file of the authority to trust for it."""
    import trustme

    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    with authority.cert_pem.tempfile() as trusted:
        async with tls_in_front_of(server, context) as port:
            yield f"rediss://localhost:{port}", trusted


@asynccontextmanager
async def tls_in_front_of(server: EmbeddedRedis, context: ssl.SSLContext) -> AsyncGenerator[int]:
    """A port that speaks TLS for a server that was not built with it."""
    async with Relay(server.port, context) as relay:
        yield relay.port


def behind_stand_in(url: str) -> AbstractContextManager[str]:
    """The URL to use instead of *url*: with ``REDSEM_LACKS``, of a server that lacks something."""
    if not lacking.REQUESTED:
        return nullcontext(url)
    port = urlsplit(url).port
    assert port is not None
    return lacking.server_that_lacks(port, *lacking.REQUESTED)


def choose_server(stack: ExitStack) -> tuple[str, str]:
    """The URL of the server, and how we came by it."""
    if url := os.environ.get("REDIS_URL"):
        return url, "from REDIS_URL"
    if binary := os.environ.get("REDSEM_SERVER_BIN"):
        return stack.enter_context(embedded_redis()).url, f"embedded: {binary}"
    required = os.environ.get("REDSEM_TEST_SERVER") == "container"
    excuse = ""
    if required or _docker_is_likely():
        from docker.errors import DockerException

        with warnings.catch_warnings():
            # Refused, it leaves its sockets to the collector: collect them now, without warnings.
            warnings.simplefilter("ignore", ResourceWarning)
            try:
                return stack.enter_context(_container()), "in a container"
            except DockerException as error:
                if required:
                    raise
                excuse = f", for want of a container: {error}"
            gc.collect()
    return stack.enter_context(embedded_redis()).url, f"embedded{excuse}"


def _docker_is_likely() -> bool:
    """Whether there is an engine to ask: asking costs an import of half a second."""
    sockets = (
        Path("/var/run/docker.sock"),
        Path.home() / ".docker/run/docker.sock",
        Path(os.environ.get("XDG_RUNTIME_DIR", "/run")) / "docker.sock",
    )
    return "DOCKER_HOST" in os.environ or any(path.is_socket() for path in sockets)


@contextmanager
def _container() -> Generator[str]:
    from testcontainers.community.redis import RedisContainer

    with RedisContainer(os.environ.get("REDIS_IMAGE", "redis:8")) as container:
        host = container.get_container_host_ip()
        yield f"redis://{host}:{container.get_exposed_port(container.port)}/0"


def flavour_and_version(client: SyncRedis) -> str:
    info = client.info("server")
    # Valkey gives the Redis version that it is compatible with as well.
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}"
