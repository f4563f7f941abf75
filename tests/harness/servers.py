"""Servers and programs that tests start, and what they say."""

import os
import signal
import ssl
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

from redsem_async.testing._embedded import EmbeddedRedis, embedded_redis, find_server
from tests.harness import lacking
from tests.harness.proxy import Proxy


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
        async with Proxy(server.port, context) as proxy:
            yield f"rediss://localhost:{proxy.port}", trusted


def behind_stand_in(url: str) -> AbstractContextManager[str]:
    """The URL to use instead of *url*: with ``REDSEM_LACKS``, of a server that lacks something."""
    if not lacking.REQUESTED:
        return nullcontext(url)
    port = urlsplit(url).port
    assert port is not None
    return lacking.server_that_lacks(port, *lacking.REQUESTED)


def chosen_server() -> str:
    """The server that the tests run on: an address, an image or a program."""
    named = os.environ.get("REDIS_URL") or os.environ.get("REDIS_IMAGE")
    return named or str(find_server())


def choose_server(stack: ExitStack) -> str:
    """The address of that server, which may have been started for it."""
    if url := os.environ.get("REDIS_URL"):
        return url
    if image := os.environ.get("REDIS_IMAGE"):
        from testcontainers.community.redis import RedisContainer

        container = stack.enter_context(RedisContainer(image))
        port = container.get_exposed_port(container.port)
        return f"redis://{container.get_container_host_ip()}:{port}/0"
    return stack.enter_context(embedded_redis()).url
