"""The last 15 minutes of a semaphore, with its numbers and what happened to it."""

import math
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from redsem_async._protocol.views import BackOff, KeyStatus, SemaphoreStatus
from redsem_async._tools.changed import origin
from redsem_async._tools.states import Stalled, allowed_in, duration, limit_of, name_of

from ._reading import Reading

KEPT = 900.0  # seconds
SLOT = 3.0  # seconds between two points
EVENTS = 100
MARKS = 1000  # keys whose limits are compared
LATELY = 15.0  # seconds after which a change made here is not taken for one that is read
LONG = 10.0  # seconds of a pause that is told although a back-off was told before
SAME = 1.0  # seconds by which two readings of one moment may differ


class Happening(NamedTuple):
    """Something that happened.

    Attributes:
        at: when it happened, or was read, as a Unix time.
        kind: for the style of the page, one of limit, bad and good.
        text: one sentence or two.
    """

    at: float
    kind: str
    text: str


class Point(NamedTuple):
    """The numbers at a Unix time, or none of them where nothing was read before it.

    *in_force* is the limit in force of a back-off, and None without one.
    """

    at: float
    held: int | None = None
    limit: int | None = None
    waiting: int | None = None
    in_force: int | None = None


class _Mark(NamedTuple):
    """What an operator or a back-off did to a semaphore, or to a key, when it was read last.

    Attributes:
        limit: the set or declared limit.
        set_limit: the set limit, if any.
        set_at: when it was set, as a Unix time, if that is known.
        began: when the running back-off began. None without one.
        ends: when its pause ends.
        server: what identifies the data of the server, if that is known.
        by: who set the limit, or else began the back-off, if that is known.
    """

    limit: int | None
    set_limit: int | None
    set_at: float | None
    began: float | None
    ends: float
    server: str | None
    by: str | None = None


class History:
    """What was read of one semaphore.

    Attributes:
        points: its numbers.
        events: what happened, in the order in which it was read.
        lost: what Redis has forgotten, until it is set again.
    """

    def __init__(self) -> None:
        self.points: deque[Point] = deque()
        self.events: deque[Happening] = deque(maxlen=EVENTS)
        self.lost: str | None = None
        self._lost_at = self._read_at = 0.0  # before the last gap
        self._marks: dict[str | None, _Mark] = {}  # by key. None is for all requests
        self._stalled: dict[str, tuple[Stalled, float]] = {}  # by id, and when it loses its own
        self._ended: dict[tuple[str, str | None], tuple[float, str]] = {}  # what, and of which key

    def note_ended(self, what: str, key: str | None, by: str, now: float) -> None:
        """This dashboard removes a "limit" or ends a "back-off". Redis does not keep by whom."""
        self._ended[what, key] = now, by

    def _who_ended(
        self, what: str, key: str | None, now: float
    ) -> tuple[float | None, str | None]:
        """When that was done and by whom, if it was done by this dashboard."""
        at, by = self._ended.pop((what, key), (-math.inf, ""))
        return (at, by) if now - at < LATELY else (None, None)

    def note_losses(self, status: SemaphoreStatus | None, now: float, server: str | None) -> None:
        """Note set limits, pauses and back-offs that are gone since Redis lost its data.

        *status* is None if the name is not in use. *server* identifies the data, if Redis tells.
        """
        if (status and (status.set_limit, status.back_off) != (None, None)) or (
            now > self._lost_at + KEPT
        ):
            self.lost = None
        for key, of in ({None: status} | {key.key: key for key in _keys_of(status)}).items():
            mark = self._marks.get(key)
            if mark is None or None in (server, mark.server) or server == mark.server:
                continue
            if of is not None and (of.set_limit, of.back_off) != (None, None):
                continue
            del self._marks[key]
            if (text := _lost_text(mark, now)) is not None:
                self.lost, self._lost_at = _of_key(key, text), now
                self.events.append(Happening(now, "bad", self.lost))

    def note_deleted(self, by: str | None, now: float) -> None:
        """The semaphore was deleted, and with it what was set. By this dashboard if *by* says."""
        self._tell(now, None, f"Deleted by {by}." if by else "Deleted.")
        self._marks.clear()

    def note_unused(self, now: float, server: str | None) -> None:
        """The name is not in use: it was deleted or lost, or all have left it minutes ago."""
        self.note_losses(None, now, server)
        last, mark = self._last, self._marks.get(None)
        if mark and mark.server and (last.held or last.waiting) and last.at > now - LATELY:
            self.note_deleted(None, now)
        if any(point.held or point.limit is not None for point in self.points):
            self._add_point(Point(now, 0, None, 0))
        else:
            self.points.clear()

    @property
    def _last(self) -> Point:
        return self.points[-1] if self.points else Point(0.0)

    def _add_point(self, point: Point) -> None:
        if self._last.held is not None and self._last.at // SLOT == point.at // SLOT:
            _ = self.points.pop()
        self.points.append(point)
        while self.points[0].at < point.at - KEPT:
            _ = self.points.popleft()

    def add(self, reading: Reading, now: float, since: float, server: str | None = None) -> None:
        """Note *reading* of *server*. Before *since*, nothing was read for a while."""
        status, points = reading.status, self.points
        if status is None:
            return
        self.note_losses(status, now, server)
        if points and points[-1].at < since:
            self._read_at = points[-1].at
            points.append(Point(now))
            if not self._ended:  # what this dashboard ended meanwhile is told by what was before
                self._marks.clear()
            self._stalled.clear()
        limit = limit_of(reading.info, status)
        in_force = status.back_off and status.back_off.limit
        self._add_point(Point(now, status.held, limit, status.waiting, in_force))
        self._note_changes(None, status, limit, now, server)
        if len(self._marks) > MARKS:
            self._marks = {None: self._marks[None]}
        for key in status.keys:
            self._note_changes(key.key, key, key.limit, now, server)
        self._note_stalled(reading.stalled, reading, now)

    def _note_changes(
        self,
        key: str | None,
        of: SemaphoreStatus | KeyStatus,
        limit: int | None,
        now: float,
        server: str | None,
    ) -> None:
        """Note a limit that was set or declared, and a back-off that began or ended.

        What is read for the first time is noted if Redis tells when it happened. Of the overloads
        that cut a limit in force again, one is if it has a `LONG` pause.
        """
        mark, back_off = self._marks.get(key), of.back_off
        set_at = None if of.set_limit_age is None else now - of.set_limit_age
        began, ends = None, now
        if back_off is not None:
            known = None if back_off.age is None else now - back_off.age
            began = known or (mark and mark.began) or now
            ends = now + back_off.seconds_left
        by = of.set_limit_by if of.set_limit is not None else back_off and back_off.by
        self._marks[key] = _Mark(limit, of.set_limit, set_at, began, ends, server, by)
        if mark is None:
            lately = max(now - KEPT, self._read_at)
            mark = _Mark(None, of.set_limit, set_at and lately, began and lately, 0.0, None)
            if back_off is not None and back_off.age is None:
                mark = mark._replace(began=began)
        begins = back_off is not None and (mark.began is None or _is_later(began, mark.began))
        if of.set_limit != mark.set_limit or _is_later(set_at, mark.set_at):
            at, by = self._who_ended("limit", key, now)
            # Redis does not tell when a limit was removed: before a back-off that has begun since.
            at = set_at or at or (began if begins and began else now)
            by = by if of.set_limit is None else of.set_limit_by
            self._tell(at, key, _set_text(mark, of.set_limit, limit, by))
        elif of.set_limit is None and None not in (limit, mark.limit) and limit != mark.limit:
            self._tell(
                now, key, f"The clients declare a limit of {limit:,}. It was {mark.limit:,}."
            )
        if back_off is not None and begins and (mark.began is None or _pause_of(back_off) > LONG):
            self._tell(began or now, key, _back_off_text(back_off, limit))
        elif back_off is None and mark.began is not None:
            at, by = self._who_ended("back-off", key, now)
            text = f"The back-off was ended by {by}." if by else "The back-off has ended."
            self._tell(at or now, key, text)

    def _tell(self, at: float, key: str | None, text: str) -> None:
        self.events.append(Happening(at, "limit", _of_key(key, text)))

    def _note_stalled(self, stalled: Mapping[str, Stalled], reading: Reading, now: float) -> None:
        assert reading.status is not None
        for identity, one in stalled.items():
            if identity not in self._stalled:
                self.events.append(Happening(now, "bad", one.what))
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


