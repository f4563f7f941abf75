"""Keeps permits refreshed while the hub's event loop is blocked, from a thread of its own.

As long as the hub's loop refreshes them in time, the thread sends nothing; where half of a lease
is gone, it refreshes them itself. It does so only while the hub's loop showed life within the
longest stall: a loop that is stuck for ever must lose its permits, as a crashed process does.

Both threads read a claim's state and until when it is trusted, each written in one step. Only the
hub's loop changes the state, and it does so before it tells the server. The thread writes trust
that was counted from sending, and only where it had not ended: what the body has seen as lost
stays lost. Where the server says that a permit is gone, its trust ends at once, because the body
may ask while it blocks the loop; the hub's loop does the rest.
"""

import asyncio
import atexit
import logging
import math
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

from redsem_async._core.clock import now as clock
from redsem_async._core.lease import overdue
from redsem_async._hub.claim import Claim, State
from redsem_async._hub.identity import HubIdentity
from redsem_async._hub.remote_semaphore import RemoteSemaphore
from redsem_async._protocol.backend import Backend, Node

from .watchdog_connection import LOOKS, WatchdogConnection

logger = logging.getLogger("redsem_async")

MAX_REST = 0.5  # seconds from one look to the next
LINGER = 1.0  # seconds for which the thread stays when there is nothing to watch
EXIT_TIMEOUT = 2.0  # seconds for which the end of a hub, or of the program, waits for the thread


