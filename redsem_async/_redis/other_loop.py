"""A connection for an event loop beside the client's own, in another thread.

It shares nothing with the client that belongs to a loop. Of a plain client that needs no care,
since only its settings are read; but Sentinel's ask their sentinels over connections of their own.
"""

from copy import copy
from typing import Any

import redis.asyncio as aioredis
from redis.asyncio.sentinel import SentinelConnectionPool

from .dial import Opened, ask_another_sentinel, dial, target_of
from .inquiry import Asker

# Bound to the pool that they came from.
_LEFT_OUT = ("connection_pool", "maint_", "oss_", "orig_", "himport_registry")


async def dial_in_other_loop(client: aioredis.Redis, asker: Asker | None = None) -> Opened:
    """Connect like *client*, in whatever loop is running. Raises as `dial` does."""
    if not isinstance(client.connection_pool, SentinelConnectionPool):
        return await dial(target_of(client), asker)
    pool: Any = client.connection_pool
    manager = copy(pool.sentinel_manager)
    manager.sentinels = sentinels = [_twin(each) for each in manager.sentinels]
    twin = type(pool)(
        pool.service_name,
        manager,
        connection_class=pool.connection_class,
        is_master=pool.is_master,
        check_connection=pool.check_connection,
        **_settings(pool),
    )
    try:
        return await dial(target_of(aioredis.Redis(connection_pool=twin)), asker)
    except BaseException:
        ask_another_sentinel(pool)  # the next twin is made like it
        raise
    finally:
        for sentinel in sentinels:
            await sentinel.aclose(close_connection_pool=True)


def _twin(client: aioredis.Redis) -> aioredis.Redis:
    """A client with the settings of *client*, and connections of its own."""
    pool: Any = client.connection_pool
    twin = aioredis.ConnectionPool(connection_class=pool.connection_class, **_settings(pool))
    return aioredis.Redis(connection_pool=twin)


def _settings(pool: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in pool.connection_kwargs.items()
        if not name.startswith(_LEFT_OUT)
    }
