"""What is done while Redis grants no permits: ``on_outage``, wherever it is an argument."""

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import EllipsisType, TracebackType
from typing import Literal, Unpack, cast

from redsem_async._api.group import SemaphoreGroup
from redsem_async._api.permit import Permit
from redsem_async._api.semaphore import AnySemaphore
from redsem_async._core import config
from redsem_async._core.clock import now as clock
from redsem_async._core.errors import BackendError, BackendUnavailable, SemaphoreFull
from redsem_async._core.log import facts
from redsem_async._observers.registry import observers

from .selector import AcquireOptions, Choice, Key, Selector

logger = logging.getLogger("redsem_async")

ASK_AGAIN = 5.0  # seconds, after which one that waits for others to end asks Redis again

OnOutage = Literal["closed", "open"] | int
"""What happens to requests while Redis grants no permits. A number is a limit for this process."""

_CONSEQUENCES: dict[OnOutage, str] = {
    "closed": "rejecting requests",
    "open": "admitting requests without a permit",
}

Block = AbstractAsyncContextManager[Permit | None]
"""Holds a permit, or none where an outage lets a request through without."""

Acquire = Callable[..., Block]
"""Acquires what a call with these arguments needs. Takes any, as a key function may."""

BackOff = Callable[[Exception], float | None]
"""For how many seconds an exception has the fleet back off. None where it does not."""


class OutageObserver(ABC):
    """An observer that also learns when an outage makes a rule apply, and when it ends."""

    @abstractmethod
    def outage_changed(self, name: str, rule: OnOutage, *, began: bool) -> None:
        """Redis grants no permits of *name*, or grants them again."""


