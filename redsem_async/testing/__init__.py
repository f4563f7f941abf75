"""For tests of code that uses semaphores: a real server with no Docker, or memory."""

from ._embedded import EmbeddedRedis, embedded_redis

__all__ = ["EmbeddedRedis", "embedded_redis"]
