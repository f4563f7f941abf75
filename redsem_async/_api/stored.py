"""A semaphore as Redis has it: what it reads of it, and what an operator changes."""

import asyncio

from redsem_async._core import config
from redsem_async._core.config import Terms
from redsem_async._core.keys import Address
from redsem_async._hub.estimates import usual_hold
from redsem_async._hub.hub import hub_for
from redsem_async._observers.registry import observers
from redsem_async._protocol.backend import Backend
from redsem_async._protocol.operations import Delete, Reap, SetLimit, Status
from redsem_async._protocol.replies import Reply, StatusReply

from .awaitables import AwaitableBool
from .bound import Bound
from .stand_ins import STAND_INS
from .status import SemaphoreStatus, status_of


class StoredSemaphore:
    """Base of the semaphores. Its attributes are set by `AnySemaphore`."""

    _backend: Backend
    _address: Address
    _terms: Terms
    _label: str | None
    _last_bound: Bound | None  # in the loop that used it last

    @property
    def name(self) -> str:
        """The name of the semaphore."""
        return self._address.name

    @property
    def limit(self) -> int:
        """The limit that this client declares."""
        return self._terms.limit

    @property
    def lease(self) -> float:
        """Seconds after which a permit expires unless its process refreshes it."""
        return self._terms.lease

    # -- status

    def locked(self) -> AwaitableBool:
        """Whether ``acquire`` would have to wait now.

        Await it, because ``if sem.locked()`` raises.

        Cancelling the caller changes nothing.

        Raises:
            ModeMismatch: the name is in use by another class, clock or layout, or with other
                slots.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
        """
        return AwaitableBool(self._locked())

    async def _locked(self) -> bool:
        reply = await self._read(0)
        return reply.blocked or self._status_of(reply).available < 1

    _locked.__qualname__ = "AnySemaphore.locked"  # as Python reports one that was not awaited

    async def available(self) -> int:
        """How many permits are free now, under the limit in force.

        Cancelling the caller changes nothing.

        Raises:
            ModeMismatch: the name is in use by another class, clock or layout, or with other
                slots.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
        """
        return self._status_of(await self._read(0)).available

    async def exists(self) -> bool:
        """Whether Redis has a holder, a waiter or a set limit under this name.

        Cancelling the caller changes nothing.

        Raises:
            ModeMismatch: the name is in use by another class, clock or layout, or with other
                slots.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
        """
        reply = await self._read(0)
        limited = reply.set_limit is not None or reply.key_limits > 0
        return bool(reply.held or reply.waiting or limited)

    async def status(self, max_entries: int = 100) -> SemaphoreStatus:
        """Read the limit, the holders and the waiters, all at the same moment.

        Cancelling the caller changes nothing.

        Args:
            max_entries: the maximum number of holders to list, and of waiters.

        Raises:
            ModeMismatch: the name is in use by another class, clock or layout, or with other
                slots.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
        """
        return self._status_of(await self._read(config.whole(max_entries, "max_entries", 0)))

    def _status_of(self, reply: StatusReply) -> SemaphoreStatus:
        own = (self.name, self._terms, reply, usual_hold(self._bound().remote.state))
        return status_of(*own, self._declared_limit)

    def _declared_limit(self, key: str) -> int | None:
        return None

    async def _read(self, max_entries: int, after: str | None = None) -> StatusReply:
        answer = await self._bound().remote.call(Status(max_entries, after))
        assert isinstance(answer, StatusReply)
        return answer

    async def set_limit(self, limit: int | None) -> None:
        """Set a limit that overrides all declared limits. ``None`` removes it.

        Redis keeps it without an expiry. A higher limit grants permits to waiters at once. A
        lower limit revokes no permit. 0 pauses the semaphore.

        If Redis loses its data, nothing restores the set limit. A limit of 0 is therefore a pause
        and not a safety lock.

        If the caller is cancelled, a command that was already sent may take effect.

        Raises:
            ModeMismatch: the name is in use by another class, clock or layout, or with other
                slots.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
            ValueError, TypeError: for an invalid limit.
        """
        if limit is not None:
            limit = config.whole(limit, "limit", 0)
        await self._bound().remote.call(SetLimit(limit))

    async def pause(self) -> None:
        """Set a limit of 0 until ``resume``.

        If the caller is cancelled, a command that was already sent may take effect.

        Raises:
            ModeMismatch: the name is in use by another class, clock or layout, or with other
                slots.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
        """
        await self._bound().remote.call(SetLimit("pause"))

    async def resume(self) -> None:
        """End a pause. The limit that was set before it applies again, or else the declared ones.

        If the caller is cancelled, a command that was already sent may take effect.

        Raises:
            ModeMismatch: the name is in use by another class, clock or layout, or with other
                slots.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
        """
        await self._bound().remote.call(SetLimit("resume"))

    async def back_off(self, seconds: float) -> None:
        """Grant no permits for *seconds*, in any process. 0 ends a back-off.

        It starts a back-off as ``permit.back_off`` does, but ``max_back_off`` does not apply.
        Requests keep their places, and held permits are not affected. Then grants ramp up to the
        limit. One permit may be in use, then two, four and so on, with one step for each typical
        hold time. Overlapping back-offs end when the last of them ends. Unlike a pause, a back-off
        ends by itself, and ``resume`` does not end it.

        If the caller is cancelled, a command that was already sent may take effect.

        Args:
            seconds: from now on, at most a day.

        Raises:
            ModeMismatch: the name is in use by another class, clock or layout, or with other
                slots.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
            ValueError, TypeError: for an invalid number of seconds.
        """
        await self._back_off_for(seconds)

    async def _back_off_for(self, seconds: float, key: str | None = None) -> None:
        pause = config.pause_of(seconds, "seconds", config.LONGEST_BACK_OFF)
        await self._bound().remote.back_off_for(pause, key)

    async def reap(self) -> int:
        """Remove expired holders and dead waiters, serve the queue, and return the number removed.

        You never need it, because every acquire, release and heartbeat of a name does the same.

        If the caller is cancelled, a command that was already sent may take effect.

        Raises:
            ModeMismatch: the name is in use by another class, clock or layout, or with other
                slots.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
        """
        reaped, more = 0, True
        while more:
            answer = await self._bound().remote.call(Reap())
            assert isinstance(answer, Reply)
            count = answer.answers[0]
            assert isinstance(count, int)
            reaped += count
            more = count > 0 and answer.next_ms == 0
        if reaped:
            for notifier in observers.notifiers:
                notifier.reclaimed(self._address, reaped)
        return reaped

    async def delete(self) -> None:
        """Delete the semaphore, including its set limit.

        Holders lose their permits, and waiters are queued again. A holder that is cut off from
        Redis does not get the push message, and trusts its permit until its lease ends.

        If the caller is cancelled, a command that was already sent may take effect.

        Raises:
            ModeMismatch: the name is in use by another class, clock or layout, or with other
                slots.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
        """
        await self._bound().remote.call(Delete())

    # -- wiring

    def _bound(self) -> Bound:
        """What this semaphore is bound to in the running loop."""
        bound = self._last_bound  # read once, because loops may run in several threads
        if bound is None or STAND_INS:
            return self._bind()
        here = bound.loop is asyncio.get_running_loop() and bound.remote.identity.usable
        return bound if here else self._bind()

    def _bind(self) -> Bound:
        stand_in = STAND_INS[-1] if STAND_INS else None
        hub = hub_for(stand_in or self._backend)
        remote = hub.semaphore(self._address, self._label)
        remote.state.introduction.terms = self._terms
        bound = Bound(remote, hub.refresher, hub.identity.loop)
        if stand_in is None:
            self._last_bound = bound
        return bound
