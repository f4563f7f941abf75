"""Semaphores kept in this process's memory, for tests of code that uses them."""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from weakref import WeakSet

from redsem_async import Permit
from redsem_async._core.clock import now as clock
from redsem_async._core.keys import Address, parse_permit_id
from redsem_async._core.lease import Outcome
from redsem_async._hub.claim import Claim, State
from redsem_async._hub.pipeline import Pipeline
from redsem_async._hub.remote_semaphore import RemoteSemaphore
from redsem_async._protocol.backend import Command, Link, Listener, OneNode
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import Operation, Refresh, Release
from redsem_async._protocol.pushes import Push
from redsem_async._protocol.replies import AnyReply, Reply
from redsem_async._redis.faults import command_error

from ._model import FairModel, Mismatch, Model, Reordered, Stranger, Void, ZsetModel


class MemoryBackend(OneNode):
    """Stands in for a Redis client: ``FairSemaphore(MemoryBackend(), "openai", limit=20)``.

    The protocol, the hub and everything above it are the real ones; only the server is not.
    Use one backend for all semaphores of a test. :meth:`peer` makes another client of the same
    memory, for a second "process".
    """

    place = "the memory backend"

    def __init__(self) -> None:
        self._store = _Store()

    def peer(self) -> "MemoryBackend":
        """Another client of the same memory: its semaphores count as another process's."""
        other = MemoryBackend()
        other._store = self._store
        return other

    # -- trouble, when a test wants it

    def down(self) -> None:
        """From now on the backend cannot be reached, by any of its clients."""
        self._store.reachable = False
        for link in list(self._store.links):
            link.fail(ConnectionError("the memory backend is down"))

    def up(self) -> None:
        """The backend can be reached again; what it kept is still there."""
        self._store.reachable = True

    def lose(self, permit: Permit) -> None:
        """Take *permit* from its holder, as if its lease had run out unnoticed.

        The holder is told at once: a block that the permit guards is cancelled.
        """
        known = parse_permit_id(permit.id)
        if known is not None:
            owner, number = known
            self._store.run_everywhere(permit.name, Release(owner, [number]))

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass as on a host that was suspended for as long: only leases notice.

        What moves: the backend's clock, and with it the age of every lease, of permits that are
        held, detached or adopted; and the time for which holders may trust their permits. A
        lease that is over has ended: its holder is told at once, as it would be on waking up,
        and whoever waits is served. A lease that is not over is refreshed at once, so that
        holders live through any time that passes in steps shorter than it.

        What does not: the event loop's clock, so the ``timeout`` of ``acquire`` and every sleep
        take as long as ever, and waiters keep their places; fencing tokens only grow.

        While the backend is down nothing can be refreshed: holders lose their permits once their
        leases are over, however short the steps.

        Raises:
            ValueError: time does not go back.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"seconds must not be negative, and finite, not {seconds}")
        self._store.advance(seconds)

    # -- for the hub

    async def connect(self, listener: Listener) -> Link:
        """Open a link: for the library itself."""
        if not self._store.reachable:
            raise ConnectionError("the memory backend is down")
        if isinstance(listener, Pipeline):
            with self._store.lock:
                self._store.pipelines.add(listener)
        return MemoryLink(self._store, listener)


