"""The semaphores: what users hold in their hands. They hand out permits."""

import asyncio
from collections.abc import Coroutine
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, Unpack, cast

from redsem_async._core import config
from redsem_async._core.config import Clock, HeartbeatBy, Recovery
from redsem_async._core.errors import AcquireTimeout, SemaphoreError
from redsem_async._core.keys import Address, Mode, parse_permit_id
from redsem_async._hub.hub import hub_for
from redsem_async._keepalive.refresher import refresher_of
from redsem_async._observers.registry import observers
from redsem_async._protocol.backend import Backend
from redsem_async._protocol.operations import Clear, Reap, SetLimit, Status
from redsem_async._protocol.replies import Reply, StatusReply
from redsem_async._redis.backend import redis_backend

from .acquiring import acquire, adopt
from .awaitables import Acquisition, AwaitableBool
from .bound import Bound
from .entered import EnteredPermits
from .permit import Permit
from .status import SemaphoreStatus, status_of

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

    Client = Redis | RedisCluster | Backend


def backend_of(client: object) -> Backend:
    """*client* itself when semaphores are kept in it, or else Redis as *client* reaches it."""
    if callable(getattr(client, "connect", None)) and hasattr(client, "place"):
        return cast("Backend", client)
    return redis_backend(client)


class Options(TypedDict, total=False):
    """What may be chosen for a semaphore, by keyword, wherever its keys are kept."""

    lease: float
    refresh_interval: float | None
    timeout: float | None
    max_waiters: int | None
    clock: Clock
    label: str | None
    cancel_on_loss: bool
    heartbeat: HeartbeatBy
    longest_stall: float | None
    recovery: Recovery | None
    min_replicas: int


