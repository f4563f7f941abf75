"""For tests of code that uses semaphores: a real server without Docker, memory, or no limits."""

from ._embedded import EmbeddedRedis, ServerDidNotStart, ServerNotFound, embedded_redis
from ._memory import MemoryBackend
from ._unlimited import unlimited

__all__ = [
    "EmbeddedRedis",
    "MemoryBackend",
    "ServerDidNotStart",
    "ServerNotFound",
    "embedded_redis",
    "unlimited",
]
