"""redis-py's client, configured for many tasks."""

from redis.asyncio import Redis

from benchmarks.libraries._base import Options


def client_for(options: Options) -> Redis:
    """A client with enough connections for each task, and no timeout.

    A waiter in a blocking command needs its own connection for as long as it waits. By default
    redis-py allows 100 connections, and ends a blocking command after 5 s.
    """
    return Redis.from_url(options.url, max_connections=options.tasks + 10, socket_timeout=None)
