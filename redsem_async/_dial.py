"""Opens the hub's own connection with the settings of the user's client.

The handshake (TLS, credentials, Sentinel, database) is redis-py's; what comes after it is ours.
We read the client's pool for its connection class and arguments, and take the transport over
from the connection that it makes.
"""

import asyncio
from typing import Any, NamedTuple

import redis.asyncio as aioredis
import redis.exceptions as errors
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ._backend import Refused
from ._protocol import Trouble
from ._wire import fault_of

# Bound to the pool they came from, or to how redis-py would use the connection.
_LEFT_OUT = ("maint_", "oss_", "orig_", "himport_registry", "retry", "parser_class")


class Opened(NamedTuple):
    """A connection after its handshake.

    Attributes:
        transport: ours to read from and write to.
        received: bytes that came before we took over.
        speaks_resp3: whether pushes come over it.
        keep: to be kept for as long as the transport is open.
    """

    transport: asyncio.Transport
    received: bytes
    speaks_resp3: bool
    keep: object


def checked_client(client: object) -> aioredis.Redis:
    """Return *client*; raise TypeError unless it is one that we can connect like."""
    if isinstance(client, aioredis.RedisCluster):
        raise TypeError("RedisCluster clients are not supported yet: use redis.asyncio.Redis")
    if isinstance(client, aioredis.Redis):
        return client
    kind = f"{type(client).__module__}.{type(client).__qualname__}"
    raise TypeError(f"a client of redis.asyncio is needed, not {kind}: use redis.asyncio")


def place_of(client: aioredis.Redis) -> str:
    """Host and port, or path, that *client* connects to; never credentials."""
    settings = _settings(client)
    if "path" in settings:
        return f"Redis at {settings['path']}"
    if service := getattr(client.connection_pool, "service_name", None):
        return f"Redis master {service!r}"
    return f"Redis at {settings.get('host', 'localhost')}:{settings.get('port', 6379)}"


async def dial(client: aioredis.Redis) -> Opened:
    """Connect as *client* would, but speaking RESP3 and without socket timeouts.

    Raises:
        Refused: for wrong credentials and the like.
        redis.exceptions.RedisError: when there is nobody to talk to, for now.
    """
    try:
        return await _open(client, protocol=3)
    except errors.AuthenticationError as error:
        raise Refused(str(error)) from error
    except errors.ResponseError as error:
        if fault_of(error).trouble is not Trouble.REFUSED:
            raise  # busy, or loading
        text = str(error).upper()
        if "HELLO" not in text and "NOPROTO" not in text and "UNKNOWN COMMAND" not in text:
            raise Refused(str(error)) from error
    return await _open(client, protocol=2)


def _settings(client: aioredis.Redis) -> dict[str, Any]:
    return client.connection_pool.connection_kwargs


async def _open(client: aioredis.Redis, protocol: int) -> Opened:
    settings = {
        name: value for name, value in _settings(client).items() if not name.startswith(_LEFT_OUT)
    }
    settings |= {
        "protocol": protocol,
        "decode_responses": False,
        "health_check_interval": 0,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,
    }
    # redis-py has no public way to the transport; no other module reaches into it.
    # ruff: noqa: SLF001
    connection: Any = client.connection_pool.connection_class(**settings)
    try:
        await connection.connect()
    except BaseException:
        connection._close()
        raise
    reader, writer = connection._reader, connection._writer
    connection._reader = connection._writer = None
    return Opened(
        transport=writer.transport,
        received=bytes(reader._buffer),
        speaks_resp3=protocol == 3,
        keep=(connection, writer),
    )