class AnySemaphore:
    """Base of the semaphores, for annotations: any of them does.

    A semaphore does nothing when it is made: no input or output, and no event loop is needed,
    so that it may stand at module level. It may be shared by tasks, and used in several event
    loops in turn.

    Args:
        redis: a client of ``redis.asyncio`` as it is, or a ``MemoryBackend``.
        name: of the semaphore; the same in every process. 1 to 512 bytes, no braces.
        limit: most permits held at a time, as this client declares it; it rules this client's
            own requests. A limit set with :meth:`set_limit` wins over it.
        lease: seconds after which a permit ends that its process did not refresh; at least
            0.05. It bounds for how long a crashed holder is in the way.
        refresh_interval: seconds between two refreshes; a third of the lease by default.
        timeout: seconds to wait for a permit unless said otherwise; ``None`` for ever.
        max_waiters: how long the line may get before ``acquire`` raises ``QueueFull``.
        clock: ``"server"``, or ``"local"`` to count leases by the clients' own wall clocks,
            which then have to agree. All clients of a name use the same.
        prefix: of the keys in Redis. All clients of a name use the same.
        label: what this process is called in ``status()``.
        cancel_on_loss: whether losing a permit cancels the block that it guards.
        heartbeat: what refreshes permits. ``"task"``: the event loop, and one that is blocked
            for longer than the lease loses them. ``"thread"``: when the loop is late, a thread
            of its own as well, for code that computes where it should have awaited. That costs
            the process a thread and, while permits are held, a second connection (to each
            server of a cluster that keeps one of them). It does not help where the thread
            cannot run either: in a process that is stopped, or in an extension that keeps the
            interpreter's lock; nor with leases so short that the thread's share of that lock
            comes too late: well under a second.
        longest_stall: with ``heartbeat="thread"``, seconds after its last sign of life for which
            the thread stands in for the loop; six leases by default, and a lease at least. The
            permits of a loop that is stuck for longer end within a lease from then.
        recovery: ``"grace"`` to admit nobody new for one lease after Redis has lost state (a
            flush, a restart, a failover), while holders put their permits back. A name that was
            never used before looks the same, so its first ``acquire`` waits that long. All
            clients of a name use the same, and about the same lease. A limit that was set with
            :meth:`set_limit` is not put back: after the grace period declared limits rule.
        min_replicas: how many replicas have to confirm a grant (``WAIT``) before it is handed
            out. It costs a trip, and makes it unlikely, not impossible, that a failover forgets
            the grant.

    Raises:
        ValueError, TypeError: for arguments that cannot be meant, saying what to do.
    """

    _mode: ClassVar[Mode]

    def __init__(
        self,
        redis: "Client",
        name: str,
        limit: int,
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
    ) -> None:
        if not hasattr(self, "_mode"):
            raise TypeError("AnySemaphore is for annotations: make a Semaphore or FairSemaphore")
        self._backend = backend_of(redis)
        self._client = redis
        terms = config.terms_of(limit, lease, refresh_interval, max_waiters, min_replicas)
        stall = config.longest_stall_of(heartbeat, longest_stall, terms.lease)
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, limit={self.limit})"

    @property
    def name(self) -> str:
        """Of the semaphore."""
        return self._address.name

    @property
    def limit(self) -> int:
        """The limit that this client declares."""
        return self._terms.limit

    @property
    def lease(self) -> float:
        """Seconds after which a permit ends that its process did not refresh."""
        return self._terms.lease

    # -- permits

    def acquire(
        self, *, timeout: float | EllipsisType | None = ..., permits: int = 1
    ) -> Acquisition:
        """Wait for a permit: ``await`` it, or use it as ``async with sem.acquire() as permit``.

        Cancelled while it waits, it leaves nothing behind; a grant that was on its way is given
        back within a round trip.

        Args:
            timeout: seconds to wait, instead of the semaphore's own; ``None`` for ever, 0 for
                not at all.
            permits: how many, held and released as one.

        Raises:
            AcquireTimeout: nothing became free in time.
            QueueFull: ``max_waiters`` wait already.
            ModeMismatch: the name is in use by another class, or with another clock.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendUnavailable: Redis could not be asked by the deadline; without one, for
                longer than a lease.
            BackendError: Redis refused.
            ValueError, TypeError: at the call, for arguments that cannot be meant.
        """
        most = self._timeout if timeout is ... else config.timeout_of(timeout)
        permits = config.permits_of(permits, self._terms.limit)
        return Acquisition(self._acquire(most, permits))

    def _acquire(self, timeout: float | None, permits: int) -> Coroutine[Any, Any, Permit]:
        cancel = self._cancel_on_loss
        return acquire(self._bound, self._terms, timeout, permits, cancel_on_loss=cancel)

    async def try_acquire(self, *, permits: int = 1) -> Permit | None:
        """Return a permit if one is free now, or ``None`` when the semaphore is full.

        Raises:
            BackendUnavailable: Redis could not be asked, which is not the same as full.
            ModeMismatch, BackendError: as for :meth:`acquire`.
        """
        try:
            return await self.acquire(timeout=0, permits=permits)
        except AcquireTimeout:
            return None

    async def __aenter__(self) -> Permit:
        permit = await self._acquire(self._timeout, 1)
        await permit.__aenter__()
        self._entered.add(permit)
        return permit

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        permit = self._entered.pop()
        if permit is None:
            raise RuntimeError(f"{self!r} was left without having been entered")
        await permit.__aexit__(exc_type, exc, traceback)

    async def release(self, permit_id: str | None = None) -> bool:
        """Release a permit by its id, from any process.

        Returns whether it was held; where it was not, nothing changes. The next waiter may be
        granted the permit at once, and the holder is told in the same step. A holder that is cut
        off from Redis does not hear of it, and trusts the permit until its lease ends.

        Raises:
            BackendError: Redis refused, or could not be asked.
        """
        if not isinstance(permit_id, str):
            raise TypeError("release() needs a permit's id: a Permit has a release() of its own")
        known = parse_permit_id(permit_id)
        if known is None:
            return False
        held = await self._bound().remote.release_by_id(*known).future
        if isinstance(held, SemaphoreError):
            raise held
        return held

    def adopt(self, permit_id: str) -> Acquisition:
        """Take over a permit handed over from elsewhere; await it, or enter it.

        Its id is exchanged for one of ours, so that of two adopters, of a job that was
        delivered twice, the second finds nothing. Cancelled, it gives the permit back.

        Raises:
            PermitLost: the id holds nothing (any more).
            BackendError: Redis refused, or could not be asked.
        """
        if not isinstance(permit_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"adopt() needs a permit's id, not {type(permit_id).__name__}")
        cancel = self._cancel_on_loss
        return Acquisition(adopt(self._bound, self._terms, permit_id, cancel_on_loss=cancel))

    # -- how it stands

    def locked(self) -> AwaitableBool:
        """Whether ``acquire`` would have to wait now. To be awaited: a bare ``if`` raises."""
        return AwaitableBool(self._locked())

    async def _locked(self) -> bool:
        status = await self.status(max_entries=0)
        queued = self._mode == "fair" and status.waiting > 0
        return status.available < 1 or queued

    async def available(self) -> int:
        """How many permits are free now, under the limit in force."""
        return (await self.status(max_entries=0)).available

    async def exists(self) -> bool:
        """Whether Redis knows of a holder, a waiter or a set limit of this name."""
        standing = await self._read(0)
        return bool(standing.held or standing.waiting or standing.set_limit is not None)

    async def status(self, max_entries: int = 100) -> SemaphoreStatus:
        """Read how the semaphore stands: one consistent moment.

        Args:
            max_entries: most holders to list, and most waiters.
        """
        most = config.whole(max_entries, "max_entries", 0)
        standing = await self._read(most)
        return status_of(self.name, self.limit, self._mode, standing)

    async def _read(self, max_entries: int) -> StatusReply:
        answer = await self._bound().remote.ask(Status(max_entries))
        assert isinstance(answer, StatusReply)
        return answer

    async def set_limit(self, limit: int | None) -> None:
        """Set a limit that wins over every client's own; ``None`` takes it away again.

        It is kept in Redis without an expiry. Raised, it serves waiters at once; lowered, it
        takes nobody's permit, and lets nobody new in until it fits; 0 pauses the semaphore.

        It is lost when Redis loses its state (a flush, a restart without persistence, a failover
        that lost the write), and is not put back, not with ``recovery="grace"`` either: waiters
        and newcomers then go by the limits that clients declare. So 0 pauses and is no safety
        lock. Where a limit has to last, declare it; set it again after state was lost.
        """
        if limit is not None:
            limit = config.whole(limit, "limit", 0)
        await self._bound().remote.ask(SetLimit(limit))

    async def reap(self) -> int:
        """Drop expired holders and dead waiters now, and serve the queue; return how many.

        Never needed: whoever acquires, releases or waits does the same on the way.
        """
        reaped, more = 0, True
        while more:
            answer = await self._bound().remote.ask(Reap())
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
        """Delete the semaphore, its set limit too.

        Holders lose their permits, and waiters start again. A holder that is cut off from Redis
        does not hear of it, and trusts its permit until its lease ends.
        """
        await self._bound().remote.ask(Clear())

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
        remote.introduction.declared = self.limit
        if self._recovery is not None:
            remote.recover(self.lease)
        bound = self._last_bound = Bound(remote, refresher_of(hub), hub.identity.loop)
        return bound


