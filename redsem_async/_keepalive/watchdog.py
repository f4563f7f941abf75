"""Keeps permits refreshed while the hub's event loop is blocked, with one thread for each node.

As long as the hub's loop refreshes permits in time, a thread sends nothing. Where half of a lease
is gone, it refreshes them itself, but only while the hub's loop showed life within the longest
stall. A loop that is stuck forever must lose its permits, as a crashed process does.

All threads read a lease's state and until when it is trusted, each written in one step. Only the
hub's loop changes the state, and it does so before it tells the server. A thread writes trust
that was counted from sending, and only where it had not ended, so what the body has seen as lost
stays lost. Where the server says that a permit is gone, its trust ends at once, because the body
may ask while it blocks the loop. The hub's loop does the rest.
"""

import asyncio
import atexit
import logging
import math
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress

from redsem_async._core.backoff import delays
from redsem_async._core.clock import now as clock
from redsem_async._core.lease import (
    CONNECT_TIMEOUT,
    MAX_REPLY_TIMEOUT,
    Lost,
    Outcome,
    after_refresh,
    overdue,
)
from redsem_async._hub.commands.refresh import (
    MAX_HEAVY_REFRESHES,
    MAX_REFRESHES,
    refresh_of,
    restore_of,
)
from redsem_async._hub.identity import HubIdentity
from redsem_async._hub.lease import Lease, LeaseState
from redsem_async._hub.remote_semaphore import RemoteSemaphore
from redsem_async._protocol.backend import Backend, BlockingLink, Command, Node
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.operations import Refresh, Restore
from redsem_async._protocol.replies import AnyReply, Reply

logger = logging.getLogger("redsem_async")

LOOKS = 12  # in a lease, the shortest of those watched
MAX_REST = 0.5  # seconds from one look to the next
IDLE = 1.0  # seconds for which a thread stays when there is nothing to watch
EXIT_TIMEOUT = 2.0  # seconds for which the end of a hub, or of the program, waits for a thread


