"""The server of a run."""

import os
import socket
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from redis import Redis
from redis.exceptions import RedisError

from redsem_async.testing import embedded_redis
from redsem_async.testing._embedded import ServerDidNotStart, ServerNotFound


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        url: its URL.
        what: its version and origin, without credentials.
    """

    url: str
    what: str


class ServerUnavailable(Exception):
    """No server could be started or reached."""


@contextmanager
def server(which: str) -> Generator[Server]:
    """A server for the length of a block: ``embedded``, ``container``, or the one at a URL.

    Raises `ServerUnavailable`.
    """
    if which == "embedded":
        started: AbstractContextManager[tuple[str, str]] = _embedded()
    elif which == "container":
        started = _container(os.environ.get("REDIS_IMAGE", "redis:8"))
    else:
        started = nullcontext((which, f"at {urlsplit(which).hostname}"))
    with ExitStack() as stack:
        try:
            url, origin = stack.enter_context(started)
            version = _version(url)
        except (RedisError, ServerDidNotStart, ServerNotFound, ValueError) as error:
            raise ServerUnavailable(str(error)) from error
        yield Server(url, f"{version}, {origin}")


@contextmanager
def _embedded() -> Generator[tuple[str, str]]:
    with embedded_redis() as running:
        yield running.url, "embedded"


@contextmanager
def _container(image: str) -> Generator[tuple[str, str]]:
    try:
        from docker.errors import DockerException
        from testcontainers.community.redis import RedisContainer
    except ModuleNotFoundError as error:
        raise ServerUnavailable(f"{error.name} is missing: pip install . --group bench") from error
    with ExitStack() as stack:
        try:
            container = stack.enter_context(RedisContainer(image))
        except DockerException as error:
            raise ServerUnavailable(f"no container of {image}: {error}") from error
        about: dict[str, Any] = container.get_wrapped_container().attrs
        container_id = str(container.get_wrapped_container().id)
        own = (container.get_docker_client().bridge_ip(container_id), container.port)
        what = f"in a container of {image} ({about['Image'][:19]})"
        if _reachable(own):
            # Directly, because the engine's port forwarding is slow and limited to a few thousand
            # connections.
            yield f"redis://{own[0]}:{own[1]}/0", f"{what}, at its own address"
        else:
            host, port = container.get_container_host_ip(), container.get_exposed_port(own[1])
            yield f"redis://{host}:{port}/0", f"{what}, through a forwarded port"


def _reachable(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=0.5).close()
    except OSError:
        return False
    return True


def _version(url: str) -> str:
    with Redis.from_url(url) as client:
        info = client.info("server")
    valkey = info.get("valkey_version")
    return f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"
