"""Making a client, and an orderly end. Neither is ever required."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from redsem_async._core import config
from redsem_async._hub.hub import known_hub

from .semaphore import backend_of


def from_url(url: str, **options: Any) -> Redis:
    """A ``redis.asyncio`` client for *url*, set up the way this library likes it.

    Without hidden re-sends, whose effects on other commands surprise, and with redis-py's
    maintenance notifications off, which switch its guard against stale replies off.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``unix://``.
        options: for ``Redis.from_url``; they win over what is chosen here.
    """
    if not _can_be_read(url):
        raise ValueError(
            "the URL has no host and port that can be read: a password in it has to be"
            " percent-encoded"
        )
    chosen: dict[str, Any] = {"retry": Retry(NoBackoff(), 0)}
    if find_spec("redis.asyncio.maint_notifications"):  # from 8.1 on
        chosen["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
    chosen |= options
    return Redis.from_url(url, **chosen)  # pyright: ignore[reportUnknownMemberType]


def _can_be_read(url: str) -> bool:
    try:
        _ = urlsplit(url).port
    except ValueError:  # whose words may be those of the password
        return False
    return True


@asynccontextmanager
async def connect(url: str, **options: Any) -> AsyncGenerator[Redis]:
    """Like :func:`from_url`, for a block: at its end everything is closed in order."""
    redis = from_url(url, **options)
    try:
        yield redis
    finally:
        await aclose(redis)
        await redis.aclose()


async def aclose(redis: object, *, drain: float = 0.0) -> None:
    """End what this process does with semaphores through *redis*, in the running loop.

    Who waits gets ``SemaphoreClosed``. Held permits have *drain* seconds to be released; what is
    held then is released, and the blocks they guard are cancelled. The client itself stays
    open, and its semaphores may be used again. Never required: a program may just end.
    """
    drain = config.seconds(drain, "drain")
    if drain < 0:
        raise ValueError(f"drain must not be negative, not {drain}")
    backend_of(redis)  # or a TypeError
    if (hub := known_hub(redis)) is not None:
        await hub.aclose(drain)
