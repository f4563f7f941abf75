"""For tests of code that uses semaphores: a real server with no Docker, or memory."""

from ._embedded import EmbeddedRedis, embedded_redis
from ._memory import MemoryBackend

__all__ = ["EmbeddedRedis", "MemoryBackend", "embedded_redis"]