def _is_later(at: float | None, before: float | None) -> bool:
    return at is not None and before is not None and at - before > SAME


def _keys_of(status: SemaphoreStatus | None) -> tuple[KeyStatus, ...]:
    return () if status is None else status.keys


def _of_key(key: str | None, text: str) -> str:
    return text if key is None else f"Key {key}: {text[0].lower()}{text[1:]}"


def _lost_text(mark: _Mark, now: float) -> str | None:
    """What of *mark* is gone with the data of Redis. None if there was nothing."""
    if mark.set_limit is not None:
        what = f"The set limit of {mark.set_limit:,}" if mark.set_limit else "The pause"
        at = mark.set_at
    elif now < mark.ends and mark.began is not None:
        what, at = "The back-off", mark.began
    else:
        return None
    when = origin(at and now - at, mark.by, duration)
    what += f", set{when}," if when else ""
    return f"{what} was lost with Redis's data. Set it again if it is still needed."


def _set_text(before: _Mark, set_limit: int | None, limit: int | None, by: str | None) -> str:
    """How a set limit has changed."""
    who = f" by {by}" if by else ""
    if set_limit == 0:
        return f"Paused{who}. No permit is granted until it is resumed."
    if set_limit is not None:
        if before.set_limit == 0:
            return f"Resumed{who} with the set limit of {set_limit:,}."
        was = "" if before.limit is None else f" It was {before.limit:,}."
        return f"The limit was set to {set_limit:,}{who}.{was}"
    own = f"The clients' own limit applies ({'unknown' if limit is None else f'{limit:,}'})."
    what = "Resumed" if before.set_limit == 0 else "The set limit was removed"
    return f"{what}{who}. {own}"


def _pause_of(back_off: BackOff) -> float:
    """The length of the pause that runs. 0 without one."""
    return 0.0 if back_off.limit else back_off.seconds_left + (back_off.age or 0.0)


def _back_off_text(back_off: BackOff, limit: int | None) -> str:
    who = f" by {back_off.by}" if back_off.by else ""
    if back_off.limit:
        allowed = allowed_in(back_off, limit)
        return f"A back-off was started{who}: {allowed} permits may be in use."
    of = "" if back_off.age is None else f" of {duration(_pause_of(back_off))}"
    return f"A back-off{of} was started{who}."
