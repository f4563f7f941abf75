"""Opens the hub's own connections with the settings of the user's client.

Connecting is redis-py's, with TLS, credentials, Sentinel, database and whatever else the user
customised. We read the client for its connection class and arguments, and then take the transport
over from the connection that it makes, in `taken_over`.
"""

import asyncio
import codecs
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast
from weakref import WeakMethod

import redis
import redis.asyncio as aioredis
import redis.exceptions as errors
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from redsem_async._core.lease import CONNECT_TIMEOUT
from redsem_async._protocol.backend import ConnectionRejected
from redsem_async._protocol.errors import ErrorKind

from .faults import command_error
from .inquiry import Asker, Met, inquire
from .resp import ReplyReader

OLDEST, NEWEST = "5.2", "8.1"  # redis-py that the tests run with

if redis.VERSION < (5, 2):  # pyright: ignore[reportUnknownMemberType]
    raise ImportError(
        f"redsem_async needs redis-py {OLDEST} or newer, not {redis.__version__}:"
        f" pip install 'redis[hiredis]>={OLDEST}'"
    )

# Bound to the pool they came from, or to how redis-py would use the connection.
_LEFT_OUT = ("maint_", "oss_", "orig_", "himport_registry", "retry", "parser_class")

REACHING_TIME = CONNECT_TIMEOUT - 1  # seconds for the transport, of those for a connection
CREDENTIALS_TIMEOUT = 30.0  # seconds that the user's credential provider may take

_OF_HELLO = re.compile("HELLO|NOPROTO|unknown command", re.IGNORECASE)
_NO_LOGIN = re.compile("NOAUTH|Authentication required|already authenticated")
_NEEDS_PASSWORD = (
    "it needs a password: put it into the client's URL (REDIS_URL, as in"
    " redis://:PASSWORD@HOST), or give the client a password"
)

# What a socket looks up for the name of a host. If a process forks while a thread looks it up
# for the first time, the child has no such codec for as long as it lives.
codecs.lookup("idna")

Endpoint = tuple[str, int]
"""Host and port."""


class Opened(NamedTuple):
    """A connection after its handshake."""

    transport: asyncio.Transport
    received: bytes  # before we took it over
    no_push: str | None  # why no messages that can be relied on come over it, if so
    sharded: bool  # whether messages travel within a shard of a cluster
    keep: asyncio.StreamWriter | None  # it would close the transport when it goes
    replies: ReplyReader  # it may have read a part of what comes next
    met: Met | None  # what is known of the server, since it was asked


class Destination(NamedTuple):
    """What to connect to, and how, as a connection class of redis-py's with its arguments."""

    connection_class: Callable[..., Any]
    settings: Mapping[str, Any]
    clustered: bool = False


SingleClient = aioredis.Redis
ClusterClient = aioredis.RedisCluster
Pool = aioredis.ConnectionPool


def checked_client(client: object) -> SingleClient | ClusterClient:
    """Return *client*. Raise TypeError unless it is one that we can connect like."""
    kind = type(client)
    connects: Any = getattr(getattr(client, "connection_pool", None), "connection_class", kind)
    if "fakeredis" in {each.__module__.partition(".")[0] for each in (*kind.__mro__, connects)}:
        raise TypeError(
            "fakeredis has no server to connect to: use redsem_async.testing.MemoryBackend()"
        )
    if isinstance(client, SingleClient | ClusterClient):
        return client
    what = f"{kind.__module__}.{kind.__qualname__}"
    instead = "redis.asyncio.Redis, or redsem_async.from_url(url)"
    if isinstance(client, Pool | redis.ConnectionPool):
        what = "a connection pool"
        instead = "redis.asyncio.Redis(connection_pool=pool), with a pool of redis.asyncio"
    elif isinstance(client, str | bytes):
        what = "a URL"
    elif kind.__module__.partition(".")[0] == "redis":
        instead = f"redis.asyncio.{kind.__name__}, which is awaited"
    raise TypeError(f"expected a redis.asyncio client, got {what}: use {instead}")


def place_of(pool: Pool) -> str:
    """Host and port, or path, that *pool* connects to. Never credentials."""
    settings = pool.connection_kwargs
    if "path" in settings:
        return f"Redis at {settings['path']}"
    if service := getattr(pool, "service_name", None):
        return f"Redis master {service!r}"
    return f"Redis at {settings.get('host', 'localhost')}:{settings.get('port', 6379)}"