class Outage:
    """One rule for what a function, a transport or a service does, and whether it applies now."""

    def __init__(self, on_outage: object, *, fails_fast: bool = False) -> None:
        """With *fails_fast* requests do not wait for Redis in an outage that is known.

        They never do if they may continue without a permit.
        """
        self._rule: OnOutage = on_outage_of(on_outage)
        self._probes = fails_fast or self._rule != "closed"
        self._away = False
        self._asking = False  # whether it is over
        self._places: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}

    def held(self, choice: Choice, timeout: float | EllipsisType | None = ...) -> Block:
        """A block that acquires what was chosen. *timeout* replaces its own."""
        return _Held(self, choice, timeout)

    async def acquire(self, choice: Choice, timeout: float | EllipsisType | None = ...) -> Block:
        """Acquire what was chosen. The caller enters the result, and so holds it.

        Raises:
            BackendError: Redis grants no permits, and the rule lets no more requests through.
            SemaphoreError: as ``acquire`` of the semaphore does.
        """
        rule, ends = self._rule, math.inf
        most = choice.timeout if timeout is ... else timeout
        waits = False
        while True:
            try:
                return await self._granted(choice, timeout)
            except BackendError as error:
                if rule == "closed":
                    raise
                if isinstance(rule, str):
                    return _WithoutPermit(None)
                now, place = clock(), self._place(rule)
                if not waits and most is not None:
                    ends = now + most  # anew, because those that noticed it waited for Redis
                waits = True
                try:
                    async with asyncio.timeout(min(ASK_AGAIN, max(0.0, ends - now))):
                        await place.acquire()
                    return _WithoutPermit(place)
                except TimeoutError:
                    if clock() >= ends:
                        raise error from error.__cause__

    async def _granted(self, choice: Choice, timeout: float | EllipsisType | None) -> Permit:
        """Acquire a permit, and note whether Redis grants any."""
        name = choice.semaphore.name
        try:
            permit = await self._ask(choice, timeout)
        except SemaphoreFull:
            self._note(name, None)
            raise
        except BackendError as error:  # unreachable, or it refuses: out of memory, NOPERM, ...
            self._note(name, error)
            raise
        self._note(name, None)
        return permit

    async def _ask(self, choice: Choice, timeout: float | EllipsisType | None) -> Permit:
        if self._away and self._probes:
            # The first to notice waited for its whole timeout. After it one at a time asks, since
            # where Redis is silent that takes seconds, and no other request waits.
            if self._asking:
                name = choice.semaphore.name
                raise BackendUnavailable(name, "Redis could not be asked just now")
            self._asking = True
            try:
                return await choice.acquire(timeout=0)
            except SemaphoreFull:
                self._note(choice.semaphore.name, None)
            finally:
                self._asking = False
        return await choice.acquire(timeout)

    def _place(self, limit: int) -> asyncio.Semaphore:
        """The local semaphore of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._places:
            known = self._places.items()
            self._places = {other: place for other, place in known if not other.is_closed()}
            self._places[loop] = asyncio.Semaphore(limit)
        return self._places[loop]

    def _note(self, name: str, error: BackendError | None) -> None:
        if self._away is (error is not None):
            return
        self._away = error is not None
        if error is not None:
            text = "Redis grants no permits: %s (on_outage=%r), because of %s"
            extra = facts("on_outage", semaphore=name)
            most = f"admitting {self._rule} requests at a time, without a permit"
            done = _CONSEQUENCES.get(self._rule, most)
            logger.warning(text, done, self._rule, error, extra=extra)
        else:
            extra = facts("on_outage over", semaphore=name)
            logger.warning("Redis grants permits again: requests need one", extra=extra)
        for observer in [notifier.observer for notifier in observers.notifiers]:
            if isinstance(observer, OutageObserver):
                try:
                    observer.outage_changed(name, self._rule, began=self._away)
                except Exception:  # no request may fail for it
                    logger.exception("an observer failed: outage_changed")


class _WithoutPermit(AbstractAsyncContextManager[None, None]):
    """A block that runs without a permit, in a *place* of a local semaphore."""

    def __init__(self, place: asyncio.Semaphore | None) -> None:
        self._place = place

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None:
        if self._place is not None:
            self._place.release()


class _Held(AbstractAsyncContextManager[Permit | None, bool | None]):
    def __init__(
        self,
        outage: Outage,
        choice: Choice,
        timeout: float | EllipsisType | None = ...,
        back_off: BackOff | None = None,
    ) -> None:
        self._asked = outage, choice, timeout
        self._back_off = back_off

    async def __aenter__(self) -> Permit | None:
        outage, choice, timeout = self._asked
        self._block = await outage.acquire(choice, timeout)
        return await self._block.__aenter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        block = self._block
        try:
            if self._back_off is not None and isinstance(exc, Exception):
                seconds = self._back_off(exc)
                if seconds is not None and isinstance(block, Permit):
                    block.back_off(seconds)
        finally:
            ends = await block.__aexit__(exc_type, exc, traceback)
        return ends


def acquirer(
    source: AnySemaphore | SemaphoreGroup,
    key: Key | str | EllipsisType | None,
    on_outage: OnOutage,
    back_off: BackOff | None = None,
    **options: Unpack[AcquireOptions],
) -> Acquire:
    """Return what acquires a permit for a call, given its arguments.

    An exception of its block has the fleet back off, if the function *back_off* says so.

    Raises:
        ValueError, TypeError: for arguments that cannot be meant, saying what to do.
    """
    if back_off is not None:
        config.check_function(back_off, "back_off")
    choose, outage = Selector(source, key, **options), Outage(on_outage)
    return lambda *args, **kwargs: _Held(outage, choose(*args, **kwargs), back_off=back_off)


def on_outage_of(value: object) -> OnOutage:
    """Return what to do while Redis is unavailable."""
    if not isinstance(value, str):
        return config.whole(value, "on_outage", 1)
    if value not in ("closed", "open"):
        raise ValueError(f"on_outage must be 'closed', 'open' or a limit, not {value!r}")
    return cast("OnOutage", value)
