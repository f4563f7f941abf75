"""The server that a run measures on."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from redis import Redis

from redsem_async.testing import embedded_redis


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs.

    Attributes:
        url: its address.
        what: its version, and how we came by it; without a password.
    """

    url: str
    what: str


@contextmanager
def server(which: str) -> Generator[Server]:
    """Run a server for the length of a block: ``embedded``, ``container``, or one at a URL.

    Raises:
        ServerNotFound, ServerDidNotStart: nothing to embed.
        docker.errors.DockerException: no engine, or no image ($REDIS_IMAGE, redis:8).
        redis.RedisError: nothing answers at the URL.
    """
    if which == "embedded":
        with embedded_redis() as running:
            yield Server(running.url, f"{_version(running.url)}, embedded")
    elif which == "container":
        from testcontainers.community.redis import RedisContainer

        image = os.environ.get("REDIS_IMAGE", "redis:8")
        with RedisContainer(image) as container:
            host = container.get_container_host_ip()
            url = f"redis://{host}:{container.get_exposed_port(container.port)}/0"
            image_id = container.get_wrapped_container().attrs["Image"]
            what = f"{_version(url)}, in a container of {image} ({image_id[:19]})"
            yield Server(url, what)
    else:
        place = urlsplit(which)
        yield Server(which, f"{_version(which)}, at {place.hostname or place.path}")


def _version(url: str) -> str:
    with Redis.from_url(url) as client:
        info = client.info("server")
    valkey = info.get("valkey_version")
    return f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"
