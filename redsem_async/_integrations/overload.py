"""For how long the whole fleet backs off from an upstream that is overloaded."""

import math
import random
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime

from redsem_async._api.permit import Permit
from redsem_async._core import config
from redsem_async._core.clock import now as clock

OVERLOADED = frozenset({429, 503})
FIRST_PAUSE = 1.0  # seconds, where the upstream does not say how long
LONGEST_PAUSE = 32.0

BackOff = Callable[[Exception], float | None]
"""For how many seconds an exception has the fleet back off. None where it does not."""


@contextmanager
def backing_off(permit: Permit, seconds_of: BackOff | None) -> Generator[None]:
    """Have the fleet back off for as long as *seconds_of* says of an exception of the block."""
    try:
        yield
    except Exception as error:
        seconds = None if seconds_of is None else seconds_of(error)
        if seconds is not None:
            permit.back_off(seconds)
        raise


def check_back_off(back_off: object) -> None:
    """Raise TypeError unless *back_off* is None or a function."""
    if back_off is not None:
        config.check_function(back_off, "back_off")


class OverloadedResponses:
    """Has the fleet back off when an upstream answers 429 or 503."""

    def __init__(self) -> None:
        self._pauses: dict[str, DoublingPause] = {}  # of the last overloads, by semaphore

    def note(self, permit: Permit, granted_at: float, retry_after: str | None) -> None:
        """The upstream was overloaded. *retry_after* is the header, if there was one."""
        seconds = None if retry_after is None else seconds_of(retry_after)
        if not seconds:  # there is none, or its date is over by this clock
            now, name = clock(), permit.name
            self._pauses = {n: each for n, each in self._pauses.items() if each.is_recent(now)}
            seconds = self._pauses.setdefault(name, DoublingPause()).after(granted_at, now)
        permit.back_off(seconds)


class DoublingPause:
    """How long to pause for overloads that say nothing about it.

    Truncated exponential back-off, where an overload soon after the last one doubles the pause.
    If its permit was granted before the last overload began, it is the same overload.
    """

    def __init__(self) -> None:
        self._began = -math.inf
        self._pause = 0.0

    def after(self, granted_at: float, now: float) -> float:
        """The pause for an overload *now*, in seconds, with jitter."""
        if granted_at > self._began:
            self._pause = min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE)
            self._began = now
        return self._pause * random.uniform(1.0, 1.5)

    def is_recent(self, now: float) -> bool:
        """Whether an overload *now* is soon after the last one."""
        return now - self._began < 4 * self._pause


def seconds_of(retry_after: str) -> float | None:
    """Seconds from now that a ``Retry-After`` asks for (RFC 9110, 10.2.3). None if unclear.

    It is a number of seconds, or a date.
    """
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
