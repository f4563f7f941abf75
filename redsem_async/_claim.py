"""One request for permits, from the moment it is made until its permits are given back."""

import asyncio
import enum
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ._config import Terms
from ._errors import PermitLost
from ._keys import permit_id
from ._protocol import Request
from ._watch import watch

if TYPE_CHECKING:
    from ._lane import Lane

logger = logging.getLogger("redsem_async")


class State(enum.Enum):
    """Where a claim is. It goes down this list, but for a claim that has to ask again."""

    NEW = enum.auto()  # not written, or to be written again
    SENT = enum.auto()  # in an acquire that is not answered yet
    WAITING = enum.auto()  # the server said full, and the caller waits
    HELD = enum.auto()
    LOST = enum.auto()  # held, and not to be trusted any more
    ENDED = enum.auto()  # given up, given back or refused


class Word(NamedTuple):
    """What the server said to those who wait: when something may change, and who waits."""

    sent_at: float  # what it answered
    next_ms: int | None
    waiting: int


class Claim:
    """A claim belongs to one lane. Its future only wakes the caller; the facts are here."""

    __slots__ = (
        "__weakref__",
        "call",
        "confirming",
        "deadline",
        "error",
        "future",
        "heard",
        "hindered_by",
        "hindered_since",
        "hub_id",
        "lane",
        "lost_reason",
        "number",
        "on_lost",
        "permits",
        "renewable_after",
        "repeated",
        "started",
        "state",
        "terms",
        "timer",
        "token",
        "tried",
        "trusted_until",
        "unsettled",
        "waits",
        "wakes_on_loss",
        "watched_by",
        "word_since",
    )

    def __init__(
        self, lane: "Lane", terms: Terms, permits: int, started: float, *, waits: bool
    ) -> None:
        self.lane: Lane = lane
        self.terms: Terms = terms
        self.permits: int = permits
        self.started: float = started
        self.waits: bool = waits
        self.state: State = State.NEW
        self.number: int = 0  # drawn when it is written
        self.call: int = 0  # the number of the adopt that asks for it, if one does
        self.hub_id: str = ""
        self.repeated: bool = False  # sent before under this number, and not answered
        self.token: int = 0
        self.future: asyncio.Future[None] = lane.hub.loop.create_future()
        self.error: Exception | None = None
        self.heard: Word | None = None  # the last that was for itself
        self.hindered_by: Exception | None = None  # why no grant could be handed out, at last
        self.hindered_since: float = 0.0
        self.deadline: float = math.inf  # of the loop's clock
        self.timer: asyncio.TimerHandle | None = None
        self.tried: bool = False  # told to wait before, and asking again (zset)
        # Once the deadline has come: what answers anything sent since then decides.
        self.word_since: float | None = None
        self.confirming: bool = False  # granted, but not to be trusted before a refresh
        self.trusted_until: float = 0.0
        self.renewable_after: float = -math.inf  # refreshes that were sent before renew no trust
        self.unsettled: int = 0  # detaches that were written, and may run yet
        self.lost_reason: str | None = None
        self.on_lost: Callable[[], None] | None = None
        self.wakes_on_loss: list[asyncio.Future[None]] | None = None
        self.watched_by: object = None

    @property
    def id(self) -> str:
        return permit_id(self.hub_id, self.number)

    @property
    def request(self) -> Request:
        return Request(
            self.number, self.terms.lease_ms, self.terms.limit, self.permits, self.waits
        )

    def trusted_at(self, now: float) -> bool:
        """Whether its permit may be trusted, by what is known *now*."""
        return self.state is State.HELD and now < self.trusted_until

    @property
    def pending(self) -> bool:
        """Whether the caller still waits for a word."""
        return self.state in _PENDING or self.confirming

    def stop_timer(self) -> None:
        """The deadline does not matter any more."""
        assert self.timer is not None
        self.timer.cancel()
        self.timer = None

    def hold(self, token: int, trusted_until: float) -> None:
        """It holds a permit from now on; the caller is not told yet."""
        self.state = State.HELD
        self.token = token
        self.trusted_until = trusted_until

    def settle(self, error: Exception | None = None) -> None:
        """Wake the caller, with *error* or with a permit."""
        self.error = error
        if self.timer is not None:
            self.stop_timer()
        if not self.future.done():
            self.future.set_result(None)

    def shorten(self, trusted_until: float) -> None:
        """A detach is written: the lease may be shorter from now on, whatever becomes of it.

        Until it is known not to run any more, no refresh says for how long the permit is held:
        the detach may run after it.
        """
        self.trusted_until = min(self.trusted_until, trusted_until)
        self.renewable_after = math.inf

    def detach_settled(self, now: float) -> None:
        """A detach that was written runs no more."""
        self.unsettled -= 1
        if not self.unsettled:
            self.renewable_after = now

    def disown(self) -> None:
        """The server does not hold it any more. Said from any thread; the loop loses it then."""
        self.trusted_until = -math.inf

    @property
    def doubt(self) -> str:
        """Why it is not trusted, while it is held as far as the loop knows."""
        return _DISOWNED if self.trusted_until == -math.inf else _LATE

    def lose(self, reason: str, *, meant: bool = False) -> None:
        """The permit cannot be trusted any more: whoever holds it is told now.

        *meant*: this process took it itself, which is not worth a word in the log.
        """
        if self.state is not State.HELD:
            return
        self.state = State.LOST
        self.lost_reason = reason
        if self.on_lost is not None:
            self.on_lost()
        for future in self.wakes_on_loss or ():
            if not future.done():
                future.set_result(None)
        for teller in watch.tellers:
            teller.lost(self)
        if not (meant or self.confirming):
            name = self.lane.address.name
            facts = {"fencing_token": self.token, "permits": self.permits, "reason": reason}
            facts |= {"event": "lost", "semaphore": name}
            logger.info("a permit of %r was lost: %s", name, reason, extra=facts)

    def loss(self) -> PermitLost:
        supposed = self.doubt if self.state is State.HELD else "it was given back"
        return PermitLost(self.lane.address.name, self.id, self.lost_reason or supposed)


_LATE = "it could not be refreshed in time"
_DISOWNED = "the server does not hold it any more"
_PENDING = frozenset({State.NEW, State.SENT, State.WAITING})