class _Store:
    """The memory that several clients share."""

    def __init__(self) -> None:
        self.reachable = True
        # Leases are counted by the clock that trust is counted by. A step of the wall clock must
        # not move them; it only sets where they start, so that tokens look as Redis's do.
        self._epoch_us = time.time_ns() // 1000 - _clock_us()
        self.links: list[MemoryLink] = []
        self.pipelines: WeakSet[Pipeline] = WeakSet()  # whose links these are or were
        self._models: dict[tuple[str, str], Model] = {}
        # Links may belong to loops in several threads. A call that is carried out may tell
        # others, so it is taken again on the way.
        self.lock = threading.RLock()

    def run(self, address: Address, call: Operation, hub: str) -> AnyReply | CommandError:
        """Carry *call* out and answer it."""
        with self.lock:
            return self._run(address, call, hub)

    def _run(self, address: Address, call: Operation, hub: str) -> AnyReply | CommandError:
        now_us = self.now_us()
        try:
            return self._model(address, now_us).run(address, call, hub, now_us)
        except (Reordered, Stranger, Void) as again:
            return CommandError(ErrorKind.RETRY_NOW, again)
        except Mismatch as mismatch:
            return command_error(RuntimeError(f"MODE {mismatch}"))

    def _model(self, address: Address, now_us: int) -> Model:
        """The semaphore of that name, in the mode in use, or in the caller's if there is none."""
        key = (address.prefix, address.name)
        known = self._models.get(key)
        if known is not None:
            known.expire(now_us)
        kind = FairModel if address.mode == "fair" else ZsetModel
        if known is not None and (known.kind is not None or type(known) is kind):
            return known
        model = self._models[key] = kind(self._teller(address.prefix))
        model.kept_by = model.server  # a name that memory does not know was never used
        if known is not None:
            known.give_to(model)
        return model

    def run_everywhere(self, name: str, call: Operation) -> None:
        """Carry *call* out on every semaphore called *name*, as nobody in particular."""
        for (prefix, known), model in list(self._models.items()):
            if known == name and model.kind is not None:
                mode, clock = model.kind.split()
                address = Address(mode, prefix, known, clock)  # type: ignore[arg-type]
                self.run(address, call, "")

    def now_us(self) -> int:
        return self._epoch_us + _clock_us()

    def advance(self, seconds: float) -> None:
        """Move the clock. A process that is connected and waits has sent its heartbeats."""
        with self.lock:
            before = self.now_us() // 1000
            self._epoch_us += round(seconds * 1_000_000)
            connected = {link.hub for link in self.links}
            for model in self._models.values():
                waiting = [
                    party
                    for hub in connected & model.waiting_hubs()
                    if (party := model.look_up(hub)).alive_until > before
                ]
                for party in waiting:
                    party.alive_until += round(seconds * 1000)
                if waiting:
                    model.kept_until += round(seconds * 1000)
            pipelines = list(self.pipelines)
        for pipeline in pipelines:
            _in_loop(pipeline.identity.loop, partial(self._wake_up, pipeline, seconds))

    def _wake_up(self, pipeline: Pipeline, slept: float) -> None:
        """Do what a process does that finds *slept* seconds gone."""
        loop, hub_id = pipeline.identity.loop, pipeline.hub_id
        connected = any(link.wants_push and link.hub == hub_id for link in self.links)
        for remote in list(pipeline.semaphores.values()):
            ledger = remote.ledger
            for claim in ledger.holding():
                claim.trusted_until -= slept
                if claim.state is State.HELD and ledger.lose_unless_trusted(claim):
                    continue
                if connected:
                    self._refresh(remote, claim)
                else:  # nobody looks before trust would have ended without this
                    left = claim.trusted_until - clock()
                    loop.call_later(left, ledger.lose_unless_trusted, claim)
            if ledger.waiting:
                remote.heartbeats.beat()

    def _refresh(self, remote: RemoteSemaphore, claim: Claim) -> None:
        now = clock()
        call = Refresh([claim.number], claim.terms.lease_ms)
        answer = self.run(remote.address, call, claim.hub_id)
        held = isinstance(answer, Reply) and answer.answers[0]
        remote.refreshes.refreshed(claim, Outcome.RENEWED if held else Outcome.GONE, now)

    def _teller(self, prefix: str) -> Callable[[str, Push], int]:
        def tell(owner: str, message: Push) -> int:
            links = [link for link in self.links if link.hub == owner and link.wants_push]
            for link in links:
                link.tell(prefix, message)
            return len(links)

        return tell


def _clock_us() -> int:
    return round(clock() * 1_000_000)


def _in_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Do *work* in *loop*: now, if that is the one that runs here."""
    try:
        here = asyncio.get_running_loop() is loop
    except RuntimeError:
        here = False
    if here:
        work()
    elif not loop.is_closed():
        loop.call_soon_threadsafe(work)


class MemoryLink:
    """A link whose commands are carried out when they are sent, and answered a moment later."""

    def __init__(self, store: _Store, listener: Listener) -> None:
        self.fresh_at: float | None = None
        self.hub = listener.hub_id
        self.wants_push = listener.wants_push
        self._store = store
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._arriving: deque[Callable[[], None]] = deque()
        self._open = True
        with store.lock:
            store.links.append(self)

    @property
    def writable(self) -> bool:
        return self._open

    def send(self, commands: Sequence[Command], now: float) -> None:
        for command in commands:
            command.sent_at = now
            answer = self._store.run(command.semaphore.address, command.operation, self.hub)
            self._arrive(partial(self._answered, command, answer))

    def tell(self, prefix: str, message: Push) -> None:
        """Deliver a message, in its order among the answers."""
        self._arrive(lambda: self._listener.push_received(prefix, message))

    def fail(self, error: Exception) -> None:
        """Break, with an error for the listener."""
        if self._open:
            self.abort()
            self._loop.call_soon_threadsafe(self._listener.connection_lost, error)

    def abort(self) -> None:
        self._open = False
        self._arriving.clear()
        with self._store.lock:
            if self in self._store.links:
                self._store.links.remove(self)

    async def close(self) -> None:
        self.abort()

    def _arrive(self, arrival: Callable[[], None]) -> None:
        with self._store.lock:
            if not self._arriving:
                self._loop.call_soon_threadsafe(self._deliver)
            self._arriving.append(arrival)

    def _deliver(self) -> None:
        with self._store.lock:
            arrived, self._arriving = self._arriving, deque()
        for arrival in arrived:
            if self._open:
                arrival()

    def _answered(self, command: Command, answer: AnyReply | CommandError) -> None:
        self.fresh_at = command.sent_at
        self._listener.reply_received(command, answer)