def target_of(pool: Pool) -> Destination:
    """What *pool* connects to."""
    return Destination(pool.connection_class, pool.connection_kwargs)


def on_close(
    owner: Pool | ClusterClient,
    name: Literal["disconnect", "aclose"],
    callback: Callable[[], None],
) -> None:
    """Call *callback*, a method whose object may go, after each time that *owner* is closed.

    Its method *name* closes it, which is what `aclose` of a client that owns its pool comes to.
    redis-py does not report that, so another method takes its place.
    """
    closes: Any = getattr(owner, name)  # it may be the user's own
    callbacks: list[WeakMethod[Callable[[], None]]] = getattr(closes, "for_redsem", [])
    if not callbacks:

        @functools.wraps(closes)
        async def close(*args: Any, **options: Any) -> None:
            try:
                await closes(*args, **options)
            finally:
                if False not in (*args, *options.values()):  # inuse_connections, at a failover
                    for known in tuple(callbacks):
                        if (callback := known()) is not None:
                            callback()

        vars(close)["for_redsem"] = callbacks
        setattr(owner, name, close)
    callbacks[:] = [known for known in callbacks if known() is not None]
    callbacks.append(WeakMethod(callback))


# -- clusters


def known_nodes(client: ClusterClient) -> list[Endpoint]:
    """The nodes that *client* was given, or has found since."""
    nodes: Iterable[ClusterNode] = client.nodes_manager.startup_nodes.values()
    return [(node.host, int(node.port)) for node in list(nodes)]


async def slots_at(target: Destination) -> list[tuple[int, int, list[Endpoint]]]:
    """First slot, last slot, and master and replicas of each range, as a node knows them."""
    connection = await _connected(target, protocol=2)
    try:
        await connection.send_command("CLUSTER SLOTS")
        ranges = cast("Sequence[Sequence[Any]]", await connection.read_response())
    finally:
        await connection.disconnect()
    own_host = str(target.settings["host"])
    return [
        (first, last, [((host or b"").decode() or own_host, port) for host, port, *_ in nodes])
        for first, last, *nodes in ranges
    ]


# -- connecting


async def dial(target: Destination, asker: Asker | None = None) -> Opened:
    """Connect to *target*, but speaking RESP3 and without socket timeouts.

    With *asker* it asks what the server is like, which costs a trip. It takes CONNECT_TIMEOUT at
    most, not counting what the user's credential provider takes.

    Raises:
        ConnectionRejected: for wrong credentials and the like.
        redis.exceptions.RedisError: when no server can be reached now.
    """
    limit = asyncio.timeout(CONNECT_TIMEOUT)
    try:
        async with limit:
            if provider := target.settings.get("credential_provider"):
                untimed = {"credential_provider": _Untimed(provider, limit)}
                target = target._replace(settings={**target.settings, **untimed})
            try:
                return await _open(target, 3, asker)
            except (errors.ResponseError, errors.AuthenticationError) as error:
                if not _is_of_hello(error, target):
                    raise
            return await _open(target, 2, asker)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise errors.TimeoutError(f"no answer in {CONNECT_TIMEOUT:.3g} s") from error
    except errors.AuthenticationError as error:
        reason = _NEEDS_PASSWORD if _NO_LOGIN.search(str(error)) else error
        raise ConnectionRejected(f"rejects this client: {reason}") from error
    except errors.ResponseError as error:
        if command_error(error).kind is not ErrorKind.REFUSED:
            raise  # busy, or loading
        raise ConnectionRejected(f"rejects this client: {error}") from error


def _is_of_hello(error: Exception, target: Destination) -> bool:
    """Whether the server refuses HELLO, and may take the same login in RESP2."""
    if isinstance(error, errors.AuthenticationError):
        # Some servers that do not know HELLO want a login first. HELLO was to bring it.
        logs_in = any(target.settings.get(each) for each in ("password", "credential_provider"))
        return logs_in and _NO_LOGIN.search(str(error)) is not None
    return _OF_HELLO.search(str(error)) is not None


