"""A client for a URL that names sentinels (``redis+sentinel://host:26379,host/service/0``)."""

import re
from typing import Any
from urllib.parse import SplitResult, urlsplit

from redis.asyncio import Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
SENTINEL_PORT = 26379
ANSWER_TIME = 1.0  # seconds for each sentinel, as a permit's lease runs while they are asked
SHARED = ("socket_", "ssl", "retry")  # settings of the connections to the sentinels, too
FORM = "redis+sentinel://HOST[:PORT][,HOST[:PORT]...]/SERVICE[/DATABASE]"


class _ClosingPool(SentinelConnectionPool):
    """Closes the connections to the sentinels too, because nothing else has these clients."""

    async def disconnect(self, inuse_connections: bool = True) -> None:  # noqa: FBT001, FBT002
        await super().disconnect(inuse_connections)
        if inuse_connections:
            manager: Any = self.sentinel_manager
            for sentinel in manager.sentinels:
                await sentinel.aclose()


def split_url(url: str) -> SplitResult:
    """Like `urlsplit`, but also for several hosts. Newer Pythons refuse brackets among those."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        return urlsplit(url)
    netloc = re.split("[/?#]", rest, maxsplit=1)[0]
    path = rest.removeprefix(netloc)
    return urlsplit(f"{scheme}://{path}")._replace(netloc=netloc)


def without_login(url: str) -> str:
    """*url* without user, password and options, whatever characters they have."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    place, *options = re.split("[?#]", rest, maxsplit=1)
    login, at, place = place.rpartition("@")
    if "@" in "".join(options):  # then what comes before it may be a part of a password
        login, at, place = "...", "", ""
    return f"{scheme}{separator}{'...' if login else ''}{at}{place}"


def client_of_service(url: str, options: dict[str, Any]) -> Redis:
    """A client for the master of the service that *url* names.

    Raises:
        ValueError: the URL names no host or no service, or the database is not a number.
    """
    parts = split_url(url)
    login, at, netloc = parts.netloc.rpartition("@")
    hosts = [urlsplit(f"//{host}") for host in netloc.split(",")]
    service, _, database = parts.path.removeprefix("/").partition("/")
    if not service or not all(host.hostname for host in hosts):
        raise ValueError(f"write {FORM}")
    if database and not database.isdecimal():
        raise ValueError(f"the database is a number: write {FORM}")

    # The rest means the same as in the URL of a server.
    scheme = SCHEMES[parts.scheme]
    plain = parts._replace(scheme=scheme, netloc=f"{login}{at}localhost", path=database)
    of_url: dict[str, Any] = {**parse_url(plain.geturl())}
    del of_url["host"]
    if "ssl" in of_url:
        raise ValueError("for TLS, write rediss+sentinel://")
    if of_url.pop("connection_class", None) is not None:
        of_url["ssl"] = True
    settings = options | of_url
    of_sentinels: dict[str, Any] = {
        "socket_connect_timeout": ANSWER_TIME,
        "socket_timeout": ANSWER_TIME,
        **{name: value for name, value in settings.items() if name.startswith(SHARED)},
        **{name: settings.pop(f"sentinel_{name}", None) for name in ("username", "password")},
    }
    addresses = [
        (host.hostname, SENTINEL_PORT if host.port is None else host.port) for host in hosts
    ]
    untyped: Any = Sentinel
    sentinel = untyped(addresses, sentinel_kwargs=of_sentinels, **settings)
    client: Redis = sentinel.master_for(service, connection_pool_class=_ClosingPool)
    return client
