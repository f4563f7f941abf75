"""What all semaphores have in common. `acquire` gives permits."""

import asyncio
import math
from collections.abc import Coroutine
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Unpack

from redsem_async._core import config
from redsem_async._core.clock import now as clock
from redsem_async._core.config import FairOptions, Terms
from redsem_async._core.errors import AcquireTimeout
from redsem_async._core.keys import Address, Mode, mode_with, parse_permit_id
from redsem_async._core.rates import Cost
from redsem_async._hub.calls import BackOffCall, DeleteCall, ReapCall, SetLimitCall, StatusCall
from redsem_async._hub.estimates import usual_hold
from redsem_async._hub.hub import hub_for
from redsem_async._hub.model import Request
from redsem_async._hub.remote_semaphore import RemoteSemaphore
from redsem_async._observers.registry import observers
from redsem_async._protocol.operations import KeyTerms
from redsem_async._protocol.status import StatusReply, Viewer
from redsem_async._protocol.views import SemaphoreStatus

from .awaitables import Acquisition, AwaitableBool
from .blocks import ENTERED, if_nested, note_nested
from .options import backend_of, how_to_call, key_terms, refuse_pickling, signature
from .permit import EnteredBlock, EnteredPermits, Permit, exit_of_block
from .remarks import line_outside
from .stand_ins import STAND_INS

if TYPE_CHECKING:
    from .options import AnyRedis


