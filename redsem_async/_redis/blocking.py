"""Connections for threads that have no event loop, with the settings of the user's client.

redis-py's synchronous classes make them (TLS, credentials, Sentinel, database), and we take the
socket over. RESP2 is enough, because no push messages come. Scripts always go as texts, because
little is sent.
"""

import codecs
import socket
from collections.abc import Callable, Sequence
from typing import Any

import redis
import redis.asyncio.connection as asynchronous
import redis.asyncio.sentinel as asynchronous_sentinel
import redis.connection as synchronous
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.retry import Retry
from redis.sentinel import Sentinel

from redsem_async._core.clock import now as clock
from redsem_async._protocol.backend import Command
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.replies import AnyReply

from .codec import Codec
from .dial import Endpoint, Target, at_least_7, settings_of, target_of
from .faults import command_error
from .resp import ASKING, Reader, connection_error, pack

_HELLO = pack(("HELLO",))

# What a socket looks up for the name of a host. Where a process forks while a thread looks it up
# for the first time, the child has no such codec for as long as it lives.
codecs.lookup("idna")

# Calls of redis-py's synchronous classes are not typed.
_TWINS: dict[object, Callable[..., Any]] = {
    asynchronous.Connection: synchronous.Connection,
    asynchronous.SSLConnection: synchronous.SSLConnection,
    asynchronous.UnixDomainSocketConnection: synchronous.UnixDomainSocketConnection,
    asynchronous_sentinel.SentinelManagedConnection: synchronous.Connection,
    asynchronous_sentinel.SentinelManagedSSLConnection: synchronous.SSLConnection,
}


def require_twin(target: Target) -> None:
    """Raise TypeError unless a thread can connect to *target* as the event loop does."""
    settings = target.settings
    if target.connection_class not in _TWINS:
        _refuse(f"the connection class {_name(target.connection_class)}")
    if settings.get("redis_connect_func") is not None:
        _refuse("a redis_connect_func")
    provider: object = settings.get("credential_provider")
    if getattr(type(provider), "get_credentials", None) is CredentialProvider.get_credentials:
        _refuse(f"{_name(type(provider))} without get_credentials")
    if (pool := settings.get("connection_pool")) is not None:
        manager: Any = pool.sentinel_manager
        if type(manager) is not asynchronous_sentinel.Sentinel:
            _refuse(f"sentinels of the class {_name(type(manager))}")
        for sentinel in manager.sentinels:
            require_twin(target_of(sentinel.connection_pool))


def _refuse(what: str) -> None:
    raise TypeError(
        f"heartbeat='thread' connects with redis-py's synchronous classes, which is not possible"
        f" with {what}: use heartbeat='task'"
    )


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def dial_blocking(target: Target, hub_id: str, timeout: float) -> "BlockingConnection":
    """Connect to *target*, waiting *timeout* seconds at most for each answer.

    Raises OSError or redis.exceptions.RedisError when that is not possible now.
    """
    settings = _settings(target, timeout)
    if (pool := settings.pop("connection_pool", None)) is not None:
        settings["host"], settings["port"] = _master_of(pool, timeout)
    connection = _TWINS[target.connection_class](**settings)
    try:
        connection.connect()
        return BlockingConnection(connection, hub_id, timeout, clustered=target.clustered)
    except BaseException:
        connection.disconnect()
        raise


def _master_of(pool: Any, timeout: float) -> Endpoint:
    """Ask the sentinels of *pool*, over connections that are closed again."""
    untyped: Any = Sentinel
    twin = untyped([])
    twin.__dict__.update(pool.sentinel_manager.__dict__)
    twin.sentinels = [_client(target_of(each.connection_pool), timeout) for each in twin.sentinels]
    try:
        host, port = twin.discover_master(pool.service_name)
        return host, port
    finally:
        for sentinel in twin.sentinels:
            sentinel.close()


def _client(target: Target, timeout: float) -> redis.Redis:
    kind: Any = _TWINS[target.connection_class]
    pool = redis.ConnectionPool(connection_class=kind, **_settings(target, timeout))
    return redis.Redis.from_pool(pool)


def _settings(target: Target, timeout: float) -> dict[str, Any]:
    settings = settings_of(target, protocol=2, retry=Retry(NoBackoff(), 0))
    settings.pop("encoder_class", None)  # not known to the synchronous classes
    return settings | {"socket_timeout": timeout, "socket_connect_timeout": timeout}


class BlockingConnection:
    """A link that waits for replies, in the thread that uses it."""

    def __init__(self, connection: Any, hub_id: str, timeout: float, *, clustered: bool) -> None:
        self._connection = connection
        # redis-py has no public way to the socket.
        self._socket: socket.socket = connection._sock  # noqa: SLF001
        self._hub_id = hub_id
        self._reader = Reader()
        self._tags = 0
        self._sharded = False
        if clustered:
            [hello] = self._replies([_HELLO], timeout)
            if not isinstance(hello, Exception):
                self._sharded = at_least_7(dict(zip(hello[::2], hello[1::2], strict=True)))

    @property
    def closed(self) -> bool:
        """Whether the server closed it. Nothing else comes over it unasked."""
        try:
            self._socket.settimeout(0.001)  # 0 would be another error for TLS
            self._socket.recv(1)
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def exchange(
        self, commands: Sequence[Command], timeout: float
    ) -> list[AnyReply | CommandError]:
        now, sent, slots = clock(), list[bytes](), list[Command | None]()
        for command in commands:
            semaphore = command.semaphore
            if semaphore.asking:
                sent.append(ASKING)
                slots.append(None)
            self._tags = command.tag = self._tags + 1
            command.sent_at = now
            script, arguments = Codec(semaphore.address).encode(
                command.operation, command.tag, self._hub_id, semaphore.recovers, self._sharded
            )
            sent.append(pack(("EVAL", script.text, *arguments)))
            slots.append(command)
        replies = zip(slots, self._replies(sent, timeout), strict=True)
        return [_decoded(command, reply) for command, reply in replies if command is not None]

    def _replies(self, sent: Sequence[bytes], timeout: float) -> list[Any]:
        """Send commands, and wait for the reply to each."""
        deadline = clock() + timeout
        self._socket.settimeout(timeout)
        self._socket.sendall(b"".join(sent))
        replies: list[Any] = []
        while len(replies) < len(sent):
            self._socket.settimeout(max(deadline - clock(), 0.001))
            data = self._socket.recv(65536)
            if not data:
                raise connection_error("the server closed the connection")
            replies.extend(self._reader.feed(data))
        return replies

    def close(self) -> None:
        self._connection.disconnect()


def _decoded(command: Command, reply: Any) -> AnyReply | CommandError:
    if isinstance(reply, Exception):
        error = command_error(reply)
        if error.kind is ErrorKind.READ_ONLY:
            raise reply  # another server is the primary
        return error
    return Codec(command.semaphore.address).reply_to(command, reply)
