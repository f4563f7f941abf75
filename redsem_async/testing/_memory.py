"""Semaphores kept in this process's memory, for tests of code that uses them."""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Protocol, TypeVar
from weakref import WeakSet

from redsem_async import Permit
from redsem_async._core.clock import now as clock
from redsem_async._core.keys import Address, parse_permit_id
from redsem_async._core.lease import Outcome
from redsem_async._hub.model import Lease
from redsem_async._hub.pipeline import Pipeline
from redsem_async._hub.state import SemaphoreState
from redsem_async._protocol.backend import AnyReply, Link, Listener, OneNode
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.operations import AnyOperation, Operation, Refresh, Release
from redsem_async._protocol.pushes import Push, push_of
from redsem_async._redis.codec import Codec
from redsem_async._redis.faults import command_error, error_from

from ._redis import ErrorReply, MemoryRedis

R = TypeVar("R")


class MemoryBackend(OneNode):
    """Replaces a Redis client, as in ``FairSemaphore(MemoryBackend(), "openai", limit=20)``.

    The protocol and the client are the real ones. Only the server is replaced.
    Use one backend for all semaphores of a test. ``peer`` returns another client of the same
    memory, for a second "process".
    """

    place = "the memory backend"

    def __init__(self) -> None:
        self._store = _Store()

    def peer(self) -> "MemoryBackend":
        """Return another client of the same memory. Its semaphores count as another process's."""
        other = MemoryBackend()
        other._store = self._store
        return other

    # -- faults, for tests that need them

    def down(self) -> None:
        """Make the backend unreachable for all of its clients, whose connections break."""
        self._store.reachable = False
        for link in list(self._store.links):
            link.fail(ConnectionError("the memory backend is down"))

    def up(self) -> None:
        """Make the backend reachable again. Its state is the same as before ``down``."""
        self._store.reachable = True

    def lose(self, permit: Permit) -> None:
        """Revoke *permit*, as if its lease had expired.

        Its holder immediately gets a push message, and the block that it guards is cancelled.
        """
        known = parse_permit_id(permit.id)
        if known is not None:
            owner, number = known
            self._store.run_everywhere(permit.name, Release(owner, [number]))

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass, as on a host that was suspended. Only leases are affected.

        The backend's clock moves, and with it every lease and ``max_hold``, and the time for
        which holders may trust their permits. If a lease is over, its holder loses the permit,
        as it would after the host resumes, and the next waiter is served. A lease that is
        not over is refreshed, so that holders keep their permits through steps that are shorter
        than the lease.

        The event loop's clock does not move, so the ``timeout`` of ``acquire`` and every sleep
        take as long as before. Waiters keep their places, and fencing tokens never decrease.

        While the backend is down no lease can be refreshed. Holders lose their permits once their
        leases are over, however short the steps.

        Raises:
            ValueError: *seconds* is negative or not finite.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"seconds must be finite and not negative, not {seconds}")
        self._store.advance(seconds)

    # -- for the hub

    async def connect(self, listener: Listener) -> Link:
        """Open a link. The library calls this, not its users."""
        if not self._store.reachable:
            raise ConnectionError("the memory backend is down")
        if isinstance(listener, Pipeline):
            with self._store.lock:
                self._store.pipelines.add(listener)
        return MemoryLink(self._store, listener)


