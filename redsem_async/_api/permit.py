"""A held permit, with its trust, its loss and its release."""

import asyncio
import math
import warnings
import weakref
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, cast

from redsem_async._core import config
from redsem_async._core.cancellation import finish
from redsem_async._core.clock import now as clock
from redsem_async._core.config import Slot
from redsem_async._core.errors import BackendError, PermitLost, SemaphoreError
from redsem_async._core.lease import Outcome, reply_timeout
from redsem_async._core.rates import Cost, costs_of, settled
from redsem_async._hub.calls import BackOffCall
from redsem_async._hub.model import Confirmed, Lease, LeaseState
from redsem_async._hub.remote_semaphore import RemoteSemaphore

from .blocks import BlockGuard
from .options import refuse_pickling, signature
from .remarks import log_cut, log_dropped

Leave = TypeVar("Leave", bound=Callable[..., Any])

CUT_WITHIN = 1.0  # seconds, after which an overload that told no time is out of date
_TAKEN = frozenset({LeaseState.HELD, LeaseState.LOST})


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Permit:
    """One permit of a semaphore (or several as one), held by this process.

    It is refreshed in the background until it is released. ``async with permit:`` guards a
    block: if the permit is lost, the block is cancelled and raises ``PermitLost``.

    A permit belongs to the event loop in which it was acquired. In another loop its coroutines
    raise ``RuntimeError``. A permit that is garbage-collected while it is held is released and
    emits a ``ResourceWarning``. It is logged at most once a minute for each semaphore.
    """

    _remote: RemoteSemaphore
    _lease: Lease
    _since: float  # when it was granted to its caller
    _waited: float
    _cancel_on_loss: bool
    _acquired_at: str | None  # file and line, if the event loop is in debug mode
    _guarded: BlockGuard | None = None

    def __repr__(self) -> str:
        state = self._lease.state.name.lower()
        return f"<Permit of {self.name!r} {state}, fencing token {self.fencing_token}>"

    @property
    def id(self) -> str:
        """The id of this permit in every process. A client that knows it can release it."""
        return self._lease.id

    @property
    def name(self) -> str:
        """The name of the semaphore."""
        return self._lease.address.name

    @property
    def permits(self) -> int:
        """How many permits this object stands for."""
        return self._lease.permits

    @property
    def slot(self) -> Slot | None:
        """The semaphore's slot that this permit has, the first of several.

        ``None`` for a semaphore without slots. No other held permit has the same.
        """
        return next(iter(self.slots), None)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots of this permit, one for each of its ``permits``."""
        declared = self._lease.terms.slots or ()
        return tuple(declared[slot] for slot in self._lease.slots)

    @property
    def fencing_token(self) -> int:
        """A number that increases with every grant of this semaphore and is never reused.

        If only one holder at a time may write, send it along with every write, and have the
        receiver reject a token lower than the highest it has seen. That rejects late writes, even
        by a holder that has not yet noticed the loss of its permit.
        """
        return self._lease.token

    @property
    def waited(self) -> float:
        """How long the caller waited for the permit, in seconds."""
        return self._waited

    @property
    def expires_in(self) -> float:
        """The number of seconds for which the permit can be trusted without another refresh.

        0 or less when it can't be trusted now.
        """
        if self._lease.state is not LeaseState.HELD:
            return -math.inf
        return self._lease.trusted_until - clock()

    @property
    def lost(self) -> bool:
        """Whether the permit was lost, or may have been. A release is not a loss."""
        lease = self._lease
        if self._trusted():
            return False
        return lease.lost_reason is not None or lease.state is LeaseState.HELD

    def check(self) -> None:
        """Raise ``PermitLost`` unless the permit can be trusted now.

        Call it in work that cannot be cancelled in time, because that work does not return to the
        event loop. Any thread may call it.

        Raises:
            PermitLost: the permit is lost, may be, or was released.
        """
        if not self._trusted():
            raise self._lease.loss()

    def _trusted(self) -> bool:
        """Whether the permit may be trusted now. If not, the event loop marks it as lost."""
        lease = self._lease
        if lease.trusted_at(clock()):
            return True
        loop, lose_unless_trusted = self._remote.loop, self._remote.lose_unless_trusted
        if _running_loop() is loop:
            lose_unless_trusted(lease)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(lose_unless_trusted, lease)
        return False

    async def wait_lost(self) -> PermitLost:
        """Wait until the permit is lost, and return the error that says why.

        Waits forever if the permit is released instead. Cancelling the wait changes nothing.

        Raises:
            RuntimeError: the permit belongs to another event loop, as for all its coroutines.
        """
        lease = self._lease
        if not self.lost:
            future = self._loop().create_future()
            if lease.wakes_on_loss is None:
                lease.wakes_on_loss = []
            lease.wakes_on_loss.append(future)
            try:
                await future
            finally:
                lease.wakes_on_loss.remove(future)
        return lease.loss()

    def settle(self, cost: Cost) -> None:
        """Say what the work of this permit really cost, instead of the ``cost`` of its request.

        Nothing is sent, because the release carries the cost, so call it before the block ends.
        The last call counts. If the work cost more, later requests wait longer. If it cost less,
        the difference can be granted again, unless the rate was full at any time since the grant.
        A permit that is lost or detached costs what its request said.

        Args:
            cost: as for ``acquire``.

        Raises:
            TypeError: the semaphore has no rate, or the permit was adopted. Only the process
                that acquired it knows what its request cost.
            ValueError, TypeError: for an invalid cost.
            RuntimeError: the permit was released or detached.
        """
        lease = self._lease
        if cost is None:  # pyright: ignore[reportUnnecessaryComparison] - a usage that is not told
            raise TypeError("cost must be a number or a dict, not None")
        costs = costs_of(lease.terms.rates, cost)
        if not lease.costs:
            raise TypeError("an adopted permit cannot be settled: its cost is that of its request")
        if lease.state is LeaseState.ENDED:
            raise RuntimeError("the permit is released: settle it before its block ends")
        lease.settled = settled(lease.terms.rates, costs, lease.costs)

    def back_off(self, seconds: float, *, key: bool = False) -> None:
        """Lower the limit in force in all processes, because an upstream is overloaded.

        An overload cuts the limit in force to a share of the permits in use: 0.9 near the limit
        that was found before, 0.5 while the fleet still searches, and at least 1. A request for
        more permits than that is granted when none is in use. Then the limit in force rises with
        time, slowly near what was found and then ever faster, until it is the limit again. So the
        fleet finds what the upstream accepts. The rule is that of TCP (Jacobson, Congestion
        Avoidance and Control, 1988).

        With *seconds*, no permit is granted for that time. Then one permit may be in use, then
        two, four and so on, one step per usual hold time, up to the limit that the cut left. With
        0, nothing pauses, unless at most one permit is in use at a limit of 1. The fleet then
        pauses for half a second, doubled by each further such overload to two seconds at most.

        Requests keep their places, and held permits are not affected. A permit that was granted
        before the last overload has met the same one. It cuts nothing, but can prolong the pause.
        Overlapping pauses end when the last of them ends.

        The call returns immediately, so no cancellation can stop it. The command is sent in the
        current iteration of the event loop, before the permit's release, and again after a lost
        connection until the pause would have ended, or for a second if there is none. If Redis
        refuses it, that is logged. Call it in a block or after it, in the loop or in a thread.

        Args:
            seconds: from now on, such as the upstream's ``Retry-After``. Finite and not negative,
                and 0 if the upstream names no time. A longer time than the semaphore's
                ``max_back_off`` is shortened to that.
            key: whether it affects only requests with this permit's key.

        Raises:
            ValueError, TypeError: for invalid arguments, or a permit without a key.
            RuntimeError: the event loop of the permit is closed.
        """
        pause = config.duration_of(seconds, "seconds", math.inf)
        if math.isinf(pause):
            raise ValueError("seconds must be finite, not inf")
        lease = self._lease
        terms, terms_of_key = lease.terms, lease.key
        if config.flag(key, "key") and terms_of_key is None:
            raise ValueError("key=True needs a permit that was acquired with a key")
        of_key = terms_of_key.key if key and terms_of_key is not None else None
        remote, now = self._remote, clock()
        if pause > terms.max_back_off:
            log_cut(remote, pause)
            pause = terms.max_back_off
        lease.met_overload = True
        if not pause and not remote.is_overload(of_key, self._since, now):
            return
        pause_ms, by = math.ceil(1000 * pause), signature(terms.label)
        ends = now + (pause or CUT_WITHIN)
        call = BackOffCall(pause_ms, lease.token, key=of_key, by=by, ends=ends)
        loop = self._remote.loop
        if _running_loop() is loop:
            remote.back_off(call)
        else:
            loop.call_soon_threadsafe(remote.back_off, call)

    async def refresh(self) -> None:
        """Refresh the lease now, in addition to the background refreshes.

        If the caller is cancelled, the permit stays held. The command may still take effect.

        Raises:
            PermitLost: the permit is lost, or could not be refreshed while it was trusted.
            BackendUnavailable: Redis did not confirm the refresh.
        """
        self._loop()
        self.check()
        answer = self._remote.refresh_now(self._lease)
        await asyncio.wait([answer], timeout=self.expires_in)
        outcome = answer.result() if answer.done() else Outcome.UNKNOWN
        self.check()
        if outcome is Outcome.UNKNOWN:
            raise self._remote.route.unavailable()

    async def release(self) -> bool:
        """Release the permit, so that the next waiter gets it.

        Returns whether the permit was held until now. That is ``False`` for a second release, and
        for a permit that was lost before. It returns when the server has confirmed the release,
        within a bounded time.

        Cancelling the caller does not stop the release. The caller is cancelled when it is done.

        Raises:
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
                The permit then expires with its lease at the latest.
            SemaphoreClosed: ``aclose`` ended before the release could be sent.
        """
        loop = self._loop()
        lease = self._lease
        if lease.state is LeaseState.ENDED:
            return False
        lost = lease.state is LeaseState.LOST
        future: Confirmed = loop.create_future()
        now = clock()
        pending = self._remote.release(lease, now, now - self._since, future)
        try:
            held = await future
        except asyncio.CancelledError:
            if pending.answer is None:
                pending.future = future = loop.create_future()
                await finish(future, 2 * reply_timeout(lease.terms.lease))
            raise
        if isinstance(held, SemaphoreError):
            raise held
        return held and not lost

    async def detach(self, expires_in: float | None = None) -> str:
        """Stop refreshing the permit without releasing it, and return its id.

        A process that gets the id takes the permit over with ``adopt``, within *expires_in*
        seconds (a lease by default). Choose the longest time that the job may spend in a queue.
        ``max_hold`` may shorten it. Leaving the permit's block afterwards does nothing.

        From the moment the request is sent, this process trusts the permit for *expires_in*
        seconds at most. If the request fails or is cancelled, the permit stays held and is
        refreshed again. The reply to a later refresh extends the trust.

        Raises:
            PermitLost: the permit is lost, or was released meanwhile.
            BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
                The permit stays held.
            SemaphoreClosed: ``aclose`` was called meanwhile.
        """
        self._loop()
        lease = self._lease
        expires = lease.terms.lease
        if expires_in is not None:
            expires = config.expires_in_of(expires_in)
        self.check()
        expires = min(expires, lease.hold_left(clock()))
        try:
            await self._remote.detach(lease, expires)
        except BackendError as error:
            if not self._trusted():
                raise lease.loss() from error
            raise
        return self.id

    async def __aenter__(self) -> Self:
        """Guard a block. From here on, the loss of the permit cancels the current task."""
        self._guard_block()
        return self

    def _guard_block(self, *, ends_with_task: bool = False) -> None:
        """With *ends_with_task*, it is not refreshed any more once the current task has ended."""
        task = asyncio.current_task(self._loop())
        lease = self._lease
        if task is None:
            raise RuntimeError("a permit can guard a block only inside a task")
        if self._guarded is not None:
            raise RuntimeError("this permit already guards a block")
        if lease.state is LeaseState.ENDED:
            raise RuntimeError("this permit was released: it cannot guard a block")
        now = clock()
        if self._cancel_on_loss and not lease.trusted_at(now) and self.lost:
            _ = self._remote.release(lease, now, now - self._since)
            raise lease.loss()
        self._guarded = BlockGuard(lease, task, self._cancel_on_loss)
        if ends_with_task:
            lease.ends_with = weakref.ref(task)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release the permit, and raise ``PermitLost`` if it was lost.

        Leaving waits for nothing. The release is sent in the current iteration of the event loop,
        before anything this process requests later, and again after a lost connection.
        """
        guard, self._guarded = self._guarded, None
        cancelled_by_loss = guard.disarm(exc) if guard is not None else False
        lease, now = self._lease, clock()
        lost = not lease.trusted_at(now) and self.lost
        if lease.state is not LeaseState.ENDED:
            if asyncio.get_running_loop() is not self._remote.loop:
                self._loop()  # raises
            _ = self._remote.release(lease, now, now - self._since)
        if lost and self._cancel_on_loss and (exc is None or cancelled_by_loss):
            raise lease.loss() from exc

    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if loop is not self._remote.loop:
            raise RuntimeError(f"this permit of {self.name!r} belongs to another event loop")
        return loop

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self, "detach it, and adopt its id elsewhere")

    def __del__(self) -> None:
        state = self._lease.state
        if state not in _TAKEN:
            return
        loop = self._remote.loop
        if loop.is_closed():
            return
        message = f"{self!r} was garbage-collected without being released"
        # Collected in any thread, and in the middle of anything. The release comes first, because
        # the warning may be raised as an error.
        release = partial(
            _release_dropped, self._remote, self._lease, self._since, self._acquired_at
        )
        loop.call_soon_threadsafe(release, context=Context())
        if state is LeaseState.HELD:
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:  # none runs in this thread
        return None


