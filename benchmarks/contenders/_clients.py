"""redis-py's client as its users have to set it up for many tasks."""

from redis.asyncio import Redis

from benchmarks.contenders._base import Terms


def client_for(terms: Terms) -> Redis:
    """A client with a connection for each task, and one to spare.

    By default it has 100 at most and raises beyond, and it gives up on a blocking command
    after 5 s: a waiter needs its own connection, for as long as it waits.
    """
    return Redis.from_url(terms.url, max_connections=terms.tasks + 10, socket_timeout=None)
