"""Records of the specification, for what the store keeps and what one call works with."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from redsem_async._core.keys import permit_id
from redsem_async._core.lease import liveness_timeout
from redsem_async._protocol.operations import DEFAULT_OPTIONS, Acquire, Request
from redsem_async._protocol.pushes import Push
from redsem_async._protocol.replies import WAITING, Answer, Ramp

SLACK_MS = 60_000  # a key is kept for so much longer than it is needed
STEP_US = 1_000_000  # a smaller step of the clock is not noticed
DOUBLINGS = 20  # of a ramp, which is over when it allows a million permits
YOUNG_US = 50_000  # for so long the oldest request lets those of the releasing hub pass (zset)

# Sends a push message to a hub. Returns the number of connections that received it.
Publish = Callable[[str, Push], int]


class ModeInUse(Exception):
    """The name is in use in another mode or with another clock.

    The message has the words of the scripts' error MODE, from the second on.
    """


class LayoutInUse(Exception):
    """The name is in use in another layout of the keys.

    The message has the words of the scripts' error LAYOUT, from the second on.
    """


class UnknownHub(Exception):
    """The store does not know the hub, and the call has no `HubInfo`."""


class Reordered(Exception):
    """The batch before this one has not run."""


class Void(Exception):
    """The call acted before, or may not act any more."""


class SlotsInUse(Exception):
    """The name is in use with other slots.

    Attributes:
        slots: the longest list in use.
    """

    def __init__(self, slots: Sequence[str]) -> None:
        super().__init__(", ".join(slots))
        self.slots = slots


@dataclass(slots=True)
class HolderRecord:
    """A permit in use. It is *known* where neither its key nor its slots were lost."""

    expiry_ms: int
    token: int
    permits: int
    key: str | None = None
    slots: tuple[int, ...] = ()
    known: bool = True


@dataclass(frozen=True, slots=True)
class BackOffRecord:
    """A back-off, as the store keeps it.

    Attributes:
        ends: when its pause ends, in milliseconds.
        began: the counter when it began. An overload that an older permit met is the same one.
        step: after how many milliseconds each the ramp doubles.
    """

    ends: int
    began: int
    step: int

    def ramp(self, now: int) -> Ramp | None:
        """How many permits may be in use *now*, and for how long so. None when it is over."""
        if now < self.ends:
            return Ramp(self.ends - now, 0)
        steps = (now - self.ends) // self.step
        if steps >= DOUBLINGS:
            return None
        return Ramp(self.ends + (steps + 1) * self.step - now, 2**steps)

    @property
    def over(self) -> int:
        """When the ramp allows a million permits."""
        return self.ends + DOUBLINGS * self.step


def room_in(most: float, used: int, ramp: Ramp | None) -> float:
    """How many permits may be in use under the limit *most*, where *used* are.

    In a ramp, no more than the ramp allows, except that the first request may have more.
    """
    is_first = ramp is not None and ramp.permits > 0 and used == 0
    return most if ramp is None or is_first else min(most, ramp.permits)


@dataclass(slots=True)
class HubRecord:
    """What the semaphore knows of one hub.

    Attributes:
        alive_until: when the hub counts as dead, in milliseconds. 0 before it counts as alive.
        mark: the highest request number that the hub used.
        description: of its `HubInfo`.
        no_push: no push messages reach it, as its `HubInfo` says.
        uncounted: those that reach it are not counted, as its `HubInfo` says.
        unreachable: no connection received the last push message to it.
        last_call: the highest number of its adoptions and detaches.
        last_change: the same of changes (set limits, deletions and back-offs).
    """

    alive_until: int = 0
    mark: int = 0
    description: str = ""
    no_push: bool = False
    uncounted: bool = False
    unreachable: bool = False
    last_call: int = 0
    last_change: int = 0

    def received(self, receivers: int) -> bool:
        """Whether a message that *receivers* were counted for may have reached it."""
        return receivers > 0 or self.uncounted


@dataclass(slots=True)
class QueuedRequest:
    """A request in the queue.

    Attributes:
        parked: the request cannot be served now, and does not block those behind it.
        unreachable: the same, because its hub received no push message. It does not count.
        is_planned: this call serves it, if its hub receives that.
        slots: that it gets from the call that serves it.
        answer: what its client was told when it joined the queue.
    """

    hub: str
    request: Request
    ticket: int
    parked: bool = False
    unreachable: bool = False
    is_planned: bool = False
    slots: tuple[int, ...] = ()
    answer: Answer = WAITING

    @property
    def key(self) -> str | None:
        return key_of(self.request)

    @property
    def id(self) -> str:
        return permit_id(self.hub, self.request.number)

    @property
    def place(self) -> tuple[int, str]:
        """By the ticket, and if that is equal by the text in the sorted set, as Redis has it."""
        number, lease_ms, limit, permits, *_ = self.request
        return self.ticket, f"{self.hub}.{number}:{lease_ms}:{limit}:{permits}"

    def is_for(self, request: Request) -> bool:
        """Whether *request* is the same, without regard to what the queue does not have of it."""
        return self.request[:4] == request[:4] and self.request.key == request.key


@dataclass(slots=True)
class CallContext:
    """What one call works with, and what it collects for its reply.

    Attributes:
        hub: the caller.
        name: of the semaphore.
        kind: mode and clock, as the key `meta` has them.
        wall_us: the clock of the server or the caller.
        now_us: the same, but never going backwards.
        granted: number and token of the caller's requests that were served.
        queued: requests of the call that join the queue.
        joined: how many of these have.
        head_until: when the hub of the blocked head counts as dead (fair).
        keys_change: when keys may change by themselves.
        line_is_blocked: the head waits for room, so that a new request has to wait (fair).
        overtakes: a request of the call may be the head once it is in the queue (fair).
        slots: of each number of the caller that the call granted.
        slot_list: the slots that clients declare.
        was_unknown: nothing was known of the caller when the call came.
    """

    hub: str
    name: str
    kind: str
    wall_us: int
    now_us: int
    granted: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    queued: list[QueuedRequest] = field(default_factory=list[QueuedRequest])
    joined: int = 0
    head_until: int | None = None
    keys_change: int | None = None
    line_is_blocked: bool = False
    overtakes: bool = False
    slots: dict[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])
    slot_list: Sequence[str] = ()
    was_unknown: bool = False

    @property
    def now(self) -> int:
        return self.now_us // 1000


def liveness_timeout_ms(lease_ms: int) -> int:
    """For how long a hub counts as alive after a call about permits of that lease."""
    return math.floor(liveness_timeout(lease_ms / 1000) * 1000 + 1e-6)


def requests_of(call: Acquire) -> list[Request]:
    """The requests of an acquire, one by one."""
    return [
        Request(number, call.lease_ms, call.limit, *call.options.get(number, DEFAULT_OPTIONS))
        for number in call.numbers
    ]


def key_of(request: Request) -> str | None:
    return request.key.key if request.key else None