class _Untimed(CredentialProvider):
    """The user's *provider*. While it fetches a token, the time to connect stands still."""

    def __init__(self, provider: CredentialProvider, limit: asyncio.Timeout) -> None:
        self._provider = provider
        self._limit = limit

    def get_credentials(self) -> Any:
        return self._provider.get_credentials()

    async def get_credentials_async(self) -> Any:
        self._limit.reschedule(None)
        own = asyncio.timeout(CREDENTIALS_TIMEOUT)
        try:
            async with own:
                return await self._provider.get_credentials_async()
        except TimeoutError as error:
            if not own.expired():
                raise
            text = f"the credential provider gave no credentials in {CREDENTIALS_TIMEOUT:.3g} s"
            raise errors.TimeoutError(text) from error
        finally:
            self._limit.reschedule(asyncio.get_running_loop().time() + CONNECT_TIMEOUT)


async def _open(target: Destination, protocol: int, asker: Asker | None) -> Opened:
    connection = await _connected(target, protocol)
    sharded, replies, met = False, ReplyReader(), None
    try:
        # A function of the user's may have logged in without HELLO, and so in RESP2.
        if protocol == 3 and (target.clustered or target.settings.get("redis_connect_func")):
            await connection.send_command("HELLO", 3)
            hello: Mapping[bytes, bytes] = await connection.read_response()
            sharded = target.clustered and int(hello[b"version"].split(b".")[0]) >= 7
        reader, writer = taken_over(connection)
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    transport = cast("asyncio.Transport", writer.transport)
    no_push = None if protocol == 3 else "the server does not speak RESP3"
    if protocol == 3 and target.clustered and not sharded:
        # A message reaches subscribers at all nodes, but PUBLISH counts those of one node only,
        # so a script would take back a grant that its waiter has been sent.
        no_push = "it is a cluster without sharded pub/sub, which comes with Redis 7.0"
    try:
        if asker is not None:
            met = await inquire(
                asker, reader, writer, replies, push=no_push is None, sharded=sharded
            )
    except BaseException:
        transport.abort()
        raise
    if transport.is_closing() or reader.at_eof():
        # Only the reader knows, which is not read from any more, so replies would never come.
        transport.abort()
        raise errors.ConnectionError("the connection was closed while it was being made")
    reader.feed_eof()
    received = await reader.read()  # what is there already
    return Opened(transport, received, no_push, sharded, writer, replies, met)


def taken_over(connection: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Take the streams of a connection of redis-py's, which has no public way to them.

    Nothing else in this package uses what redis-py keeps to itself.

    Raises:
        ConnectionRejected: this redis-py does not keep them as the known versions do.
        redis.exceptions.ConnectionError: they are closed.
    """
    # ruff: noqa: SLF001
    if not connection.is_connected:
        raise errors.ConnectionError("the connection was closed while it was being made")
    reader, writer = (getattr(connection, name, None) for name in ("_reader", "_writer"))
    if isinstance(reader, asyncio.StreamReader) and isinstance(writer, asyncio.StreamWriter):
        connection._reader = connection._writer = None  # or it would close them when it goes
        if not connection.is_connected:
            return reader, writer
    raise ConnectionRejected(
        f"cannot be used with redis-py {redis.__version__}, which keeps its connections in another"
        f" way than {OLDEST} to {NEWEST} do: pip install 'redis[hiredis]=={NEWEST}.*'"
    )


async def _connected(target: Destination, protocol: int) -> Any:
    """A connection that is used as we use one."""
    given = target.settings.items()
    reaching_time = min(target.settings.get("socket_connect_timeout") or math.inf, REACHING_TIME)
    connection = target.connection_class(
        **{name: value for name, value in given if not name.startswith(_LEFT_OUT)}
        | {"decode_responses": False, "health_check_interval": 0, "protocol": protocol}
        | {"retry": Retry(NoBackoff(), 0), "socket_timeout": None}
        | {"socket_connect_timeout": reaching_time}
    )
    try:
        await connection.connect()
    except BaseException as error:
        await connection.disconnect(nowait=True)
        manager = getattr(target.settings.get("connection_pool"), "sentinel_manager", None)
        if manager is not None:
            # Whichever sentinel was asked first may be the one that does not answer, and the
            # attempt may have ended before redis-py came to the next.
            manager.sentinels.append(manager.sentinels.pop(0))
        if str(error) == "Timeout connecting to server":
            text = f"no connection in {reaching_time:.3g} s, as if packets were dropped"
            raise errors.TimeoutError(text) from error
        raise
    return connection
