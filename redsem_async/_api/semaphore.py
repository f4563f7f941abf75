"""What all semaphores have in common. `acquire` gives permits, and `async with` too."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast
from weakref import WeakKeyDictionary, ref

from redsem_async._core import config
from redsem_async._core.config import Clock, Slot
from redsem_async._core.errors import AcquireTimeout
from redsem_async._core.keys import Address, Mode, parse_permit_id, with_slots
from redsem_async._hub.hub import hub_for
from redsem_async._protocol.operations import KeyTerms

from .arguments import forgotten_key, how_to_call, names_the_class, refuse_pickling
from .awaitables import Acquisition
from .backends import backend_of
from .bound import Bound
from .permit import Permit
from .stored import StoredSemaphore

if TYPE_CHECKING:
    from .backends import AnyRedis

Leave = TypeVar("Leave", bound=Callable[..., Any])


class Block:
    """One ``async with semaphore``, whose exit the task *looked_up_by* has looked up.

    The statement keeps its exit alive, and with it the block. Code that only checks whether there
    is an exit does not.

    Attributes:
        permit: with which it was entered, until it is left.
    """

    looked_up_by: "asyncio.Task[Any] | None" = None
    permit: Permit | None = None


class _ExitOfBlock:
    """Gives every ``async with`` an ``__aexit__`` of its own.

    ``async with`` looks up ``__aexit__`` and then calls ``__aenter__``, with nothing in between.
    So a block knows its permit in whatever task it is left, as that of a generator may be.
    """

    def __init__(self, leave: Callable[..., Any]) -> None:
        self._leave = leave

    def __get__(self, semaphore: "AnySemaphore | None", owner: type) -> Callable[..., Any]:
        if semaphore is None:  # as an exit stack looks it up
            return self._leave
        block = Block()
        try:
            block.looked_up_by = asyncio.current_task()
        except RuntimeError:  # no loop runs, so nothing is entered
            block.looked_up_by = None
        semaphore._looked_up = ref(block)  # noqa: SLF001 - this is a part of that class
        return partial(self._leave, semaphore, block=block)


def exit_of_block(leave: Leave) -> Leave:
    """Make *leave* the ``__aexit__`` of each block on its own."""
    return cast("Leave", _ExitOfBlock(leave))


class AnySemaphore(StoredSemaphore):
    """Base class of the semaphores, for annotations that accept all of them.

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
        max_hold: float | None = None,
        slots: Sequence[Slot] | None = None,
        max_back_off: float = 60.0,
    ) -> None:
        """Create a semaphore. Nothing is sent to Redis.

        Args:
            redis: any client of ``redis.asyncio``, or a ``MemoryBackend``.
            name: of the semaphore, the same in every process. 1 to 512 bytes, no braces.
            limit: maximum number of permits held at once. It applies to this client's requests.
                A limit set with ``set_limit`` overrides it. With 0 it is paused for this client,
                whose requests wait until a higher one is set.
            lease: seconds after which a permit expires unless its process refreshes it, at least
                0.05. A crashed holder's permit is free after that time.
            refresh_interval: seconds between two refreshes. A third of the lease by default.
            timeout: seconds to wait for a permit, unless ``acquire`` has its own. ``None`` waits
                forever.
            max_waiters: queue length at which ``acquire`` raises ``QueueFull``.
            clock: ``"server"``, or ``"local"`` to measure leases with the clients' wall clocks,
                which then have to agree. All clients of a name use the same.
            prefix: first part of the keys in Redis. All clients of a name use the same.
            label: name of this process in ``status()``.
            cancel_on_loss: whether the loss of a permit cancels the block that it guards.
            max_hold: seconds for which a permit may be held, counted from its grant, at least a
                lease. Then it is lost (``PermitLost``), even if it was detached and adopted.
                ``None`` sets no bound. All clients of a name should use the same.
            slots: up to 500 strings or ints, such as the devices of a host, instead of *limit*,
                which is then their number. Each permit is assigned one of them, ``permit.slot``,
                which no other held permit has. All clients of a name must declare the same
                slots, or one list must begin with the other.
            max_back_off: longest time for one ``permit.back_off``, in seconds. A longer one is
                shortened and logged.

        Raises:
            ValueError, TypeError: for invalid arguments. The message says what to do.
        """
        if not hasattr(self, "_mode"):
            raise TypeError("AnySemaphore is for annotations: use Semaphore or FairSemaphore")
        self._backend = backend_of(redis)
        if limit is None and slots is None:
            needs = "missing argument 'limit': the limit must be an int, unless there are slots"
            raise TypeError(f"{type(self).__name__}(): {needs}; {how_to_call(type(self))}")
        terms = config.terms_of(
            *(limit, slots, lease, refresh_interval, max_waiters),
            *(max_hold, max_back_off),
        )
        if slots is not None:
            self._mode = with_slots(self._mode)
        self._terms = terms
        self._address = Address(
            self._mode,
            config.text(prefix, "prefix"),
            config.text(name, "name"),
            config.clock_of(clock),
        )
        self._timeout = config.timeout_of(timeout)
        self._label = None if label is None else config.text(label, "label")
        self._cancel_on_loss = config.flag(cancel_on_loss, "cancel_on_loss")
        self._last_bound = None
        # Those of blocks that are not entered by the statement, but by an exit stack or by calls
        # of `__aenter__`, are known by their tasks.
        self._entered: WeakKeyDictionary[asyncio.Task[Any], list[Permit]] = WeakKeyDictionary()
        self._looked_up: ref[Block] | None = None
        self._keyed = self._address.keyed

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, limit={self.limit})"

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
            permits: how many permits to acquire. They are held and released together.
            cancel_on_loss: instead of the semaphore's.

        Raises:
            AcquireTimeout: no permit became free in time. ``retry_after`` estimates when to retry.
            QueueFull: the queue already has ``max_waiters`` waiters. Also has ``retry_after``.
            PermitLost: the permit was lost in the block of ``async with``.
            SlotsMismatch: the name is in use with another list of slots.
            LayoutMismatch: the name is in use by a version of this library with another layout
                of the keys.
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
        return Acquisition(self._acquire(most, permits, ahead, key, cancel))

    async def _acquire(
        self,
        timeout: float | None,
        permits: int,
        ahead: float,
        key: KeyTerms | None,
        cancel_on_loss: bool,  # noqa: FBT001 - keywords cost time
    ) -> Permit:
        bound = self._bound()
        remote = bound.remote
        lease, now, waited = await remote.acquire(self._terms, timeout, permits, ahead, key)
        bound.refresher.add(lease, remote, now)
        return Permit(bound, lease, now, waited, cancel_on_loss)

    _acquire.__qualname__ = "acquire"  # as Python reports one that was not awaited

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
        # First, because it was looked up just now.
        block = None if self._looked_up is None else self._looked_up()
        task = asyncio.current_task()
        if block is None or block.looked_up_by is not task:
            block = None
        else:
            self._looked_up = block.looked_up_by = None
        if self._keyed:
            raise forgotten_key()
        bound = self._bound()
        lease, now, waited = await bound.remote.acquire(self._terms, self._timeout)
        bound.refresher.add(lease, bound.remote, now)
        permit = Permit(bound, lease, now, waited, self._cancel_on_loss)
        await permit.__aenter__(ends_with_task=True)
        if block is not None:
            block.permit = permit
        elif task is not None:
            self._entered[task] = [*self._entered.get(task, ()), permit]
        return permit

    @exit_of_block
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        *,
        block: Block | None = None,
    ) -> None:
        permit = None if block is None else block.permit
        if block is None or permit is None:
            permit = self._entered_by_task(block)
        else:
            block.permit = None
        await permit.__aexit__(exc_type, exc, traceback)

    def _entered_by_task(self, block: Block | None) -> Permit:
        """The current task's latest permit, or in a task that entered none this loop's only one.

        Raises:
            RuntimeError: it is not known which block is meant. Nothing is changed.
        """
        if block is not None:
            block.looked_up_by = None  # looked up only to be called
        entered, task = self._entered, asyncio.current_task()
        if task is None or task not in entered:
            task = self._only_task()
        *others, permit = entered.pop(task)
        if others:
            entered[task] = others
        return permit

    def _only_task(self) -> "asyncio.Task[Any]":
        loop, entered = asyncio.get_running_loop(), self._entered
        known = [ref() for ref in entered.keyrefs()]  # at once: other threads may add theirs
        here = [task for task in known if task is not None and task.get_loop() is loop]
        blocks = sum(len(entered[task]) for task in here)
        if blocks == 1:
            return here[0]
        raise RuntimeError(
            f"this task has not entered the block that it leaves, and {blocks} blocks are open in"
            " other tasks: use 'async with sem.acquire()', which knows its permit in any task"
        )

    def release(self, permit_id: str | None = None) -> Coroutine[Any, Any, bool]:
        """Revoke a permit by its id, from any process. Await it.

        Returns whether the permit was held. If it was not, nothing changes. In the same step the
        next waiter may get the permit, and the holder gets a push message. A holder that is cut
        off from Redis does not get the message, and trusts the permit until its lease ends.

        If the caller is cancelled, the permit is still released.

        Raises:
            ModeMismatch: the name is in use by another class, clock or layout, or with other
                slots.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
            TypeError: without an id, at the call. Use ``await permit.release()`` instead.
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
        return await self._bound().remote.revoke(*known)

    def adopt(self, permit_id: str) -> Acquisition:
        """Take over a permit that was detached, in this process or another. Await or enter it.

        The permit gets a new id that belongs to this process. If two processes adopt the same
        id, because a job was delivered twice, the second gets ``PermitLost``.

        If the caller is cancelled, the permit is released.

        Raises:
            PermitLost: no permit is held under this id (any more), or the permit was lost in the
                block of ``async with``.
            ModeMismatch: the name is in use by another class, clock or layout, or with other
                slots.
            SemaphoreClosed: ``aclose`` was called meanwhile.
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
        """
        if not isinstance(permit_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"adopt() needs the id of a permit, not {type(permit_id).__name__}")
        return Acquisition(self._adopt(permit_id))

    async def _adopt(self, permit_id: str) -> Permit:
        bound = self._bound()
        lease, now, waited = await bound.remote.adopt(self._terms, permit_id)
        bound.refresher.add(lease, bound.remote, now)
        return Permit(bound, lease, now, waited, self._cancel_on_loss)

    _adopt.__qualname__ = "adopt"

    # -- wiring

    def _bound(self) -> Bound:
        """What this semaphore is bound to in the running loop."""
        bound = self._last_bound  # read once, because loops may run in several threads
        if bound is None:
            return self._bind()
        here = bound.loop is asyncio.get_running_loop() and bound.remote.identity.usable
        return bound if here else self._bind()

    def _bind(self) -> Bound:
        hub = hub_for(self._backend)
        remote = hub.semaphore(self._address, self._label)
        remote.introduction.terms = self._terms
        bound = self._last_bound = Bound(remote, hub.refresher, hub.identity.loop)
        return bound