def _release_dropped(
    remote: RemoteSemaphore, lease: Lease, since: float, acquired_at: str | None
) -> None:
    # A lost one that the server has not called gone may be held there still, and keeps its hub.
    if lease.state in _TAKEN and remote.leases.get(lease.number) is lease:
        if lease.state is LeaseState.HELD:
            log_dropped(remote, acquired_at)
        now = clock()
        _ = remote.release(lease, now, now - since)


# -- blocks of ``async with semaphore``


class EnteredBlock:
    """One ``async with semaphore``, whose exit the task *looked_up_by* has looked up.

    It is that exit. The statement keeps it alive, and code that only checks whether there is an
    exit does not.

    Attributes:
        permit: with which it was entered, until it is left.
    """

    __slots__ = ("__weakref__", "leave", "looked_up_by", "permit", "semaphore")

    semaphore: Any
    leave: Callable[..., Any]
    looked_up_by: "asyncio.Task[Any] | None"
    permit: Permit | None

    def __call__(self, *error: Any) -> Any:
        return self.leave(self.semaphore, *error, block=self)


class EnteredPermits:
    """The permits of one semaphore's blocks.

    Blocks that are not entered by the statement, but by an exit stack or by calls of
    ``__aenter__``, are known by their tasks.

    Attributes:
        looked_up: the block that was looked up last, until it is entered.
    """

    def __init__(self) -> None:
        self._by_task: weakref.WeakKeyDictionary[asyncio.Task[Any], list[Permit]] = (
            weakref.WeakKeyDictionary()
        )
        self.looked_up: weakref.ref[EnteredBlock] | None = None

    def add(self, permit: Permit) -> None:
        """The current task has entered a block under *permit* that it has not looked up."""
        task = asyncio.current_task()
        assert task is not None
        self._by_task[task] = [*self._by_task.get(task, ()), permit]

    def pop(self, block: EnteredBlock | None) -> Permit:
        """The permit of a block that is left, and was not entered by the statement.

        It is the current task's latest, or in a task that entered none the only one of this loop.

        Raises:
            RuntimeError: it is not known which block is meant. Nothing is changed.
        """
        if block is not None:
            block.looked_up_by = None  # looked up only to be called
        entered, task = self._by_task, asyncio.current_task()
        if task is None or task not in entered:
            task = self._only_task()
        *others, permit = entered.pop(task)
        if others:
            entered[task] = others
        return permit

    def _only_task(self) -> "asyncio.Task[Any]":
        loop = asyncio.get_running_loop()
        known = [ref() for ref in self._by_task.keyrefs()]  # at once: other threads may add theirs
        here = [task for task in known if task is not None and task.get_loop() is loop]
        blocks = sum(len(self._by_task[task]) for task in here)
        if blocks == 1:
            return here[0]
        raise RuntimeError(
            f"this task has not entered the block that it leaves, and {blocks} blocks are open in"
            " other tasks: use 'async with sem.acquire()', which knows its permit in any task"
        )


def exit_of_block(leave: Leave) -> Leave:
    """Decorate ``__aexit__``, so that every ``async with`` has one of its own.

    ``async with`` looks up ``__aexit__`` and then calls ``__aenter__``, with nothing in between.
    So a block knows its permit in whatever task it is left, as that of a generator may be.
    """
    return cast("Leave", _ExitOfBlock(leave))


class _ExitOfBlock:
    def __init__(self, leave: Callable[..., Any]) -> None:
        self._leave = leave

    def __get__(self, semaphore: Any, owner: type) -> Callable[..., Any]:
        if semaphore is None:  # as an exit stack looks it up
            return self._leave
        block = (
            EnteredBlock()
        )  # without a constructor, because each block in the program makes one
        block.semaphore, block.leave = semaphore, self._leave
        block.looked_up_by = block.permit = None
        try:
            block.looked_up_by = asyncio.current_task()
        except RuntimeError:  # no loop runs, so nothing is entered
            return block
        semaphore._entered.looked_up = weakref.ref(block)  # noqa: SLF001 - a part of its class
        return block
