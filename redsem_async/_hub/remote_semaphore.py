"""One semaphore as this process sees it: what tasks ask of it, and what is written next.

Everything here is synchronous: between two turns of the event loop, the states of the claims and
what the server was sent agree.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import SemaphoreClosed, SemaphoreError
from redsem_async._core.keys import Address
from redsem_async._core.lease import (
    clock_margin,
    heartbeat_interval,
    liveness_timeout,
    reply_timeout,
)
from redsem_async._observers.registry import observers
from redsem_async._protocol.backend import SemaphoreRef
from redsem_async._protocol.operations import Operation, Reap
from redsem_async._protocol.replies import AnyReply, Reply

from .claim import Claim, State
from .deadlines import Deadlines
from .handout import Handout
from .heartbeat_timer import STAGGER, HeartbeatTimer
from .identity import HubIdentity
from .introduction import Introduction
from .ledger import Ledger
from .operations.abandon import AbandonQueue
from .operations.acquire import AcquireQueue
from .operations.adopt import PendingAdopt
from .operations.base import Batch
from .operations.confirm import PendingConfirm
from .operations.detach import PendingDetach
from .operations.heartbeat import HeartbeatBatch
from .operations.query import Query, QueryQueue
from .operations.refresh import RefreshQueue
from .operations.release import Confirmed, PendingRelease, ReleaseQueue
from .reuse import Reuse
from .route import LinkState, Route
from .waiters import Waiters
from .window import Window


class Writer(ABC):
    """Writes what semaphores want written, when it is time; a `Pipeline` is one.

    Attributes:
        state: of its connection.
        window: how many commands may be in flight, and how large they grow.
    """

    state: LinkState
    window: Window

    @abstractmethod
    def schedule(self, remote: "RemoteSemaphore", *, asked: bool) -> None:
        """*remote* has something to write, *asked* for by a task that waits for it."""

    @abstractmethod
    def flush_if_room(self) -> None:
        """There is enough for a command before the turn of the loop has ended."""

    @abstractmethod
    def confirm(self, pending: PendingConfirm) -> None:
        """Wait until enough replicas know of a grant that came over this connection."""

    @abstractmethod
    def probe_now(self) -> None:
        """A caller does not wait: find out at once whether the server can be asked."""

    @abstractmethod
    def expect_lease(self, lease: float) -> None:
        """Permits of so short a lease are used: notice a silent server in time for them."""


class RemoteSemaphore:
    """The semaphore at *address*, as the pipeline *writer* reaches it."""

    def __init__(
        self, identity: HubIdentity, writer: Writer, address: Address, label: str | None
    ) -> None:
        self.address: Address = address
        self.identity: HubIdentity = identity
        self.writer: Writer = writer
        self.ref: SemaphoreRef = SemaphoreRef(address)
        self.route: Route = Route(address.name, writer.state)
        self.introduction: Introduction = Introduction(self.ref, self.route, label)
        self.ledger: Ledger = Ledger(identity, self.ref, self.route, self.introduction, self.wake)
        self.heartbeats: HeartbeatTimer = HeartbeatTimer(self.ledger)
        self.waiters: Waiters = Waiters(self.ledger, self.heartbeats)
        self.refreshes: RefreshQueue = RefreshQueue(self.ledger, self.lose)
        self.releases: ReleaseQueue = ReleaseQueue(self.ledger, self.refreshes, self.apply)
        self.abandons: AbandonQueue = AbandonQueue(self.ledger, self.releases)
        self.reuse: Reuse = Reuse(self.ledger, self.abandons, self.heartbeats.beat)
        self.handout: Handout = Handout(self.ledger, self.refreshes, self.abandons, self._confirm)
        self.deadlines: Deadlines = Deadlines(self.ledger, self.heartbeats, self.abandons)
        self.acquires: AcquireQueue = AcquireQueue(
            self.ledger, self.waiters, self.handout, self.abandons, self.deadlines, self.apply
        )
        self.queries: QueryQueue = QueryQueue(self.ledger, self.abandons, self.apply, self.cleared)
        self.scheduled: bool = False  # its pipeline knows of it: takes from it, or holds it back
        self.drop_logged_at: float = -math.inf  # when a dropped permit was logged last

    # -- what tasks ask for

    def recover(self, lease: float) -> None:
        """Look for losses of state from now on, for permits of *lease* seconds."""
        self.ledger.longest_lease = max(self.ledger.longest_lease, lease)
        if not self.ref.recovers:
            self.ref.recovers = True
            self.introduction.sent = False

    def submit(self, claim: Claim) -> None:
        """Ask for a permit. The future of *claim* wakes the caller."""
        ledger, terms = self.ledger, claim.terms
        if terms.lease < ledger.shortest_lease:
            ledger.shortest_lease = terms.lease
            self.writer.expect_lease(terms.lease)
        ledger.longest_lease = max(ledger.longest_lease, terms.lease)
        if terms.linger or self.reuse.kept:
            self.reuse.requested(terms)
        if not claim.waits:
            self.writer.probe_now()
        ledger.new.append(claim)
        if claim.ahead:
            ledger.ahead.add(claim)
            self.waiters.unsorted = True
        self.wake(asked=True, size=len(ledger.new))

    def release(self, claim: Claim, now: float, future: Confirmed | None = None) -> PendingRelease:
        """Give a held permit back. *future* gets whether it was held until *now*."""
        trusted = claim.trusted_at(now)
        claim.end()
        pending = self.releases.give_back(claim, now, trusted=trusted, future=future)
        for notifier in observers.notifiers:
            notifier.released(claim)
        return pending

    def release_by_id(self, owner: str, number: int, future: Confirmed) -> None:
        """Give back a permit that is known by its id alone. *future* gets whether it was held."""
        claim = self.ledger.by_number.get(number) if owner == self.identity.id else None
        self.releases.give_back_unknown(owner, number, future)
        if claim is not None and claim.state is State.HELD:
            del self.ledger.by_number[number]
            self.ledger.lose(claim, "released by its id", expected=True)
        elif claim is not None:
            self.lose(claim, "released by its id")

    async def detach(self, claim: Claim, expires: float) -> None:
        """Have the server keep a held permit for *expires* seconds more, and let go of it.

        Raises:
            PermitLost: when it is lost, or given back meanwhile.
            BackendError: when the server refused, or could not be asked.
        """
        future: asyncio.Future[AnyReply | SemaphoreError] = self.identity.loop.create_future()
        detach = PendingDetach(claim, expires, future, self.refreshes)
        # Once it is written, the permit is trusted for no longer than that.
        left = claim.trusted_until - clock()
        bounds = (expires - clock_margin(expires), reply_timeout(self.ledger.shortest_lease), left)
        reply = await self.queries.ask(detach, max(0.0, min(bounds)))
        assert isinstance(reply, Reply)
        if not reply.answers[0]:
            self.lose(claim, "the server does not hold it any more")
        if claim.state is not State.HELD:
            raise claim.loss()
        claim.end()
        self.ledger.by_number.pop(claim.number, None)
        for notifier in observers.notifiers:
            notifier.detached(claim)

    def adopt(self, claim: Claim, owner: str, old: int) -> None:
        """Take over the permit *old* of the hub *owner*. The claim's future wakes the caller."""
        self.queries.append(
            PendingAdopt(claim, owner, old, self.refreshes, self.handout, self.revoked)
        )

    async def ask(self, operation: Operation) -> AnyReply:
        """Send an operation that is not batched, and wait for its reply within a bounded time.

        Raises:
            BackendError: when the server refused, or could not be asked.
        """
        query = Query(operation, self.identity.loop.create_future())
        return await self.queries.ask(query, reply_timeout(min(self.ledger.shortest_lease, 10.0)))

    # -- what is written next

    def wake(self, *, asked: bool = False, size: int = 0) -> None:
        """Have the pipeline ask what to write: *size* requests, *asked* by a task that waits."""
        if not self.scheduled:
            self.scheduled = True
            self.writer.schedule(self, asked=asked)
        if size >= self.writer.window.batch_target:
            self.writer.flush_if_room()

    @property
    def eager(self) -> bool:
        """Whether there is more to write."""
        return bool(
            self.ledger.new
            or self.releases.by_owner
            or self.refreshes.by_number
            or self.refreshes.restores
            or self.ledger.leaving
            or self.abandons.void
            or self.heartbeats.due
            or (self.queries.calls and self.queries.next() is not None)
        )

    @property
    def active(self) -> bool:
        """Whether anything is held, waited for or to be written: the connection is kept then."""
        ledger, new = self.ledger, self.ledger.new
        while new and new[0].state is not State.NEW:
            new.popleft()
        return bool(
            ledger.by_number
            or new
            or ledger.waiting
            or self.releases.by_owner
            or self.abandons.worth_a_connection
            or self.queries.calls
            or self._worth_a_command
        )

    @property
    def _worth_a_command(self) -> bool:
        """Whether something is due that is worth a command.

        Not a new connection: without one the server finds out that no claim waits here.
        """
        due = self.heartbeats.due or self.refreshes.by_number or self.refreshes.restores
        return bool(due) and self.route.link.link is not None and self.route.error is None

    def take(self) -> Batch | None:
        """The next batch to write, if any: refreshes, releases, queries, then acquires."""
        if self.ref.recovers and not self.introduction.sent:
            return self._heartbeat()  # a loss of state is to be noticed before anything is done
        if self.refreshes.by_number or self.refreshes.restores:
            return self.refreshes.take()
        if self.releases.by_owner:
            return self.releases.take()
        if self.ledger.leaving or self.abandons.void:
            return self.abandons.take()
        if self.queries.calls and self.queries.next() is not None:
            return self.queries.take()
        if self.heartbeats.due:
            return self._heartbeat()
        return self.acquires.take()

    def _heartbeat(self) -> Batch:
        return HeartbeatBatch(self.acquires, self.queries, self.heartbeats)

    def _confirm(self, claim: Claim) -> None:
        self.writer.confirm(PendingConfirm(self.ledger, claim, self.handout))

    # -- what replies and push messages bring about

    def apply(self, reply: Reply, sent_at: float, *, continues: bool = True) -> None:
        """Apply what a reply says beside its answers.

        *continues*: a reap that stopped early, to let others have the server, is continued from
        here.
        """
        for number, token in reply.granted:
            self.handout.granted(number, token, None, sent_at, reply.slots.get(number, ()))
        if reply.next_ms == 0 and continues and not self.queries.reaps_next:
            self.queries.write_again(Query(Reap()))
        if self.reuse.kept and self.ledger.waiting:
            self.reuse.serve_waiting()
        self.waiters.queued = reply.waiting
        if not self.ledger.waiting:
            self.heartbeats.stop()
            return
        interval = heartbeat_interval(self.ledger.longest_lease)
        delay = self.identity.stagger(STAGGER) if self.waiters.behind else 0.001
        moment = None if reply.next_ms is None else reply.next_ms / 1000 + delay
        self.heartbeats.expect(moment, interval)

    def revoked(self, numbers: Iterable[int]) -> None:
        """Another client released or adopted permits of this process."""
        for number in numbers:
            claim = self.ledger.by_number.get(number)
            if claim is not None:
                self.lose(claim, "released or adopted by somebody else")

    def cleared(self) -> None:
        """The semaphore was deleted: holders lose, waiters start again."""
        self.ledger.introduce_again()
        for claim in self.ledger.holding():
            self.lose(claim, "the semaphore was cleared")
        for claim in reversed(list(self.ledger.waiting)):
            self.ledger.ask_anew(claim)

    def lose(self, claim: Claim, reason: str) -> None:
        """The server does not hold the permit of *claim* any more, or it cannot be trusted."""
        if claim.state is State.HELD:
            self.ledger.by_number.pop(claim.number, None)
            self.ledger.lose(claim, reason)
        elif claim.state is State.KEPT:
            self.reuse.drop(claim)
        else:
            self.handout.give_back_and_retry(claim)  # its caller does not have it yet

    # -- what happens to the connection

    def move(self, writer: Writer) -> None:
        """Another server keeps the semaphore."""
        self.writer, self.route.link = writer, writer.state
        writer.expect_lease(self.ledger.shortest_lease)

    def reconnected(self) -> None:
        """A new connection: the hub introduces itself again, and asks about all that waits."""
        self.ledger.introduce_again()
        self.waiters.reconnected()
        self.abandons.reconnected()
        if self.ledger.waiting:
            self.heartbeats.beat()
        if self.ref.recovers:
            for claim in self.ledger.holding():
                _ = self.refreshes.refresh(claim)  # and restore it, if it is gone

    def forget_in_flight(self) -> None:
        """The connection was closed on purpose: no reply will come."""
        ledger = self.ledger
        ledger.introduce_again()
        self.heartbeats.forget()
        self.queries.forget_in_flight()
        self.abandons.drop()
        ledger.acquires_in_flight.clear()
        ledger.by_number = {
            n: claim for n, claim in ledger.by_number.items() if claim.state is not State.ENDED
        }

    # -- failing

    def fail_outlasted(self, since: float) -> None:
        """End what has waited for longer than an outage, since *since*, is waited for."""
        now = clock()
        self.abandons.fail_pending(
            self.route.unavailable,
            lambda claim: (
                claim.timer is None and now - max(since, claim.started) > claim.terms.lease
            ),
        )
        age = reply_timeout(self.ledger.shortest_lease)
        self.releases.fail_old(age, self.route.unavailable)
        # The server keeps a process alive for up to a quarter longer than it has to be.
        if now - since > 1.3 * liveness_timeout(self.ledger.longest_lease):
            self.abandons.outlasted()

    def fail_not_waiting(self) -> None:
        """End the claims that do not wait: the server cannot be asked now."""
        self.abandons.fail_pending(self.route.unavailable, lambda claim: not claim.waits)

    def fail_waiting(self, error: Callable[[], SemaphoreError]) -> None:
        """End every claim whose caller waits."""
        self.abandons.fail_pending(error, lambda _: True)

    def fail_all(self, error: Callable[[], SemaphoreError]) -> None:
        """End everything that waits for a reply: none will come."""
        self.fail_waiting(error)
        self.queries.fail(error)
        self.refreshes.drop_restores()
        self.releases.fail_all(error)
        self.abandons.drop()

    def close(self, claim: Claim) -> None:
        """Take a permit from its holder, and give it back."""
        if claim.state is State.HELD:
            self.ledger.lose(claim, "the semaphore was closed in this process", expected=True)
            self.release(claim, clock())
        elif claim.state is State.KEPT:
            self.reuse.give_back(claim)
        else:
            self.abandons.refuse(claim, SemaphoreClosed(self.address.name))
