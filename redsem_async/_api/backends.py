"""What a semaphore is made with: a client of ``redis.asyncio``, or another backend."""

from typing import TYPE_CHECKING, cast

from redsem_async._protocol.backend import Backend
from redsem_async._redis.backend import redis_backend

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

    AnyRedis = Redis | RedisCluster | Backend
    """A client of ``redis.asyncio``, or a ``MemoryBackend``."""


def backend_of(client: object) -> Backend:
    """Return *client* itself if it is a backend, or else the Redis that *client* connects to."""
    if callable(getattr(client, "connect", None)) and hasattr(client, "place"):
        return cast("Backend", client)
    return redis_backend(client)
