"""redis-py's client as its users have to set it up for many tasks."""

from redis.asyncio import Redis

from benchmarks.libraries._base import Options


def client_for(options: Options) -> Redis:
    """A client with a connection for each task, and one to spare.

    By default it has 100 at most and raises beyond, and it gives up on a blocking command
    after 5 s: a waiter needs its own connection, for as long as it waits.
    """
    return Redis.from_url(options.url, max_connections=options.tasks + 10, socket_timeout=None)
