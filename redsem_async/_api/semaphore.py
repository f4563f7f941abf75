"""What all semaphores have in common. `acquire` gives permits."""

import asyncio
from collections.abc import Coroutine, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NoReturn

from redsem_async._core import config
from redsem_async._core.config import Clock, HeartbeatBy, Recovery, Slot
from redsem_async._core.errors import AcquireTimeout
from redsem_async._core.keys import Address, Mode, parse_permit_id, with_slots
from redsem_async._hub.estimates import usual_hold
from redsem_async._hub.hub import hub_for
from redsem_async._keepalive.refresher import refresher_of
from redsem_async._observers.registry import observers
from redsem_async._protocol.operations import Clear, KeyTerms, Reap, SetLimit, Status
from redsem_async._protocol.replies import Reply, StatusReply

from .acquiring import acquire, adopt
from .arguments import limit_is_missing, names_the_class, refuse_pickling
from .awaitables import Acquisition, AwaitableBool
from .backends import backend_of
from .bound import Bound
from .entered import EnteredPermits
from .permit import Permit
from .status import SemaphoreStatus, status_of

if TYPE_CHECKING:
    from .backends import AnyRedis


class AnySemaphore:
    """Base class of the semaphores, for annotations: it accepts all of them.

    The constructor does no input or output and needs no event loop, so a semaphore may be a
    module-level variable. Tasks may share it, and several event loops may use it in turn.
    """

    _mode: Mode

    @names_the_class
    def __init__(
        self,
        redis: "AnyRedis",
        name: str,
        limit: int | None = None,
        *,
        lease: float = 10.0,
        refresh_interval: float | None = None,
        timeout: float | None = None,
        max_waiters: int | None = None,
        clock: Clock = "server",
        prefix: str = "redsem",
        label: str | None = None,
        cancel_on_loss: bool = True,
        heartbeat: HeartbeatBy = "task",
        longest_stall: float | None = None,
        recovery: Recovery | None = None,
        min_replicas: int = 0,
        linger: float = 0.0,
        max_hold: float | None = None,
        slots: Sequence[Slot] | None = None,
        max_back_off: float = 60.0,
    ) -> None:
        """Create a semaphore. Nothing is sent to Redis.

        Args:
            redis: any client of ``redis.asyncio``, or a ``MemoryBackend``.
            name: of the semaphore, the same in every process. 1 to 512 bytes, no braces.
            limit: maximum number of permits held at once. ``set_limit`` overrides it.
            lease: seconds after which a crashed holder's permit is free, at least 0.05.
            refresh_interval: seconds between two refreshes. A third of the lease by default.
            timeout: seconds to wait for a permit, unless ``acquire`` gets its own.
            max_waiters: queue length at which ``acquire`` raises ``QueueFull``.
            clock: ``"server"``, or ``"local"`` for the clients' wall clocks, which have to agree.
            prefix: first part of the keys in Redis. All clients of a name use the same.
            label: name of this process in ``status()``.
            cancel_on_loss: whether the loss of a permit cancels the block that it guards.
            heartbeat: what refreshes permits. With ``"task"`` the event loop does, and permits are
                lost when it is blocked for longer than the lease. With ``"thread"`` a thread does
                so whenever the loop is late, over a second connection, unless the process is
                stopped or an extension holds the interpreter lock. Not for leases under a second.
            longest_stall: with ``heartbeat="thread"``, seconds for which the thread refreshes
                after the event loop last ran. Six leases by default, at least one.
            recovery: ``"grace"`` to grant no new permit for one lease after Redis has lost its
                data, while holders put their permits back. A name that was never used looks the
                same. All clients of a name use the same, and about the same lease.
            min_replicas: number of replicas that confirm a grant before the caller gets it.
            linger: seconds for which an unused lease is kept for the next caller of this
                process, at most the refresh interval. While no other process wants the
                semaphore, leaving a block and entering the next then send no command. Not for
                code that blocks the event loop.
            max_hold: seconds after its grant for which a permit is refreshed, at least a lease.
                After that it is lost (``PermitLost``), even if it was detached and adopted.
                ``None`` sets no bound. All clients of a name use the same.
            slots: up to 500 strings or ints instead of *limit*, such as the devices of a host.
                ``permit.slot`` is a permit's own, and no two held permits have the same. All
                clients of a name declare the same slots, or one list begins with the other.
            max_back_off: seconds to which a longer ``permit.back_off`` is cut.

        Raises:
            ValueError, TypeError: for invalid arguments. The message says what to do.
        """
        if not hasattr(self, "_mode"):
            raise TypeError("AnySemaphore is for annotations: use Semaphore or FairSemaphore")
        self._backend = backend_of(redis)
        self._client = redis
        if limit is None and slots is None:
            raise limit_is_missing(type(self))
        terms = config.terms_of(
            *(limit, slots, lease, refresh_interval, max_waiters, min_replicas),
            *(linger, max_hold, max_back_off),
        )
        if slots is not None:
            self._mode = with_slots(self._mode)
        stall = config.longest_stall_of(heartbeat, longest_stall, terms.lease)
        if stall is not None:
            self._backend.require_blocking()
        self._terms = terms._replace(longest_stall=stall)
        self._address = Address(
            self._mode,
            config.text(prefix, "prefix"),
            config.text(name, "name"),
            config.clock_of(clock),
        )
        self._timeout = config.timeout_of(timeout)
        self._label = None if label is None else config.text(label, "label")
        self._cancel_on_loss = config.flag(cancel_on_loss, "cancel_on_loss")
        self._recovery = config.recovery_of(recovery)
        self._last_bound: Bound | None = None  # in the loop that used it last
        self._entered = EnteredPermits()

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, limit={self.limit})"

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

    @property
    def timeout(self) -> float | None:
        """Seconds that ``acquire`` waits by default; ``None`` forever."""
        return self._timeout

    # -- permits

    def acquire(
        self,
        *,
        timeout: float | EllipsisType | None = ...,
        permits: int = 1,
        cancel_on_loss: bool | None = None,
    ) -> Acquisition:
        """Wait for a permit: ``await`` it, or use it as ``async with sem.acquire() as permit``.

        If the caller is cancelled while it waits, its request is removed. If the grant was already
        in flight, the permit is released within a round trip.

        Args:
            timeout: seconds to wait, instead of the semaphore's ``timeout``. ``None`` waits
                forever, 0 returns at once.
            permits: how many permits to acquire. They are held and released as one.
            cancel_on_loss: instead of the semaphore's.

        Raises:
            AcquireTimeout: no permit became free in time. ``retry_after`` estimates when to retry.
            QueueFull: the queue already has ``max_waiters`` waiters. It has ``retry_after`` too.
            PermitLost: the permit was lost in the block of ``async with``.
            SlotsMismatch: the name is in use with another list of slots.
            LayoutMismatch: the name is in use with another layout of its keys.
            ModeMismatch: the name is in use by another class, or with another clock. The two
                errors above are subclasses.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendUnavailable: Redis was unavailable at the deadline, or without a deadline for
                longer than a lease.
            BackendError: Redis rejected the command. ``BackendUnavailable`` is a subclass.
            ValueError, TypeError: for invalid arguments, at the call, before it is awaited.
        """
        return self._acquisition(timeout, permits, cancel_on_loss)

    def _acquisition(
        self,
        timeout: float | EllipsisType | None,
        permits: int,
        cancel_on_loss: bool | None,  # noqa: FBT001 - as it was given
        ahead: float = 0.0,
        key: KeyTerms | None = None,
    ) -> Acquisition:
        most = self._timeout if timeout is ... else config.timeout_of(timeout)
        permits = config.permits_of(permits, self._terms.limit)
        cancel = self._cancel_on_loss
        if cancel_on_loss is not None:
            cancel = config.flag(cancel_on_loss, "cancel_on_loss")
        asked = (most, permits, ahead, key)
        return Acquisition(acquire(self._bound, self._terms, *asked, cancel_on_loss=cancel))

    async def try_acquire(self, *, permits: int = 1) -> Permit | None:
        """Return a permit if one is free now, or ``None`` when the semaphore is full.

        If the caller is cancelled, a permit that was granted meanwhile is released.

        Raises:
            BackendUnavailable: Redis is unavailable, so whether a permit is free is unknown.
            ModeMismatch, SemaphoreClosed, BackendError: as for ``acquire``.
        """
        try:
            return await self.acquire(timeout=0, permits=permits)
        except AcquireTimeout:
            return None

    async def __aenter__(self) -> Permit:
        cancel = self._cancel_on_loss
        asked = (self._timeout, 1, 0.0, None)
        permit = await acquire(self._bound, self._terms, *asked, cancel_on_loss=cancel)
        await permit.__aenter__()
        self._entered.add(permit)
        return permit

    async def __aexit__(self, *raised: Any) -> None:  # noqa: PYI036 - to a permit, as they are
        await self._entered.pop().__aexit__(*raised)

    def release(self, permit_id: str | None = None) -> Coroutine[Any, Any, bool]:
        """Revoke a permit by its id, from any process. Await it.

        Returns whether the permit was held. If it was not, nothing changes. The same script may
        grant the permit to the next waiter, and sends a push message to the holder. A holder
        that is cut off from Redis does not get the message, and trusts the permit until its lease
        ends. If the caller is cancelled, the permit is still released.

        Raises:
            ModeMismatch, SemaphoreClosed, BackendError: as for ``acquire``.
            TypeError: without an id, at the call. ``await permit.release()`` is meant.
        """
        if not isinstance(permit_id, str):
            text = (
                "release() needs the id of a permit; to release a Permit: await permit.release()"
            )
            raise TypeError(text)
        return self._release(permit_id)

    async def _release(self, permit_id: str) -> bool:
        known = parse_permit_id(permit_id)
        if known is None:
            return False
        return await self._bound().remote.release_by_id(*known)

    def adopt(self, permit_id: str) -> Acquisition:
        """Take over a permit that was detached, in this process or another. Await or enter it.

        The permit gets a new id that belongs to this process. If two processes adopt the same
        id, because a job was delivered twice, the second gets ``PermitLost``. If the caller is
        cancelled, the permit is released.

        Raises:
            PermitLost: no permit is held under this id (any more), or the permit was lost in the
                block of ``async with``.
            ModeMismatch, SemaphoreClosed, BackendError: as for ``acquire``.
        """
        if not isinstance(permit_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"adopt() needs the id of a permit, not {type(permit_id).__name__}")
        cancel = self._cancel_on_loss
        return Acquisition(adopt(self._bound, self._terms, permit_id, cancel_on_loss=cancel))

    # -- status

    def locked(self) -> AwaitableBool:
        """Whether ``acquire`` would have to wait now.

        Await it, because ``if sem.locked()`` raises. Cancelling the caller changes nothing.

        Raises:
            ModeMismatch, SemaphoreClosed, BackendError: as for ``acquire``.
        """
        return AwaitableBool(self._locked())

    async def _locked(self) -> bool:
        reply = await self._read(0)
        return reply.blocked or self._status_of(reply).available < 1

    _locked.__qualname__ = "AnySemaphore.locked"  # as Python reports one that was not awaited

    async def available(self) -> int:
        """How many permits are free now, under the limit in force. Cancelling changes nothing.

        Raises:
            ModeMismatch, SemaphoreClosed, BackendError: as for ``acquire``.
        """
        return self._status_of(await self._read(0)).available

    async def exists(self) -> bool:
        """Whether Redis has a holder, a waiter or a set limit under this name.

        Cancelling the caller changes nothing.

        Raises:
            ModeMismatch, SemaphoreClosed, BackendError: as for ``acquire``.
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
            ModeMismatch, SemaphoreClosed, BackendError: as for ``acquire``.
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
        lower limit revokes no permit. 0 pauses the semaphore. Redis loses the limit with its
        other data, and nothing restores it, so a limit of 0 is a pause and not a safety lock.
        If the caller is cancelled, a command that was already sent may take effect.

        Raises:
            ModeMismatch, SemaphoreClosed, BackendError: as for ``acquire``.
            ValueError, TypeError: for an invalid limit.
        """
        if limit is not None:
            limit = config.whole(limit, "limit", 0)
        await self._bound().remote.call(SetLimit(limit))

    async def pause(self) -> None:
        """Set a limit of 0 until ``resume``.

        If the caller is cancelled, a command that was already sent may take effect.

        Raises:
            ModeMismatch, SemaphoreClosed, BackendError: as for ``acquire``.
        """
        await self._bound().remote.call(SetLimit("pause"))

    async def resume(self) -> None:
        """End a pause. The limit that was set before it applies again, or else the declared ones.

        If the caller is cancelled, a command that was already sent may take effect.

        Raises:
            ModeMismatch, SemaphoreClosed, BackendError: as for ``acquire``.
        """
        await self._bound().remote.call(SetLimit("resume"))

    async def hold_off(self, seconds: float) -> None:
        """Grant no permit for *seconds*, in any process; 0 ends a back-off that runs.

        It does what ``permit.back_off`` does, and ``max_back_off`` does not cut it. Requests keep
        their places, and held permits are not touched. Then grants ramp up to the limit: one
        permit may be in use, then two, four and so on, one step in each usual hold time. Of
        several back-offs the latest end counts. Unlike a pause it ends by itself, and ``resume``
        does not end it. If the caller is cancelled, the command may still take effect.

        Args:
            seconds: from now on, at most a day.

        Raises:
            ModeMismatch, SemaphoreClosed, BackendError: as for ``acquire``.
            ValueError, TypeError: for an invalid number of seconds.
        """
        await self._hold_off(seconds, self.limit)

    async def _hold_off(self, seconds: float, limit: int, key: str | None = None) -> None:
        pause = config.pause_of(seconds, "seconds", config.LONGEST_HOLD_OFF)
        await self._bound().remote.hold_off(pause, limit, key)

    async def reap(self) -> int:
        """Remove expired holders and dead waiters now, serve the queue, and return how many.

        It is never needed, because every acquire, release and heartbeat of a name does the same.
        If the caller is cancelled, a command that was already sent may take effect.

        Raises:
            ModeMismatch, SemaphoreClosed, BackendError: as for ``acquire``.
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

    async def clear(self) -> None:
        """Delete the semaphore, including its set limit.

        Holders lose their permits, and waiters are queued again. A holder that is cut off from
        Redis does not get the push message, and trusts its permit until its lease ends.
        If the caller is cancelled, a command that was already sent may take effect.

        Raises:
            ModeMismatch, SemaphoreClosed, BackendError: as for ``acquire``.
        """
        await self._bound().remote.call(Clear())

    # -- wiring

    def _bound(self) -> Bound:
        """What this semaphore is bound to in the running loop."""
        bound = self._last_bound  # read once, because loops may run in several threads
        if bound is None:
            return self._bind()
        here = bound.loop is asyncio.get_running_loop() and bound.remote.identity.usable
        return bound if here else self._bind()

    def _bind(self) -> Bound:
        hub = hub_for(self._backend, self._client)
        remote = hub.semaphore(self._address, self._label)
        remote.state.introduction.terms = self._terms
        if self._recovery is not None:
            remote.recover(self.lease)
        bound = self._last_bound = Bound(remote, refresher_of(hub), hub.identity.loop)
        return bound
