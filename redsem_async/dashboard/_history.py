"""The last 15 minutes of a semaphore, with its numbers and what happened to it."""

from collections import deque
from typing import NamedTuple

from redsem_async._protocol.status import SemaphoreStatus

from ._reading import Reading
from ._stalled import Stalled
from ._words import limit_of, lost_text, name_of, stalled_text

KEPT = 900.0  # seconds
SLOT = 3.0  # seconds between two points
EVENTS = 100


class Happening(NamedTuple):
    """Something that happened.

    Attributes:
        at: when it was read, as a Unix time.
        kind: for the style of the page, one of limit, bad and good.
        text: one sentence or two.
    """

    at: float
    kind: str
    text: str


class Point(NamedTuple):
    """The numbers at a Unix time, or none of them where nothing was read before it."""

    at: float
    held: int | None = None
    limit: int | None = None
    waiting: int | None = None


class History:
    """What was read of one semaphore."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque()
        self.events: deque[Happening] = deque(maxlen=EVENTS)
        self._limits: tuple[int | None, int | None] | None = None  # in force, and set
        self._set: tuple[int | None, float] = None, 0.0  # limit, and when a back-off ends
        self._server: str | None = None
        self._stalled: dict[str, tuple[Stalled, float]] = {}  # by id, and when it loses its own

    def note_loss(self, status: SemaphoreStatus | None, now: float, server: str | None) -> bool:
        """Note a set limit, a pause or a back-off that is gone since Redis restarted.

        *status* is None if the name is not in use, and *server* is the run id, if Redis tells it.
        """
        restarted = None not in (server, self._server) and server != self._server
        self._server = server or self._server
        (limit, until), set_limit, back_off = self._set, None, None
        if status is not None:
            set_limit, back_off = status.set_limit, status.back_off
        self._set = set_limit, 0.0 if back_off is None else now + back_off.seconds_left
        if not restarted or set_limit is not None or back_off is not None:
            return False
        text = lost_text(limit, backs_off=now < until)
        if text is not None:
            self.events.append(Happening(now, "bad", text))
        return text is not None

    def add(self, reading: Reading, now: float, since: float, server: str | None = None) -> None:
        """Note *reading* of *server*. Before *since*, nothing was read for a while."""
        status, points = reading.status, self.points
        if status is None:
            return
        if self.note_loss(status, now, server):
            self._limits = None
        if points and points[-1].at < since:
            points.append(Point(now))
            self._limits = None
            self._stalled.clear()
        elif points and points[-1].at // SLOT == now // SLOT:
            _ = points.pop()
        limit = limit_of(reading.info, status)
        points.append(Point(now, status.held, limit, status.waiting))
        while points[0].at < now - KEPT:
            _ = points.popleft()
        limits = limit, status.set_limit
        if self._limits is not None and (text := _limits_text(*self._limits, *limits)):
            self.events.append(Happening(now, "limit", text))
        self._limits = limits
        self._note_stalled(reading.stalled, reading, now)

    def _note_stalled(self, stalled: dict[str, Stalled], reading: Reading, now: float) -> None:
        assert reading.status is not None
        for identity, one in stalled.items():
            if identity not in self._stalled:
                self.events.append(Happening(now, "bad", stalled_text(one)))
            self._stalled[identity] = one, now + one.left
        listed = {holder.client.id for holder in reading.status.holders}
        listed |= {waiter.client.id for waiter in reading.status.waiters}
        for identity, (one, ends) in [*self._stalled.items()]:
            if identity in stalled:
                continue
            if identity in listed:
                text = f"{name_of(one.client)} has recovered."
            elif now >= ends:
                loss = "permits are free again" if one.holds else "requests have left the queue"
                text = f"{name_of(one.client)}'s {loss}."
            else:
                continue
            self.events.append(Happening(now, "good", text))
            del self._stalled[identity]


def _limits_text(
    before: int | None, set_before: int | None, limit: int | None, set_limit: int | None
) -> str | None:
    """How a limit has changed. None if it has not."""
    if set_before == set_limit:
        if before == limit or before is None or limit is None:
            return None
        return f"The clients declare a limit of {limit:,}. It was {before:,}."
    if set_limit == 0:
        return "Paused. No permit is granted until it is resumed."
    if set_limit is not None:
        if set_before == 0:
            return f"Resumed with the set limit of {set_limit:,}."
        return f"The limit was set to {set_limit:,}. It was {_figure(before)}."
    own = f"The clients' own limit applies ({_figure(limit)})."
    return f"Resumed. {own}" if set_before == 0 else f"The set limit was removed. {own}"


def _figure(limit: int | None) -> str:
    return "unknown" if limit is None else f"{limit:,}"