class AnySemaphore:
    """Base class of the semaphores, for annotations that accept all of them.

    The constructor performs no I/O and needs no event loop, so a semaphore may be a
    module-level variable. Tasks may share it, and several event loops may use it in turn.

    Every coroutine may raise a ``SemaphoreError``:

    - ``ModeMismatch``, if the name is in use by another class, with another clock, or with keys,
      slots or rates that only one side declares. Subclasses are ``SlotsMismatch``, for other
      slots, and ``LayoutMismatch``, for a version of this library with another layout.
    - ``SemaphoreClosed``, if ``aclose`` was called meanwhile.
    - ``BackendError``, if Redis rejected the command. Its subclass ``BackendUnavailable`` means
      that Redis is unavailable.

    Cancelling a caller changes nothing, except that a command that was already sent may take
    effect. A permit that was granted to a cancelled caller is released.
    """

    _mode: ClassVar[Mode]  # without keys and slots

    def __init__(
        self,
        redis: "AnyRedis",
        name: str,
        limit: int | None = None,
        **options: Unpack[FairOptions],
    ) -> None:
        """Create a semaphore. Nothing is sent to Redis.

        Args:
            redis: any client of ``redis.asyncio``, or a ``MemoryBackend``.
            name: of the semaphore, the same in every process. 1 to 512 bytes, no braces.
            limit: maximum number of permits held at once, for all keys together. It applies to
                this client's requests, which wait if it is 0. ``set_limit`` overrides it.
            lease: seconds after which a permit expires unless its process refreshes it, at least
                0.05. A crashed holder's permit is free after that time.
            refresh_interval: seconds between two refreshes, by default a third of the lease.
            timeout: seconds to wait for a permit, unless ``acquire`` has its own. ``None`` waits
                forever.
            max_waiters: queue length at which ``acquire`` raises ``QueueFull``.
            clock: ``"server"``, or ``"local"`` to measure leases with the clients' wall clocks,
                which must then agree. All clients of a name use the same.
            prefix: first part of the keys in Redis. All clients of a name use the same.
            label: name of this process in ``status()``.
            cancel_on_loss: whether the loss of a permit cancels the block that it guards.
            slots: up to 500 strings or ints, such as the devices of a host, instead of *limit*,
                which is then their number. Each permit is assigned one of them, ``permit.slot``,
                which no other held permit has. All clients of a name must declare the same
                slots, or one list must begin with the other.
            max_hold: seconds for which a permit may be held, counted from its grant, at least a
                lease. Then it is lost (``PermitLost``), even if it was detached and adopted.
                ``None`` means no maximum. All clients of a name should use the same.
            max_back_off: longest pause of one ``permit.back_off``, in seconds. A longer one is
                shortened and logged. It does not bound the cut, which ends as the limit in force
                rises.
            key_limit: maximum number of permits that one ``key`` holds at once, or a function of
                the key, which returns None for a key without a limit. A limit set with
                ``set_limit(key=)`` overrides it. This option and those below are for a
                ``FairSemaphore`` only.
            share: whether the next permit goes to the key with the fewest permits in use for its
                *weight*, and not to the oldest request.
            weight: a key's weight with *share*, or a function of the key. Finite and above 0, and
                clamped to 0.000001–1,000,000.
            patience: seconds after which a waiting request goes first with *share*, so that none
                starves. By default the semaphore's *timeout*, or six leases if that is None or 0.
                For requests without a key it is always a lease.
            max_waiters_per_key: number of waiting requests of one ``key`` at which ``acquire``
                raises ``QueueFull``.
            rate: how much may be granted in a given time, for all keys together, as a `Rate` or a
                dict of up to four by name. All clients of a name must declare the same names.

        Raises:
            ValueError, TypeError: for invalid arguments. The message says what to do.
        """
        if not hasattr(self, "_mode"):
            raise TypeError("AnySemaphore is for annotations: use Semaphore or FairSemaphore")
        self._backend = backend_of(redis)
        if limit is None and options.get("slots") is None:
            needs = (
                "(): missing argument 'limit': the limit must be an int, unless there are slots"
            )
            raise TypeError(f"{type(self).__name__}{needs}; {how_to_call(type(self))}")
        terms = self._terms = Terms(limit, **options)
        mode = self._mode
        if terms.keyed:
            mode = "fair+share" if terms.share else "fair+keys"
        mode = mode_with(mode, rates=bool(terms.rates), slots=terms.slots is not None)
        name, rates = config.text(name, "name"), tuple(terms.rates)
        self._address = Address(mode, terms.prefix, name, terms.clock, rates)
        self._last_bound: RemoteSemaphore | None = None  # in the loop that used it last
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
        return self._terms.timeout

    @property
    def keyed(self) -> bool:
        """Whether requests may have a key."""
        return self._terms.keyed

    # -- permits

    def acquire(
        self,
        *,
        timeout: float | EllipsisType | None = ...,
        permits: int = 1,
        cancel_on_loss: bool | None = None,
        ahead: float = 0.0,
        key: str | EllipsisType | None = ...,
        cost: Cost | None = None,
    ) -> Acquisition:
        """Wait for a permit: ``await`` it, or use it as ``async with sem.acquire() as permit``.

        If the caller is cancelled while it waits, its request is removed. If the grant was already
        in flight, the permit is released within a round trip.

        Args:
            timeout: seconds to wait, instead of the semaphore's ``timeout``. ``None`` waits
                forever. 0 does not join the queue, and returns as soon as Redis replies.
            permits: how many permits to acquire. They are held and released together.
            cancel_on_loss: instead of the semaphore's.
            ahead: head start in seconds, 0 to 3,600. The request joins the queue as if it had
                arrived that much earlier. Requests without a head start don't starve. Only a
                ``FairSemaphore`` has head starts.
            key: string of 1 to 512 bytes, such as a tenant. The permit counts against the overall
                limit and against this key's. A request blocked only by its key's limit does not
                block other keys. A semaphore with ``key_limit`` or ``share`` requires it, or
                ``None`` for a request without a key. Other semaphores have no keys.
            cost: what the request takes from the rate, or a dict of what it takes from each rate,
                by name. A rate named ``requests``, or a single rate, takes 1 by default. Any other
                needs a cost. ``permit.settle`` corrects it.

        Raises:
            AcquireTimeout: no permit became free in time. ``blocked_by`` says which limit was
                full, and ``retry_after`` estimates when to retry.
            QueueFull: the queue already has ``max_waiters`` waiters, or ``max_waiters_per_key``
                of this key. Also has ``retry_after``.
            PermitLost: the permit was lost in the block of ``async with``.
            BackendUnavailable: Redis was unavailable at the deadline, or without a deadline for
                longer than a lease.
            SemaphoreError: see `AnySemaphore`.
            ValueError, TypeError: for invalid arguments, or if a required *key* or *cost* is
                missing. Raised by the call itself, before it is awaited.
        """
        terms = self._terms
        most = terms.timeout if timeout is ... else config.timeout_of(timeout)
        permits = config.permits_of(permits, terms.limit)
        cancel = terms.cancel_on_loss
        if cancel_on_loss is not None:
            cancel = config.flag(cancel_on_loss, "cancel_on_loss")
        if ahead != 0.0:
            if self._mode != "fair":
                raise TypeError("ahead= needs a FairSemaphore: only its queue has head starts")
            ahead = config.duration_of(ahead, "ahead", config.MOST_AHEAD)
        of_key = None if key is None else key_terms(terms, key, permits)
        costs = terms.costs(cost) if terms.rates or cost is not None else ""
        return Acquisition(self._acquire(cancel, most, permits, ahead, of_key, costs))

    async def _acquire(
        self,
        cancel_on_loss: bool,  # noqa: FBT001 - keywords cost time
        timeout: float | None = None,
        permits: int = 1,
        ahead: float = 0.0,
        key: KeyTerms | None = None,
        costs: str = "",
        adopted: str | None = None,
    ) -> Permit:
        """Acquire a permit, or take over *adopted*."""
        remote, terms = self._bound(), self._terms
        if adopted is None:
            request = remote.acquire(terms, timeout, permits, ahead, key, costs)
            if timeout is None and ENTERED.get():
                note_nested(remote, request)
        else:
            request = remote.adopt(terms, adopted)
        try:
            await request
        except BaseException:
            remote.abandon(request)
            raise
        return _permit(remote, request, cancel_on_loss=cancel_on_loss)

    _acquire.__qualname__ = "acquire"  # as Python reports one that was not awaited

    async def try_acquire(
        self,
        *,
        permits: int = 1,
        key: str | EllipsisType | None = ...,
        cost: Cost | None = None,
    ) -> Permit | None:
        """Return a permit if one is free now, or ``None`` when the semaphore, or *key*, is full.

        If the caller is cancelled, a permit that was granted meanwhile is released.

        Raises:
            BackendUnavailable: Redis is unavailable, so whether a permit is free is unknown.
            SemaphoreError, ValueError, TypeError: as for ``acquire``.
        """
        try:
            return await self.acquire(timeout=0, permits=permits, key=key, cost=cost)
        except AcquireTimeout:
            return None

    async def __aenter__(self) -> Permit:
        # First, because it was looked up just now.
        entered = None if self._entered.looked_up is None else self._entered.looked_up()
        if entered is not None and entered.looked_up_by is asyncio.current_task():
            self._entered.looked_up = entered.looked_up_by = None
        else:
            entered = None
        terms = self._terms
        if terms.keyed:
            key_terms(terms, ..., 1)  # raises
        # As `_acquire` does, which would be one more coroutine for each waiter.
        remote = self._bound()
        costs = terms.costs(None) if terms.rates else ""
        request = remote.acquire(terms, terms.timeout, costs=costs)
        if terms.timeout is None and ENTERED.get():
            note_nested(remote, request)
        try:
            await request
        except BaseException:
            remote.abandon(request)
            raise
        permit = _permit(remote, request, cancel_on_loss=terms.cancel_on_loss)
        permit._guard_block(ends_with_task=True)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if entered is None:
            self._entered.add(permit)
        else:
            entered.permit = permit
        return permit

    @exit_of_block
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        *,
        block: EnteredBlock | None = None,
    ) -> None:
        permit = None if block is None else block.permit
        if block is None or permit is None:
            permit = self._entered.pop(block)
        else:
            block.permit = None
        await permit.__aexit__(exc_type, exc, traceback)

    def release(self, permit_id: str | None = None) -> Coroutine[Any, Any, bool]:
        """Revoke a permit by its id, from any process. Await it.

        Returns whether the permit was held. If it was not, nothing changes. In the same step the
        next waiter may get the permit, and the holder gets a push message. A holder that is cut
        off from Redis does not get the message, and trusts the permit until its lease ends.

        If the caller is cancelled, the permit is still released.

        Raises:
            TypeError: without an id, at the call. Use ``await permit.release()`` instead.
            SemaphoreError: see `AnySemaphore`.
        """
        if not isinstance(permit_id, str):
            raise TypeError(
                "release() needs the id of a permit; to release a Permit: await permit.release()"
            )
        return self._release(permit_id)

    async def _release(self, permit_id: str) -> bool:
        known = parse_permit_id(permit_id)
        return known is not None and await self._bound().revoke(*known)

    def adopt(self, permit_id: str) -> Acquisition:
        """Take over a permit that was detached, in this process or another. Await or enter it.

        The permit gets a new id that belongs to this process. If two processes adopt the same
        id, because a job was delivered twice, the second gets ``PermitLost``. If the caller is
        cancelled, the permit is released.

        Raises:
            PermitLost: no permit is held under this id (any more), or the permit was lost in the
                block of ``async with``.
            SemaphoreError: see `AnySemaphore`.
        """
        if not isinstance(permit_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"adopt() needs the id of a permit, not {type(permit_id).__name__}")
        adoption: Any = self._acquire(self._terms.cancel_on_loss, adopted=permit_id)
        adoption.__qualname__ = "adopt"
        return Acquisition(adoption)

    # -- status

    async def ready(self, timeout: float = 1.0) -> None:
        """Return if Redis would grant or queue a request now, and raise the reason otherwise.

        For readiness probes. It takes no permit and no place in the queue, but Redis writes what
        it would write for a request. A semaphore that is full or paused is ready.

        Args:
            timeout: seconds to wait for Redis, 0.001 to 3,600.

        Raises:
            BackendUnavailable: Redis is unreachable, read-only or does not reply, so *timeout*
                passed.
            BackendError: Redis rejects requests, as when memory is full or a permission missing.
            SemaphoreClosed: ``aclose`` has begun.
            SemaphoreError: see `AnySemaphore`. Cancelling the caller changes nothing.
            ValueError, TypeError: for an invalid timeout.
        """
        bounds = "at least 0.001 and at most 3600 s"
        most = config.bounded(timeout, "timeout", 0.001, 3600.0, bounds)
        await self._bound().ready(self._terms, most)

    def locked(self) -> AwaitableBool:
        """Whether ``acquire`` would have to wait now.

        Await it, because ``if sem.locked()`` raises.

        Raises:
            SemaphoreError: see `AnySemaphore`. Cancelling the caller changes nothing.
        """
        return AwaitableBool(self._locked())

    async def _locked(self) -> bool:
        reply = await self._read(0)
        return reply.blocked or reply.status.available < 1

    _locked.__qualname__ = "AnySemaphore.locked"  # as Python reports one that was not awaited

    async def available(self) -> int:
        """How many permits are free now, under the limit in force.

        Raises:
            SemaphoreError: see `AnySemaphore`. Cancelling the caller changes nothing.
        """
        return (await self._read(0)).status.available

    async def exists(self) -> bool:
        """Whether Redis has a holder, a waiter or a set limit under this name.

        Raises:
            SemaphoreError: see `AnySemaphore`. Cancelling the caller changes nothing.
        """
        reply = await self._read(0)
        status, limited = reply.status, reply.key_limits > 0
        return limited or bool(status.held or status.waiting) or status.set_limit is not None

    async def status(
        self, max_entries: int = 100, *, keys_after: str | None = None, keys_begin: str = ""
    ) -> SemaphoreStatus:
        """Read the limit, the holders, the waiters and the keys, all at the same moment.

        Args:
            max_entries: the maximum number of holders to list, of waiters, and of keys.
            keys_after: list the keys after this one, which is the last of the previous list. If
                nothing is known of it any more, the list starts over.
            keys_begin: list only keys that begin with this text, searching the next 5,000 keys.

        Raises:
            SemaphoreError: see `AnySemaphore`. Cancelling the caller changes nothing.
            ValueError, TypeError: for invalid arguments.
        """
        most = config.whole(max_entries, "max_entries", 0)
        after = None if keys_after is None else self._terms.checked_key(keys_after)
        begin = config.text(keys_begin, "keys_begin") if keys_begin else ""
        return (await self._read(most, after, begin)).status

    async def _read(
        self, max_entries: int, after: str | None = None, begin: str = ""
    ) -> StatusReply:
        remote, terms = self._bound(), self._terms
        usual, of_key = usual_hold(remote), terms.declared_limit
        viewer = Viewer(terms.limit, terms.slots, terms.lease, usual, of_key, terms.rates)
        reply: StatusReply = await remote.call(StatusCall(max_entries, after, viewer, begin))
        return reply

    async def set_limit(self, limit: int | None, *, key: str | None = None) -> None:
        """Set a limit that overrides all declared limits. ``None`` removes it.

        Redis keeps it without an expiry. A higher limit immediately grants permits to waiters. A
        lower limit revokes no permit. 0 pauses the semaphore, or the key. If Redis loses its data,
        nothing restores the set limit, so a limit of 0 is a pause and not a safety lock.

        Args:
            limit: maximum number of permits held at once.
            key: the key whose limit to set, instead of the overall limit.

        Raises:
            SemaphoreError: see `AnySemaphore`. If cancelled, it may still take effect.
            ValueError, TypeError: for an invalid limit, or a key without ``key_limit`` or *share*.
        """
        limit = config.limit_or_none(limit, "limit")
        key = None if key is None else self._terms.checked_key(key)
        await self._set_limit(limit, key)

    async def pause(self) -> None:
        """Set a limit of 0 until ``resume``.

        Raises:
            SemaphoreError: see `AnySemaphore`. If cancelled, it may still take effect.
        """
        await self._set_limit("pause")

    async def resume(self) -> None:
        """End a pause. The limit that was set before it applies again, or else the declared ones.

        Raises:
            SemaphoreError: see `AnySemaphore`. If cancelled, it may still take effect.
        """
        await self._set_limit("resume")

    async def _set_limit(
        self, limit: int | Literal["pause", "resume"] | None, key: str | None = None
    ) -> None:
        call = SetLimitCall(limit, key=key, by=signature(self._terms.label))
        await self._bound().call(call)

    async def back_off(self, seconds: float, *, key: str | None = None) -> None:
        """Grant no permits for *seconds*, in any process. 0 ends a back-off.

        The limit in force then rises as after ``permit.back_off``, from 1 to the limit that
        was found before, if any, and beyond. It cuts nothing, and ``max_back_off`` does not apply.
        Unlike a pause, a back-off ends by itself, and ``resume`` does not end it.

        Args:
            seconds: from now on, at most a day.
            key: the key whose requests wait. By default all do.

        Raises:
            SemaphoreError: see `AnySemaphore`. If cancelled, it may still take effect.
            ValueError, TypeError: for an invalid number of seconds, or a key as in ``set_limit``.
        """
        key = None if key is None else self._terms.checked_key(key)
        pause = config.duration_of(seconds, "seconds", config.LONGEST_BACK_OFF)
        ms, ends, by = math.ceil(1000 * pause), clock() + pause, signature(self._terms.label)
        await self._bound().call(BackOffCall(ms, key=key, by=by, ends=ends))

    async def reap(self) -> int:
        """Remove expired holders and dead waiters, serve the queue, and return the number removed.

        You never need it, because every acquire, release and heartbeat of a name does the same.

        Raises:
            SemaphoreError: see `AnySemaphore`. If cancelled, it may still take effect.
        """
        reaped, more = 0, True
        while more:
            answer = await self._bound().call(ReapCall())
            count = answer.answers[0]
            assert isinstance(count, int)
            reaped += count
            more = count > 0 and answer.next_ms == 0
        if reaped:
            for notifier in observers.notifiers:
                notifier.semaphore("reclaimed", self._address, count=reaped)
        return reaped

    async def delete(self) -> None:
        """Delete the semaphore, including its set limit.

        Holders lose their permits, and waiters are queued again. A holder that is cut off from
        Redis does not get the push message, and trusts its permit until its lease ends.

        Raises:
            SemaphoreError: see `AnySemaphore`. If cancelled, it may still take effect.
        """
        await self._bound().call(DeleteCall())

    # -- the hub

    def _bound(self) -> RemoteSemaphore:
        """The semaphore as the hub of the running loop has it."""
        bound = self._last_bound  # read once, because loops may run in several threads
        if bound is None or STAND_INS:
            return self._bind()
        here = bound.loop is asyncio.get_running_loop() and bound.identity.usable
        return bound if here else self._bind()

    def _bind(self) -> RemoteSemaphore:
        stand_in, terms = STAND_INS[-1] if STAND_INS else None, self._terms
        hub = hub_for(stand_in or self._backend)
        remote = hub.semaphore(self._address, terms.label)
        remote.introduction.terms = terms
        if stand_in is None:
            self._last_bound = remote
        return remote


def _permit(remote: RemoteSemaphore, request: Request, *, cancel_on_loss: bool) -> Permit:
    if isinstance(request.error, AcquireTimeout):
        request.error = if_nested(remote, request, request.error)
    lease, since, waited = remote.taken(request)
    acquired_at = line_outside() if remote.loop.get_debug() else None
    return Permit(remote, lease, since, waited, cancel_on_loss, acquired_at)