class _Store:
    """The semaphores of one memory, with the links of its clients."""

    def __init__(self) -> None:
        self.reachable = True
        # Leases are counted by the same clock as trust, because a step of the wall clock must not
        # move them. The wall clock only sets the start, so that tokens look like Redis's.
        self._epoch_us = time.time_ns() // 1000 - _clock_us()
        self.links: list[MemoryLink] = []
        self.pipelines: WeakSet[Pipeline] = WeakSet()  # that opened these links, or earlier ones
        self.redis = MemoryRedis(self.now_us, self._publish)
        self._addresses: dict[tuple[str, str], Address] = {}  # of all names, by prefix and name
        # Links may belong to loops in several threads. A command that runs may publish to other
        # links, which takes the lock again.
        self.lock = threading.RLock()

    def run(self, address: Address, operation: Operation[R], hub: str) -> R | CommandError:
        """Carry *operation* out and return the reply."""
        codec = Codec(address, self.now_us)
        script, arguments = codec.encode(operation, 0, hub)
        with self.lock:
            self._addresses[address.prefix, address.name] = address
            try:
                return operation.reply(self.redis.eval(script.text, *arguments), address)
            except ErrorReply as refused:
                return command_error(error_from(str(refused)))

    def run_everywhere(self, name: str, operation: AnyOperation) -> None:
        """Carry *operation* out on every semaphore called *name*, as a hub without an id."""
        for (_, known), address in list(self._addresses.items()):
            if known == name:
                self.run(address, operation, "")

    def _publish(self, channel: bytes, message: bytes) -> int:
        prefix, _, hub = channel.decode().rpartition(":@")
        push = push_of(message)
        assert push is not None
        links = [link for link in self.links if link.hub == hub]
        for link in links:
            link.push(prefix, push)
        return sum(link.writable for link in links)

    def now_us(self) -> int:
        return self._epoch_us + _clock_us()

    def advance(self, seconds: float) -> None:
        """Move the clock, as if every connected hub with waiters had sent its heartbeats."""
        with self.lock:
            for address in self._addresses.values():
                self._keep_waiters(address, round(seconds * 1000))
            self._epoch_us += round(seconds * 1_000_000)
            pipelines = list(self.pipelines)
        for pipeline in pipelines:
            _in_loop(pipeline.identity.loop, partial(self._resume, pipeline, seconds))

    def _keep_waiters(self, address: Address, ms: int) -> None:
        """Let connected hubs live, and requests wait, through the time that is about to pass."""
        command, now_ms = self.redis.command, self.now_us() // 1000
        _, _, meta, hubs, _, queue, *of_keys = address.keys
        for hub in {link.hub for link in self.links}:
            alive_until = int(command("ZSCORE", hubs, hub) or 0)
            if alive_until > now_ms:
                command("ZADD", hubs, alive_until + ms, hub)
        for key in (meta, hubs, queue, *of_keys):
            if (left := command("PTTL", key)) > 0:
                command("PEXPIRE", key, left + ms)

    def _resume(self, pipeline: Pipeline, slept: float) -> None:
        """Do what a process does when it resumes after a suspension of *slept* seconds."""
        loop, hub_id = pipeline.identity.loop, pipeline.hub_id
        connected = any(link.hub == hub_id for link in self.links)
        for state in list(pipeline.semaphores.values()):
            for lease in state.holding():
                lease.trusted_until -= slept
                lease.hold_ends -= slept
                state.lose_unless_trusted(lease)
                if not lease.holding:
                    continue
                if connected:
                    self._refresh(state, lease)
                else:  # nothing else checks the lease before its former `trusted_until`
                    left = lease.trusted_until - clock()
                    loop.call_later(left, state.lose_unless_trusted, lease, context=Context())
            if state.waiting:
                state.beat()

    def _refresh(self, state: SemaphoreState, lease: Lease) -> None:
        now, terms = clock(), lease.terms
        refresh = Refresh([lease.number], terms.lease_ms, terms.max_hold_ms)
        reply = self.run(state.address, refresh, lease.hub_id)
        outcome = Outcome.GONE
        if (
            not isinstance(reply, CommandError)
            and isinstance(held := reply.answers[0], int)
            and held
        ):
            lease.note_hold_left(held, now)
            outcome = Outcome.RENEWED
        state.note_refreshed(lease, outcome, now, now)


def _clock_us() -> int:
    return round(clock() * 1_000_000)


def _in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Call *callback* in *loop*: at once where that is the running loop."""
    try:
        here = asyncio.get_running_loop() is loop
    except RuntimeError:
        here = False
    if here:
        callback()
    elif not loop.is_closed():
        loop.call_soon_threadsafe(callback, context=Context())


class Store(Protocol):
    """What a `MemoryLink` is connected to, with the links of its clients."""

    links: "list[MemoryLink]"
    lock: threading.RLock

    def run(self, address: Address, operation: Operation[R], hub: str) -> R | CommandError:
        """Carry *operation* out and return the reply."""
        ...


class MemoryLink:
    """A link whose commands run when they are sent. Replies arrive in the next loop cycle."""

    def __init__(self, store: Store, listener: Listener) -> None:
        self.fresh_at: float | None = None
        self.uncounted = False
        self.hub = listener.hub_id
        self._store = store
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._incoming: deque[Callable[[], None]] = deque()
        self._open = True
        with store.lock:
            store.links.append(self)

    @property
    def writable(self) -> bool:
        return self._open

    def send(self, commands: Sequence[AnyOperation], now: float) -> None:
        for command in commands:
            command.sent_at = now
            reply = self._store.run(command.semaphore.address, command, self.hub)
            self._receive(partial(self._reply_received, command, reply))

    def push(self, prefix: str, push: Push) -> None:
        """Deliver a push message, in its order among the replies."""
        self._receive(lambda: self._listener.push_received(prefix, push))

    def fail(self, error: Exception) -> None:
        """Break the connection, with an error for the listener."""
        if self._open:
            self.abort()
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(
                    self._listener.connection_lost, error, context=Context()
                )

    def abort(self) -> None:
        self._open = False
        self._incoming.clear()
        with self._store.lock:
            if self in self._store.links:
                self._store.links.remove(self)

    async def close(self) -> None:
        self.abort()

    def _receive(self, delivery: Callable[[], None]) -> None:
        with self._store.lock:
            if self._loop.is_closed():
                self.abort()
                return
            if not self._incoming:
                self._loop.call_soon_threadsafe(self._deliver, context=Context())
            self._incoming.append(delivery)

    def _deliver(self) -> None:
        with self._store.lock:
            incoming, self._incoming = self._incoming, deque()
        for deliver in incoming:
            if self._open:
                deliver()

    def _reply_received(self, command: AnyOperation, reply: AnyReply | CommandError) -> None:
        self.fresh_at = command.sent_at
        self._listener.reply_received(command, reply)
