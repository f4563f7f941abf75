"""The server that a run measures against."""

from collections.abc import Generator
from contextlib import contextmanager

from redis import Redis

from redsem_async.testing import embedded_redis


@contextmanager
def server(which: str) -> Generator[tuple[str, str]]:
    """Give the address of a server, and what to call it."""
    if which == "embedded":
        with embedded_redis() as running:
            yield running.url, f"{_version(running.url)}, embedded"
    elif which == "container":
        import os

        from testcontainers.community.redis import RedisContainer

        image = os.environ.get("REDIS_IMAGE", "redis:8")
        with RedisContainer(image) as container:
            host, port = container.get_container_host_ip(), container.get_exposed_port(6379)
            url = f"redis://{host}:{port}/0"
            yield url, f"{_version(url)}, container {image}"
    else:
        yield which, _version(which)


def _version(url: str) -> str:
    with Redis.from_url(url) as client:
        info = client.info("server")
    valkey = info.get("valkey_version")
    return f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"
