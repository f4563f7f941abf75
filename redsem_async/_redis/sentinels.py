"""A client for a URL that names sentinels: ``redis+sentinel://host:26379,host/service/0``."""

from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
SENTINEL_PORT = 26379
SHARED = ("socket_", "ssl", "retry")  # settings of the connections to the sentinels, too


class _ClosingPool(SentinelConnectionPool):
    """Closes the connections to the sentinels too, because nobody else has these clients."""

    async def disconnect(self, inuse_connections: bool = True) -> None:  # noqa: FBT001, FBT002
        await super().disconnect(inuse_connections)
        if inuse_connections:
            manager: Any = self.sentinel_manager
            for sentinel in manager.sentinels:
                await sentinel.aclose()


def names_sentinels(url: str) -> bool:
    """Whether *url* has a scheme for sentinels."""
    return urlsplit(url).scheme in SCHEMES


def client_of_service(url: str, options: dict[str, Any]) -> Redis:
    """A client for the master of the service that *url* names.

    Raises:
        ValueError: the URL names no host or no service.
    """
    parts = urlsplit(url)
    login, at, netloc = parts.netloc.rpartition("@")
    hosts = [urlsplit(f"//{host}") for host in netloc.split(",")]
    service, _, database = parts.path.removeprefix("/").partition("/")
    if not service or not all(host.hostname for host in hosts):
        raise ValueError("write redis+sentinel://HOST[:PORT][,HOST[:PORT]...]/SERVICE[/DATABASE]")

    # The rest means the same as in the URL of a server.
    scheme = SCHEMES[parts.scheme]
    plain = parts._replace(scheme=scheme, netloc=f"{login}{at}localhost", path=database)
    settings: dict[str, Any] = options | {**parse_url(plain.geturl())}
    del settings["host"]
    settings["ssl"] = settings.pop("connection_class", None) is not None
    of_sentinels = {
        name: settings.pop(f"sentinel_{name}", None) for name in ("username", "password")
    } | {name: value for name, value in settings.items() if name.startswith(SHARED)}

    addresses = [(host.hostname, host.port or SENTINEL_PORT) for host in hosts]
    untyped: Any = Sentinel
    sentinel = untyped(addresses, sentinel_kwargs=of_sentinels, **settings)
    client: Redis = sentinel.master_for(service, connection_pool_class=_ClosingPool)
    return client
