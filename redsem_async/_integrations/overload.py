"""For how long the fleet backs off from an upstream that is overloaded."""

import logging
import math
import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from redsem_async._api.permit import Permit
from redsem_async._core import config
from redsem_async._core.log import facts

logger = logging.getLogger("redsem_async")

TOO_MANY_REQUESTS, UNAVAILABLE = 429, 503
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

    def note(self, permit: Permit | None, key: str | None, response: Response) -> None:
        """The upstream answered the request that holds *permit*, which has this *key*."""
        if permit is None or self._back_off is False:
            return
        with failures_logged("back_off", permit):
            tell = pause_for if self._back_off is True else self._back_off
            seconds = tell(response)
            if seconds is not None:
                permit.back_off(seconds, key=key is not None)


@contextmanager
def failures_logged(function: str, permit: Permit) -> Generator[None]:
    """Log an exception of a user's function, and no more: the caller is to have the response."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        extra = facts(function, semaphore=permit.name)
        logger.warning("the function %s failed: %r", function, error, extra=extra)


def pause_for(response: Response) -> float | None:
    """Seconds for which the fleet pauses. 0 if the overload tells no time, None if it is none."""
    status = response.status_code
    if status not in (TOO_MANY_REQUESTS, UNAVAILABLE):
        return None
    return told_by(response.headers, limits=status == TOO_MANY_REQUESTS) or 0.0


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
