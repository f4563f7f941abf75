"""What this process knows of one semaphore, as a state machine without input and output.

Tasks ask, leave and release. Commands are built from what is then to be written, and replies and
push messages change it again. Nothing here needs an event loop or a socket. After a change,
`stirred` and `look_at` tell the caller what to do.

The parts of the machine are functions on this state. `handout` has a grant on its way to its
caller, and `machine` what is written next. The others are `trust`, `deadlines`, `calls`,
`estimates`, and the batches in `commands`.
"""

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from operator import attrgetter

from redsem_async._core.clock import now as clock
from redsem_async._core.keys import Address
from redsem_async._observers.registry import observers
from redsem_async._protocol.backend import SemaphoreRef

from .heartbeats import Heartbeats
from .identity import HubIdentity
from .introduction import Introduction
from .lease import Lease, LeaseState
from .pending import Call, Change, Confirmed, PendingRefresh, PendingRelease
from .request import Request, RequestState
from .route import LinkState, Route

MAX_BATCH = 256  # requests or permits in one script, because it holds the server for as long
MAX_KEYED = 32  # the same where each may have another key, because all of these are looked at

CLEAN_UP = 64  # deadlines, from which on those of the past are looked for


class SemaphoreState(SemaphoreRef):
    """What this process knows of one semaphore, and what it is to write.

    Attributes:
        max_batch: how many requests, or permits, one command is for.
        stirred: there may be something to write.
        look_at: when time alone may change something next.

        new: requests to be written, by their places unless they are *unsorted*.
        drains: the next acquire waits until none is in flight. One of these was refused, or may
            find its requests gone, which are then written before that one.
        refreshes: to be written, by the number of the lease.
        by_message: leases that a message granted, and when they are refreshed to confirm it.
        releases: to be written, by the hub that drew the ids.
        leaving: requests whose callers left, and that the server may still know.
        void: calls that were sent, have no reply, and may not be carried out any more.
        calls: to be written, in the order in which they were made.
        changes: set limits, deletions and back-offs without a reply, in order of their numbers.

        requests: that the server may know (sent, waiting, granted or leaving), by number.
        leases: that the server may hold, by number.
        waiting: requests that were told to wait, first come first.
        unsure: waiters to be asked about before all others.
        overdue: requests whose deadline has come, so that the next reply decides.
        acquires_in_flight: the last number of each acquire that has no reply yet.
        deadlines: a heap of when to look at which request.
        outlasted: by an outage, so that the server forgets those that leave.

        shortest_lease: of any request so far, in seconds (longest_lease likewise).
        own_hold: for how long requests of this process held their permits recently, in seconds
            times permits. None before the first release.
        others_hold: the same of all processes, as a reply told it.
        hold_told_at: when a release told *own_hold* last.
        seen: the set limit, and when the back-off changes, as the last acquire or heartbeat told.
            None if it told of neither.
    """

    def __init__(
        self, identity: HubIdentity, address: Address, link: LinkState, label: str | None
    ) -> None:
        super().__init__(address)
        self.identity: HubIdentity = identity
        self.name: str = address.name
        self.max_batch: int = MAX_KEYED if address.keyed else MAX_BATCH
        self.route: Route = Route(address.name, link)
        self.introduction: Introduction = Introduction(self.route, label)
        self.stirred: bool = False
        self.look_at: float = math.inf
        self.new: deque[Request] = deque()
        self.unsorted: bool = False
        self.drains: bool = False
        self.refreshes: dict[int, PendingRefresh] = {}
        self.by_message: deque[tuple[float, Lease]] = deque()
        self.releases: dict[str, list[PendingRelease]] = {}
        self.leaving: list[Request] = []
        self.void: list[Call] = []
        self.calls: deque[Call] = deque()
        self.changes: deque[Change] = deque()
        self.heartbeats: Heartbeats = Heartbeats()
        self.requests: dict[int, Request] = {}
        self.leases: dict[int, Lease] = {}
        self.waiting: OrderedDict[Request, None] = OrderedDict()
        self.unsure: tuple[Request, ...] = ()
        self.overdue: dict[Request, None] = {}
        self.acquires_in_flight: deque[int] = deque()
        self.deadlines: list[tuple[float, int, Request]] = []
        self.shortest_lease: float = math.inf
        self.longest_lease: float = 0.0
        self.own_hold: float | None = None
        self.others_hold: float | None = None
        self.hold_told_at: float = -math.inf
        self.seen: tuple[int | None, float] | None = None
        self.outlasted: bool = False
        self._clean_up_at = CLEAN_UP

    # -- looking

    def pending(self) -> list[Request]:
        """Requests whose callers wait for the outcome."""
        known = (request for request in self.requests.values() if request.pending)
        new = (request for request in self.new if request.state is RequestState.NEW)
        return list(dict.fromkeys((*known, *new, *self.waiting)))

    def holding(self) -> list[Lease]:
        """Leases that the server holds, as far as is known here."""
        return [lease for lease in self.leases.values() if lease.holding]

    def held(self) -> list[Lease]:
        """Leases with a permit."""
        return [lease for lease in self.leases.values() if lease.state is LeaseState.HELD]

    def first_new(self) -> Request | None:
        """The first request that is to be written."""
        if self.unsorted:
            self.unsorted = False
            self.new = deque(sorted(self.new, key=attrgetter("place")))
        new = self.new
        while new and new[0].state is not RequestState.NEW:
            new.popleft()  # its caller left
        return new[0] if new else None

    # -- asking

    def ask(self, request: Request) -> None:
        """Ask for a permit."""
        lease = request.terms.lease
        self.longest_lease = max(self.longest_lease, lease)
        self.shortest_lease = min(self.shortest_lease, lease)
        self.new.append(request)
        self.unsorted |= request.ahead > 0
        if request.deadline < math.inf:
            self.look_again(request, request.deadline)
        self.stirred = True

    def beat(self) -> None:
        """Have a heartbeat written."""
        self.heartbeats.due = self.stirred = True

    def look_again(self, request: Request, at: float) -> None:
        """Look at the deadline of *request* at another time than before."""
        deadlines = self.deadlines
        if len(deadlines) > self._clean_up_at:  # most may be of the past
            deadlines[:] = [d for d in deadlines if d[2].pending and d[0] == d[2].look_at]
            heapq.heapify(deadlines)
            self._clean_up_at = CLEAN_UP + 2 * len(deadlines)
        request.look_at = at
        heapq.heappush(deadlines, (at, request.order, request))
        self.look_at = min(self.look_at, at)

    def give_number(self, request: Request) -> None:
        """*request* is written now, because numbers are drawn in the order of the wire."""
        if request.number == 0:
            request.number, request.hub_id = self.identity.new_number(), self.identity.id
        self.requests[request.number] = request

    def forget_number(self, request: Request) -> None:
        """The server has nothing under the number of *request*, which gets another."""
        self.requests.pop(request.number, None)
        request.number, request.was_sent = 0, False

    def ask_again(self, requests: Sequence[Request]) -> None:
        """Write *requests* in their places among those that are new."""
        for request in requests:
            request.ask_again()
        self.new.extend(requests)
        self.unsorted = self.stirred = True

    def ask_anew(self, request: Request) -> None:
        """The server has nothing for *request* any more. A new number, the same deadline."""
        self.waiting.pop(request, None)
        self.forget_number(request)
        request.again = request.waits
        self.ask_again([request])

    def acquire_ended(self) -> None:
        """The oldest acquire in flight has its reply."""
        self.acquires_in_flight.popleft()
        self.stirred |= self.drains

    def wait(self, requests: Sequence[Request]) -> None:
        """The server replied to *requests*, in this order, that they have to wait."""
        for request in requests:
            request.told_to_wait()
            self.waiting[request] = None
        for notifier in observers.notifiers:
            notifier.queued(requests)

    def stop_waiting(self, request: Request) -> None:
        """*request* is granted, or its caller leaves."""
        self.waiting.pop(request, None)
        self.overdue.pop(request, None)

    def turn_down(self, request: Request, error: Exception) -> None:
        """*request* ends with *error*. The server has nothing of it that is to be undone."""
        self.requests.pop(request.number, None)
        self.overdue.pop(request, None)
        request.fail(error)

    def leave(self, request: Request) -> None:
        """The caller left without a permit. Whatever it was or will be granted is undone."""
        state, lease = request.state, request.lease
        if state <= RequestState.WAITING:
            self.stop_waiting(request)
            if request.number:
                # An acquire that is sent after the abandon cannot tell whether this one's has run.
                self.drains |= state is RequestState.SENT
                self.leaving.append(request)
                self.stirred = True
        request.end()
        if lease is not None and lease.state is not LeaseState.ENDED:
            self.requests.pop(request.number, None)
            self.overdue.pop(request, None)
            self.give_back(lease, clock(), trusted=False)

    def refuse(self, request: Request, error: Exception) -> None:
        """End a request whose caller waits, with *error*, and undo it at the server."""
        self.leave(request)
        request.fail(error)

    # -- releasing

    def release(self, lease: Lease, now: float, future: Confirmed | None = None) -> PendingRelease:
        """Release a permit. *future* gets whether it was held until *now*."""
        trusted = now < lease.trusted_until and lease.state is LeaseState.HELD
        pending = self.give_back(lease, now, trusted=trusted, future=future)
        for notifier in observers.notifiers:
            notifier.released(lease)
        return pending

    def give_back(
        self, lease: Lease, now: float, *, trusted: bool, future: Confirmed | None = None
    ) -> PendingRelease:
        """Release *lease*. A caller that waits for the reply passes a *future*."""
        number = lease.number
        self.leases.pop(number, None)
        if self.refreshes:
            self.refreshes.pop(number, None)  # one that is not written yet is of no use
        # Every refresh was sent before the release. But an adopted lease may last for longer, and
        # so may one that a detach was written for.
        ends = now + lease.terms.lease
        if lease.adopted or lease.renewable_after != -math.inf:
            ends = math.inf
        lease.end()
        pending = PendingRelease(number, now, ends, trusted, future)
        self.releases.setdefault(lease.hub_id, []).append(pending)
        self.stirred = True
        return pending

    def give_back_unknown(self, owner: str, number: int, future: Confirmed | None = None) -> None:
        """Release a permit that is known by its id alone."""
        pending = PendingRelease(number, clock(), math.inf, False, future)  # noqa: FBT003
        self.releases.setdefault(owner, []).append(pending)
        self.stirred = True

    def give_back_and_retry(self, request: Request) -> None:
        """Release what was granted before the caller came to hold it, and ask again."""
        lease = request.lease
        if request.state is RequestState.GRANTED and lease is not None:
            if request.call:
                # Another permit would not do for an adoption, which wants this one's job.
                self.refuse(request, lease.loss())
                return
            # Not trusted here, it may be held there. Perhaps only the reply came too late.
            self.give_back(lease, clock(), trusted=False)
            request.lease = None
            self.ask_anew(request)

    # -- refreshing

    def refresh(self, lease: Lease) -> PendingRefresh:
        """Have a lease refreshed. Callers add to the result who is told of the outcome."""
        pending = self.refreshes.get(lease.number)
        if pending is None:
            pending = self.refreshes[lease.number] = PendingRefresh(lease)
            self.stirred = True
        return pending

    def refresh_within(self, lease: Lease, now: float, moment: float) -> None:
        """Have a lease refreshed in a *moment*, together with others, if it is held then."""
        if not self.by_message:
            self.look_at = min(self.look_at, now + moment)
        self.by_message.append((now + moment, lease))

    def refresh_again(self, pending: PendingRefresh) -> None:
        """Write a refresh again, together with others."""
        known = self.refreshes.setdefault(pending.lease.number, pending)
        if known is not pending:
            known.join(pending)
        self.stirred = True