class Watchdog:
    """The permits that are watched, and the thread that comes and goes with them.

    Attributes:
        watched: added to, taken from and copied in single steps.
        shortest_lease: of any claim so far, in seconds.
        seen_at: when the hub's loop last showed life.
        used_at: when a permit was last added.
    """

    def __init__(self, identity: HubIdentity, backend: Backend) -> None:
        self.hub_id: str = identity.id
        self.loop: asyncio.AbstractEventLoop = identity.loop
        self.trust_lock: threading.Lock = identity.trust_lock
        self.backend: Backend = backend
        self.watched: dict[Claim, RemoteSemaphore] = {}
        self.shortest_lease: float = math.inf
        self.seen_at: float = -math.inf
        self.used_at: float = -math.inf
        self.thread: WatchdogThread | None = None
        self._asked = False  # for a sign of life
        self._lock = threading.Lock()  # on whether there is a thread

    # -- in the hub's loop

    def add(self, claim: Claim, remote: RemoteSemaphore, now: float) -> None:
        """Keep the permit of *claim* refreshed, whatever the loop does."""
        self.seen_at = self.used_at = now
        shorter = claim.terms.lease < self.shortest_lease
        if shorter:
            self.shortest_lease = claim.terms.lease
        with self._lock:
            self.watched[claim] = remote
            if self.thread is None:
                self.thread = self._start()
            elif shorter:
                self.thread.stir()

    def _start(self) -> "WatchdogThread | None":
        try:
            return WatchdogThread(self)
        except (OSError, RuntimeError) as error:
            # The permit is held all the same, and the loop refreshes it.
            text = "no thread keeps permits while the event loop is blocked: %s"
            logger.warning(text, error, extra={"event": "no thread"})
            return None

    def remove(self, claim: Claim) -> None:
        """Leave *claim* alone. Takes no lock, because a forked child may come here."""
        self.watched.pop(claim, None)

    async def end(self) -> None:
        """The hub ends: end the thread too, within a bounded time."""
        self.watched.clear()
        with self._lock:
            thread = self.thread
        if thread is not None:
            thread.stop()
            await asyncio.wait([thread.gone], timeout=EXIT_TIMEOUT)
            if thread.gone.done():
                thread.join()  # that was the last thing that it did

    def _show_life(self) -> None:
        self.seen_at, self._asked = clock(), False

    # -- in the thread

    def ask_for_life(self) -> None:
        """Have the loop show that it lives, once it comes to that."""
        if not self._asked:
            self._asked = True
            self.to_loop(self._show_life)

    def to_loop(self, work: Callable[..., object], *arguments: object) -> None:
        """Let the loop do something, unless it was closed."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(work, *arguments)

    def may_leave(self) -> bool:
        """Whether the thread may end. If it may, the next permit finds none, and starts one."""
        with self._lock:
            if self.watched and not self.loop.is_closed():
                return False
            self.thread = None
            return True

    def left(self, thread: "WatchdogThread") -> None:
        """The thread has ended, for whatever reason."""
        with self._lock:
            if self.thread is thread:
                self.thread = None


class WatchdogThread:
    """One thread, from its start to its end: it looks at the permits again and again."""

    def __init__(self, watchdog: Watchdog) -> None:
        """Raises RuntimeError or OSError where there can be no more threads or loops."""
        self.gone: asyncio.Future[None] = watchdog.loop.create_future()
        self._thread = threading.Thread(target=self._run, name="redsem-watchdog", daemon=True)
        self._watchdog = watchdog
        self._stirred = asyncio.Event()
        self._stopped = False
        self._busy_at = clock()
        self._stuck = False
        self._connections: dict[Node, WatchdogConnection] = {}
        # Where the loop still takes a semaphore to be, and where the server said that it is.
        self._moved: dict[RemoteSemaphore, tuple[Node, Node]] = {}
        self._loop = asyncio.new_event_loop()
        _THREADS.add(self)
        try:
            self._thread.start()
        except RuntimeError:
            _THREADS.discard(self)
            self._loop.close()
            raise

    # -- from other threads

    @property
    def alive(self) -> bool:
        """Whether it runs in this process."""
        return self._thread.is_alive()

    def stir(self) -> None:
        """Look at once."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self.look_soon)

    def stop(self) -> None:
        """End at once."""
        self._stopped = True
        self.stir()

    def join(self) -> None:
        """Wait for the end, within a bounded time."""
        self._thread.join(EXIT_TIMEOUT)

    # -- in the thread

    def _run(self) -> None:
        try:
            # Not in debug mode: its warnings about slowness would be about the hub's loop.
            with asyncio.Runner(debug=False, loop_factory=lambda: self._loop) as runner:
                runner.run(self._keep())
        finally:
            self._watchdog.left(self)
            _THREADS.discard(self)
            self._watchdog.to_loop(self.gone.set_result, None)

    async def _keep(self) -> None:
        try:
            while not (self._stopped or self._at_end()):
                self._watchdog.ask_for_life()
                self._look()
                await self._rest()
        finally:
            await asyncio.gather(*(each.close() for each in self._connections.values()))

    def _at_end(self) -> bool:
        watchdog, now = self._watchdog, clock()
        if watchdog.watched:
            self._busy_at = now
        idle = now - max(self._busy_at, watchdog.used_at) >= LINGER
        return (idle or watchdog.loop.is_closed()) and watchdog.may_leave()

    async def _rest(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(self._watchdog.shortest_lease / LOOKS, MAX_REST)):
                await self._stirred.wait()
        self._stirred.clear()

    def look_soon(self) -> None:
        """Something has changed."""
        self._stirred.set()

    def _look(self) -> None:
        """Have refreshed what the hub's loop should have refreshed by now."""
        watchdog, now = self._watchdog, clock()
        silence = now - watchdog.seen_at
        due: defaultdict[WatchdogConnection, dict[Claim, RemoteSemaphore]] = defaultdict(dict)
        stuck = False
        for claim, remote in watchdog.watched.copy().items():
            if claim.state is not State.HELD or claim.hub_id != watchdog.hub_id:
                watchdog.remove(claim)
                continue
            # Made before it is needed, so that a stall does not begin with a handshake.
            connection = self._connection(self._node_of(remote))
            renewable = claim.trusted_until < claim.hold_ends
            if not renewable or not overdue(claim.trusted_until, claim.terms.lease, now):
                continue
            if silence <= (claim.terms.longest_stall or 0.0):
                due[connection][claim] = remote
            else:
                stuck = True
        if stuck and not self._stuck:
            text = "the event loop is blocked for %.3g s: its permits are not refreshed any more"
            logger.warning(text, silence, extra={"event": "loop blocked", "seconds": silence})
        self._stuck = stuck
        for connection in self._connections.values():
            connection.refresh(due[connection])

    def _connection(self, node: Node) -> WatchdogConnection:
        connection = self._connections.get(node)
        if connection is None:
            watchdog = self._watchdog
            connection = self._connections[node] = WatchdogConnection(
                watchdog.hub_id,
                watchdog.backend,
                node,
                watchdog.trust_lock,
                lease=lambda: watchdog.shortest_lease,
                look_soon=self.look_soon,
                moved=self.moved,
                to_loop=watchdog.to_loop,
            )
        return connection

    def _node_of(self, remote: RemoteSemaphore) -> Node:
        node = remote.route.link.node
        moved = self._moved.get(remote)
        if moved is None:
            return node
        if moved[0] is not node:
            del self._moved[remote]  # the loop has followed
            return node
        return moved[1]

    def moved(self, remote: RemoteSemaphore, node: Node) -> None:
        """The semaphore is at *node* by now; the loop cannot follow it there."""
        self._moved[remote] = (remote.route.link.node, node)
        self.look_soon()


_THREADS: set[WatchdogThread] = set()
"""Those that run. A forked child has none of them, and keeps what it inherited as it is."""


def _end_all() -> None:
    """A program may end without closing its event loop."""
    for thread in list(_THREADS):
        if thread.alive:  # not in a forked child
            thread.stop()
            thread.join()


atexit.register(_end_all)