class Semaphore(AnySemaphore):
    """A counting semaphore shared by all processes that use its name: ZSET mode.

    Never more than ``limit`` permits are held. Whoever asks when there is room gets one; waiters
    have no order across processes. The least state and the most throughput.

    The ancestor of its scripts is the counting semaphore of *Redis in Action*, 6.3: holders in a
    sorted set. Atomic scripts on the server's clock do without its trips and its trust in
    callers' clocks.
    """

    _mode: ClassVar[Mode] = "zset"


class FairSemaphore(AnySemaphore):
    """A semaphore that serves first come, first served, across all processes: fair-counter mode.

    Never more than ``limit`` permits are held. Every request draws a ticket from a counter that
    never goes back, and permits are granted strictly in that order: no waiter starves, and one
    that died is passed over.

    The ancestor of its scripts is the fair semaphore of *Redis in Action*, 6.3. Atomic scripts
    leave no window between drawing a ticket and ranking it, in which two could enter; no entry
    of one that failed; and no timeout of one caller that is applied to others.
    """

    _mode: ClassVar[Mode] = "fair"


class Mutex(FairSemaphore):
    """A :class:`FairSemaphore` with a limit of 1: one holder at a time, in order."""

    def __init__(
        self, redis: "Client", name: str, *, prefix: str = "redsem", **options: Unpack[Options]
    ) -> None:
        super().__init__(redis, name, 1, prefix=prefix, **options)
