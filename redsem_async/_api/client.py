"""`from_url`, `connect` and `aclose`, optional helpers to create a client and to shut down."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from redsem_async._core import config
from redsem_async._hub.hub import known_hub
from redsem_async._redis.sentinels import SCHEMES, client_of_service, split_url, without_login

from .options import backend_of


def from_url(url: str, **options: Any) -> Redis:
    """A ``redis.asyncio`` client for *url*, with settings that suit this library.

    The client does not resend commands automatically, because a command could then run twice. Its
    maintenance notifications are off, because they disable redis-py's check for stale replies.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``unix://``. With Sentinel,
            ``redis+sentinel://host:26379,other:26379/service/0`` (with TLS
            ``rediss+sentinel://``). User and password are the master's. Those of the
            sentinels are options of the URL, ``?sentinel_username=...&sentinel_password=...``.
        options: for ``Redis.from_url``. They override the settings chosen here.

    Raises:
        ValueError: the URL cannot be parsed.
    """
    if "://" not in url:
        shown = without_login(url)
        raise ValueError(f"{shown!r} is not a URL: write 'redis://{shown}'")
    if not _can_be_read(url):
        raise ValueError(
            "the host and port of the URL cannot be parsed: percent-encode special characters in"
            " its password"
        )
    chosen: dict[str, Any] = {"retry": Retry(NoBackoff(), 0)}
    if find_spec("redis.asyncio.maint_notifications"):  # from 8.1 on
        from redis.maint_notifications import MaintNotificationsConfig

        chosen["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
    chosen |= options
    if url.partition("://")[0] in SCHEMES:
        return client_of_service(url, chosen)
    return Redis.from_url(url, **chosen)  # pyright: ignore[reportUnknownMemberType]


def _can_be_read(url: str) -> bool:
    try:
        for host in split_url(url).netloc.rpartition("@")[2].split(","):
            _ = urlsplit(f"//{host}").port
    except ValueError:  # its message may quote the password
        return False
    return True


@asynccontextmanager
async def connect(url: str, **options: Any) -> AsyncGenerator[Redis]:
    """Like ``from_url``, for a block. Leaving the block closes the semaphores and the client.

    The same happens if the task is cancelled.

    Raises:
        ValueError: the URL cannot be parsed.
    """
    redis = from_url(url, **options)
    try:
        yield redis
    finally:
        await aclose(redis)
        await redis.aclose()


async def aclose(redis: object, *, drain: float = 0.0) -> None:
    """Close the semaphores that use *redis* in the running event loop.

    Waiters get ``SemaphoreClosed``. Holders have *drain* seconds to release their permits. After
    that, permits that are still held are released and the blocks that they guard are cancelled.
    The client itself stays open, and its semaphores may be used again. A program may also end
    without calling this.

    If the caller is cancelled, waiters still get ``SemaphoreClosed``, but permits that have not
    been released yet stay held.

    Args:
        redis: the client, or the ``MemoryBackend``. Clients over one connection pool share their
            semaphores.
        drain: seconds for holders to release their permits.

    Raises:
        ValueError, TypeError: for invalid arguments.
    """
    drain = config.seconds(drain, "drain")
    if drain < 0:
        raise ValueError(f"drain must be 0 or more, not {drain}")
    if (hub := known_hub(backend_of(redis))) is not None:
        await hub.aclose(drain)
