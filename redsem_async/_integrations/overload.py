"""For how long the fleet backs off from an upstream that is overloaded."""

import logging
import math
import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from redsem_async._api.permit import Permit, usual_hold_of
from redsem_async._core import config
from redsem_async._core.clock import now as clock

logger = logging.getLogger("redsem_async")

TOO_MANY_REQUESTS, UNAVAILABLE = 429, 503
FIRST_PAUSE = 1.0  # seconds, where the upstream does not say how long
LONGEST_PAUSE = 32.0
BARE = 3  # responses 429 that say nothing, within a usual hold, are an overload
EPOCH = 1e9  # a larger number is no duration but a time, in seconds or milliseconds


class Response(Protocol):
    """The response of an upstream."""

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Any: ...  # names in lower case, and their values


class Overloads:
    """Has the fleet back off from an upstream, as its responses say.

    *back_off* is whether it does, or a function from a response to seconds or None.
    """

    def __init__(self, back_off: bool | Callable[[Any], float | None]) -> None:  # noqa: FBT001
        if not isinstance(back_off, bool):
            if not callable(back_off):
                raise TypeError(f"back_off must be True, False or a function, not {back_off!r}")
            config.check_function(back_off, "back_off")
        self._back_off = back_off
        self._seen: dict[tuple[str, str | None], _Seen] = {}

    def note(
        self, permit: Permit | None, key: str | None, granted_at: float, response: Response
    ) -> None:
        """The upstream answered the request that holds *permit*, which has this *key*."""
        if permit is None or self._back_off is False:
            return
        try:
            if self._back_off is True:
                seconds = self._seconds(permit, key, granted_at, response)
            else:
                seconds = self._back_off(response)
            if seconds is not None:
                permit.back_off(seconds, key=key is not None)
        except Exception as error:  # noqa: BLE001 - the caller is to have the response
            facts = {"event": "back_off", "semaphore": permit.name}
            logger.warning("the function back_off failed: %r", error, extra=facts)

    def _seconds(
        self, permit: Permit, key: str | None, granted_at: float, response: Response
    ) -> float | None:
        status, now = response.status_code, clock()
        if status not in (TOO_MANY_REQUESTS, UNAVAILABLE):
            return None
        told = told_by(response.headers, limits=status == TOO_MANY_REQUESTS)
        if told:
            return told
        hold = max(usual_hold_of(permit) or 0.0, FIRST_PAUSE)
        self._seen = {of: seen for of, seen in self._seen.items() if seen.is_recent(now, hold)}
        seen = self._seen.setdefault((permit.name, key), _Seen())
        if status == UNAVAILABLE or told is not None or seen.is_overload(now, hold):
            return seen.pause.after(granted_at, now)
        return None


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
            soon = self.is_recent(now)
            self._pause = min(2 * self._pause, LONGEST_PAUSE) if soon else FIRST_PAUSE
            self._began = now
        return self._pause * random.uniform(1.0, 1.5)

    def is_recent(self, now: float) -> bool:
        """Whether an overload *now* is soon after the last one."""
        return now - self._began < 4 * self._pause


class _Seen:
    """The last responses of one semaphore, or key, that did not say for how long to pause."""

    def __init__(self) -> None:
        self.pause = DoublingPause()
        self._bare: deque[float] = deque(maxlen=BARE)  # when they came

    def is_overload(self, now: float, hold: float) -> bool:
        """Whether a 429 *now* that says nothing is one of several within a usual *hold*."""
        self._bare.append(now)
        return len(self._bare) == BARE and now - self._bare[0] <= hold

    def is_recent(self, now: float, hold: float) -> bool:
        """Whether it matters for a response *now*."""
        return self.pause.is_recent(now) or any(now - at <= hold for at in self._bare)


# -- headers


def told_by(headers: Mapping[str, str], *, limits: bool) -> float | None:
    """The seconds from now at which to ask again. 0 for at once, and None if none is told.

    That is ``retry-after-ms`` or ``Retry-After``, and with *limits* also the latest reset of the
    rate limits that are used up.
    """
    told = [seconds_of(headers[name] + unit) for name, unit in _RETRY_AFTER if name in headers]
    if limits:
        resets = [seconds_of(reset) for reset, left in _limits(headers) if not _is_left(left)]
        told.append(max((each for each in resets if each is not None), default=None))
    known = [each for each in told if each is not None]
    return next(filter(None, known), 0.0 if known else None)


_RETRY_AFTER = (("retry-after-ms", "ms"), ("retry-after", ""))
_RESET = re.compile(r"rate-?limit-(.+-)?reset\b")  # as in x-ratelimit-reset-tokens
_FIELD = re.compile(r"(\w+)\s*=\s*\"?([^\s;,\"]+)")


def _limits(headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The reset of each rate limit, and how much is left of it. Empty if that is not told."""
    for name, value in headers.items():
        if _RESET.search(name):
            yield value, headers.get(name.replace("reset", "remaining"), "")
        elif name == "ratelimit":  # by the IETF's drafts, for one limit or for several
            for part in [value] if "reset" in value else value.split(","):
                limit: dict[str, str] = dict(_FIELD.findall(part))
                reset, left = limit.get("reset", ""), limit.get("remaining", "")
                yield limit.get("t", reset), limit.get("r", left)


def _is_left(left: str) -> bool:
    with suppress(ValueError):
        return float(left) > 0
    return False


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"([\d.]+)(ms|s|m|h|d)")


def seconds_of(text: str) -> float | None:
    """Seconds from now that the value of a header asks for. None if unclear.

    It is a number of seconds or a date (RFC 9110, 10.2.3), a duration such as ``1m30s``, or a time
    in seconds or milliseconds since 1970.
    """
    for read in (_number, _duration, _iso_time, _date):
        with suppress(ArithmeticError, LookupError, OSError, TypeError, ValueError):
            seconds = read(text.strip())
            return max(0.0, seconds) if math.isfinite(seconds) else None
    return None


def _number(text: str) -> float:
    number = float(text)
    if number < EPOCH or math.isinf(number):
        return number
    return (number if number < 1000 * EPOCH else number / 1000) - time.time()


def _duration(text: str) -> float:
    parts = _PART.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        raise ValueError
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _iso_time(text: str) -> float:
    time_of = datetime.fromisoformat(text)
    return (time_of if time_of.tzinfo else time_of.replace(tzinfo=UTC)).timestamp() - time.time()


def _date(text: str) -> float:
    return parsedate_to_datetime(text).timestamp() - time.time()
