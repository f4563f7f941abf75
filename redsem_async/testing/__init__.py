"""For tests of code that uses semaphores: a real server without Docker, or memory."""

from ._embedded import EmbeddedRedis, ServerDidNotStart, ServerNotFound, embedded_redis
from ._memory import MemoryBackend

__all__ = [
    "EmbeddedRedis",
    "MemoryBackend",
    "ServerDidNotStart",
    "ServerNotFound",
    "embedded_redis",
]