class Watchdog:
    """The permits that are watched, and the threads that come and go with them.

    Attributes:
        watched: added to, taken from and copied in single steps.
        shortest_lease: of any lease so far, in seconds.
        seen_at: when the hub's loop last showed life.
    """

    def __init__(self, identity: HubIdentity, backend: Backend) -> None:
        self.hub_id: str = identity.id
        self.loop: asyncio.AbstractEventLoop = identity.loop
        self.watched: dict[Lease, RemoteSemaphore] = {}
        self.shortest_lease: float = math.inf
        self.seen_at: float = -math.inf
        self._backend = backend
        self._trust_lock = identity.trust_lock
        self._threads: dict[Node, WatchdogThread] = {}
        self._lock = threading.Lock()  # on which threads there are
        # Where the server said that a semaphore is, by it and where the loop takes it to be.
        self._moved: dict[tuple[RemoteSemaphore, Node], Node] = {}
        self._told_of = 0.0  # the last stall that the log has, by when the loop was seen

    # -- in the hub's loop

    def add(self, lease: Lease, remote: RemoteSemaphore, now: float) -> None:
        """Keep the permit of *lease* refreshed, whatever the loop does."""
        self.seen_at = now
        shorter = lease.terms.lease < self.shortest_lease
        if shorter:
            self.shortest_lease = lease.terms.lease
        self.watched[lease] = remote
        self.have_thread(self.node_of(remote), look=shorter)

    def remove(self, lease: Lease) -> None:
        """Leave *lease* alone. Takes no lock, because a forked child may come here."""
        self.watched.pop(lease, None)

    async def end(self) -> None:
        """The hub ends, so end the threads too, within a bounded time."""
        self.watched.clear()
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            thread.stop()
        # They end at once, unless a server does not answer. A thread cannot be awaited.
        deadline = clock() + EXIT_TIMEOUT
        while clock() < deadline and any(t.is_alive() for t in threads):  # noqa: ASYNC110
            await asyncio.sleep(0.002)

    def show_life(self) -> None:
        """The loop runs."""
        self.seen_at = clock()

    # -- in any thread

    def have_thread(self, node: Node, *, look: bool = False) -> None:
        """Have a thread for *node*, for a while at least. With *look* it looks at once."""
        with self._lock:
            if not self.watched:
                return  # the hub has ended
            thread = self._threads.get(node)
            if thread is None or thread.stopped or not thread.is_alive():
                thread = self._threads[node] = WatchdogThread(self, node)
                try:
                    thread.start()
                except RuntimeError as error:
                    # The permit is held all the same, and the loop refreshes it.
                    text = "no thread keeps permits while the event loop is blocked: %s"
                    logger.warning(text, error, extra={"event": "no thread"})
            thread.used_at = clock()
        if look:
            thread.stirred.set()

    def ends(self, thread: "WatchdogThread") -> bool:
        """Whether *thread* is to end. If so, the next permit starts another."""
        with self._lock:
            idle = clock() - thread.used_at >= IDLE and not any(
                self.node_of(remote) is thread.node for remote in [*self.watched.values()]
            )
            thread.stopped = thread.stopped or idle or self.loop.is_closed()
            return thread.stopped

    def to_loop(self, work: Callable[..., object], *arguments: object) -> None:
        """Let the loop do something, unless it was closed."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(work, *arguments)

    def tell_of_stall(self, silence: float) -> None:
        """Log once for each stall that the loop is blocked for too long."""
        if self._told_of != self.seen_at:
            self._told_of = self.seen_at
            text = "the event loop is blocked for %.3g s: its permits are not refreshed any more"
            logger.warning(text, silence, extra={"event": "loop blocked", "seconds": silence})

    def node_of(self, remote: RemoteSemaphore) -> Node:
        """The node that keeps *remote*, as far as is known."""
        node = remote.state.route.link.node
        return self._moved.get((remote, node), node)

    def redirected(self, remote: RemoteSemaphore, error: CommandError, here: Node) -> None:
        """Another node keeps *remote* by now, where the loop cannot follow it."""
        node = self._backend.redirected(remote.address, error, here=here)
        if node is not None:
            self._moved[remote, remote.state.route.link.node] = node
            self.have_thread(node, look=True)

    def refreshed(
        self, remote: RemoteSemaphore, lease: Lease, outcome: Outcome, sent_at: float
    ) -> None:
        """A refresh that was sent at *sent_at* has ended."""
        now, trusted = clock(), lease.trusted_until
        if lease.state is not LeaseState.HELD or now >= trusted:
            return  # released meanwhile, or perhaps seen as lost and not to be revived
        if outcome is Outcome.GONE:
            lease.disown()
            self.to_loop(remote.refreshed_elsewhere, lease, outcome, sent_at, now)
            return
        duration = lease.terms.lease
        verdict = after_refresh(trusted, duration, outcome, sent_at=sent_at, now=now)
        with self._trust_lock:
            # Unless the loop writes a detach, which may be carried out after the refresh.
            if not isinstance(verdict, Lost) and sent_at > lease.renewable_after:
                lease.renew(verdict)


class _Batch(Command):
    """Permits to be refreshed, or restored."""

    __slots__ = ("leases", "remote")

    def __init__(
        self, remote: RemoteSemaphore, operation: Refresh | Restore, leases: Sequence[Lease]
    ) -> None:
        super().__init__(remote.state, operation)
        self.remote: RemoteSemaphore = remote
        self.leases: Sequence[Lease] = leases


class WatchdogThread(threading.Thread):
    """Looks again and again at the permits that one node keeps, over a connection of its own.

    Attributes:
        node: which keeps the permits.
        stopped: whether it is to end. It may have ended for another reason.
        stirred: set to have it look at once.
        used_at: when there last was a permit to watch.
    """

    def __init__(self, watchdog: Watchdog, node: Node) -> None:
        super().__init__(name="redsem-watchdog", daemon=True)
        self.stopped: bool = False
        self.stirred: threading.Event = threading.Event()
        self.used_at: float = clock()
        self._watchdog = watchdog
        self.node: Node = node
        self._link: BlockingLink | None = None
        self._connecting = 0.0  # seconds for the last attempt, 0 after one that succeeded
        self._delays = delays(random.random)
        self._warned = False

    def stop(self) -> None:
        """End at once."""
        self.stopped = True
        self.stirred.set()

    def run(self) -> None:
        watchdog = self._watchdog
        try:
            while not watchdog.ends(self):
                watchdog.to_loop(watchdog.show_life)
                self._connect()
                self._exchange(self._overdue())
                rest = min(watchdog.shortest_lease / LOOKS, MAX_REST)
                self.stirred.wait(rest if self._link else min(rest, next(self._delays)))
                self.stirred.clear()
        finally:
            self._disconnect()

    def _connect(self) -> None:
        """Connect before it is needed, because a stall should not begin with a handshake."""
        if self._link is not None and not self._link.closed:
            return
        self._disconnect()
        # Short at first, and doubled each time, because the server may be distant or busy.
        shortest = self._watchdog.shortest_lease / 4
        self._connecting = min(max(shortest, 0.25, 2 * self._connecting), CONNECT_TIMEOUT)
        try:
            self._link = self.node.connect_blocking(self._watchdog.hub_id, self._connecting)
            self._connecting = 0.0
        except Exception as error:  # noqa: BLE001 - the network's, or of the user's making
            if not self._warned:
                self._warned = True
                facts = {"event": "no second connection", "place": self.node.place}
                text = "a second connection to %s failed: %s"
                reason = str(error) or type(error).__name__
                logger.warning(text, self.node.place, reason, extra=facts)

    def _disconnect(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _overdue(self) -> list[_Batch]:
        """The permits that the hub's loop should have refreshed by now."""
        watchdog, now = self._watchdog, clock()
        silence = now - watchdog.seen_at
        groups: defaultdict[tuple[RemoteSemaphore, int, float | None], list[Lease]]
        groups = defaultdict(list)
        elsewhere: set[Node] = set()
        for lease, remote in watchdog.watched.copy().items():
            if lease.state is not LeaseState.HELD or lease.hub_id != watchdog.hub_id:
                watchdog.remove(lease)
                continue
            node = watchdog.node_of(remote)
            if node is not self.node:
                elsewhere.add(node)
                continue
            self.used_at = now
            renewable = lease.trusted_until < lease.hold_ends
            if not renewable or not overdue(lease.trusted_until, lease.terms.lease, now):
                continue
            if silence <= (lease.terms.longest_stall or 0.0):
                groups[remote, lease.terms.lease_ms, lease.terms.max_hold].append(lease)
            else:
                watchdog.tell_of_stall(silence)
        for node in elsewhere:
            watchdog.have_thread(node)
        batches: list[_Batch] = []
        for (remote, _, _), leases in groups.items():
            heavy = any(lease.permits > 1 for lease in leases)
            size = MAX_HEAVY_REFRESHES if heavy else MAX_REFRESHES
            for start in range(0, len(leases), size):
                part = leases[start : start + size]
                batches.append(_Batch(remote, refresh_of(part), part))
        return batches

    def _exchange(self, batches: Sequence[_Batch]) -> None:
        """Send *batches*, apply the replies, and restore what was forgotten."""
        timeout = min(max(self._watchdog.shortest_lease / 6, 0.1), MAX_REPLY_TIMEOUT)
        while batches and self._link is not None:
            try:
                replies = self._link.exchange(batches, timeout)
            except Exception:  # noqa: BLE001 - the network's, and no answer is not a no
                self._disconnect()
                return
            self._delays, self._warned = delays(random.random), False
            restores = [self._apply(*each) for each in zip(batches, replies, strict=True)]
            batches = [restore for restore in restores if restore is not None]

    def _apply(self, batch: _Batch, reply: AnyReply | CommandError) -> _Batch | None:
        """Apply *reply* to the permits of *batch*. Returns what is to be restored, if anything."""
        if isinstance(reply, CommandError):
            if reply.kind is ErrorKind.MOVED:
                self._watchdog.redirected(batch.remote, reply, self.node)
            return None  # the next look sends it again
        assert isinstance(reply, Reply)
        missing: list[Lease] = []
        refreshed = self._watchdog.refreshed
        refreshes = isinstance(batch.operation, Refresh)
        for lease, held in zip(batch.leases, reply.answers, strict=True):
            assert isinstance(held, int)
            if held:
                if refreshes:
                    lease.note_hold_left(held, batch.sent_at)
                refreshed(batch.remote, lease, Outcome.RENEWED, batch.sent_at)
                if held < 0:  # the server lost its key or its slots
                    missing.append(lease)
            elif batch.semaphore.recovers and refreshes:
                missing.append(lease)
            else:
                refreshed(batch.remote, lease, Outcome.GONE, batch.sent_at)
        missing = [lease for lease in missing if lease.trusted_at(clock())]
        if not missing:
            return None
        # The server does not know them, or all of them. It may have lost its state.
        hub_info = batch.remote.state.introduction.hub_info()
        operation = restore_of(missing)._replace(hub_info=hub_info)
        return _Batch(batch.remote, operation, missing)


def _end_all() -> None:
    """A program may end without closing its event loop. A forked child has no such thread."""
    threads = [each for each in threading.enumerate() if isinstance(each, WatchdogThread)]
    for thread in threads:
        thread.stop()
    deadline = clock() + EXIT_TIMEOUT
    for thread in threads:
        thread.join(max(0.0, deadline - clock()))


atexit.register(_end_all)
