"""The blocks that a task is inside, how a loss cancels them, and who waits for itself."""

import asyncio
import logging
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

from redsem_async._core.clock import now as clock
from redsem_async._core.errors import AcquireTimeout, BlockedBy
from redsem_async._core.log import facts
from redsem_async._hub.estimates import blocked_by_of
from redsem_async._hub.model import Lease, LeaseState, Request
from redsem_async._hub.remote_semaphore import MAX_REMEMBERED, RemoteSemaphore

logger = logging.getLogger("redsem_async")

Blocks = tuple[tuple[int, Lease], ...]
ENTERED: ContextVar[Blocks] = ContextVar("entered", default=())
"""The leases whose blocks the current task is inside, or was created inside. Each comes with the
id of the task that entered it, because the task itself may be dropped."""


class BlockGuard:
    """Guards a block. It cancels, once, the task that entered it when its permit is lost.

    It does so with ``cancel()`` and ``uncancel()``, like ``asyncio.timeout``, rather than with a
    cancel scope, because the body's own clean-up may await.
    """

    __slots__ = ("_cancelled", "_cancelling", "_later", "_lease", "_task")

    def __init__(
        self,
        lease: Lease,
        task: "asyncio.Task[Any]",
        cancel: bool,  # noqa: FBT001 - keywords cost time
    ) -> None:
        if around := ENTERED.get():  # those of generators may have ended elsewhere
            around = tuple(each for each in around if each[1].state is LeaseState.HELD)
        ENTERED.set((*around, (id(task), lease)))
        self._task = task
        self._lease = lease
        self._cancelling = task.cancelling()
        self._cancelled = False
        self._later: asyncio.Handle | None = None
        if cancel:
            lease.guard = self._lost

    def _lost(self) -> None:
        """The permit is lost."""
        loop = self._task.get_loop()
        if asyncio.current_task(loop) is self._task:
            # The body found out by itself, say with check(), so its next await is soon enough.
            self._later = loop.call_soon(self._cancel)
        else:
            self._cancel()

    def _cancel(self) -> None:
        self._cancelled = True
        self._task.cancel(f"a permit of {self._lease.address.name!r} was lost")

    def disarm(self, exc: BaseException | None) -> bool:
        """Whether the block ends by our cancellation alone."""
        self._lease.guard = None
        *around, last = ENTERED.get() or ((0, self._lease),)
        if last[1] is not self._lease:  # left in another order, or in another task
            around = [each for each in (*around, last) if each[1] is not self._lease]
        ENTERED.set(tuple(around))
        if self._later is not None:
            self._later.cancel()
        if not self._cancelled or asyncio.current_task() is not self._task:
            return False
        ours = self._task.uncancel() <= self._cancelling
        return ours and isinstance(exc, asyncio.CancelledError)


# -- tasks that wait for themselves, or for each other


def note_nested(remote: RemoteSemaphore, request: Request) -> None:
    """*request* of the current task waits forever, if for a permit that the task holds.

    Or for one whose holder may wait for a permit of the task.
    """
    around, task = ENTERED.get(), id(asyncio.current_task())
    if _holders(remote, request, around):
        remote.remind(request, partial(_log_nested, remote, request, around, task))
    elif opposite := _in_opposite_order(remote, around):
        remote.remind(request, partial(_log_opposite, remote, request, opposite), leases=3)


def if_nested(remote: RemoteSemaphore, request: Request, error: AcquireTimeout) -> AcquireTimeout:
    """*error*, the end of *request*, which says whether the task itself holds a permit."""
    holders = _holders(remote, request, ENTERED.get(), error.blocked_by)
    return replace(error, nested=True) if id(asyncio.current_task()) in holders else error


def _holders(
    remote: RemoteSemaphore, request: Request, around: Blocks, blocked_by: BlockedBy = "limit"
) -> list[int]:
    """The tasks that hold a permit for which *request*, made in the blocks *around*, may wait.

    By their ids. A wait for a rate ends by itself.
    """
    if blocked_by == "rate":
        return []
    return [
        task
        for task, lease in around
        if lease.state is LeaseState.HELD
        and remote.leases.get(lease.number) is lease
        and (blocked_by != "key" or lease.key == request.key)
    ]


def _in_opposite_order(remote: RemoteSemaphore, around: Blocks) -> list[Lease]:
    """Held leases of others, which this process also asked for in blocks of *remote*'s."""
    orders, here = remote.identity.orders, remote.address
    held = [lease for _, lease in around if lease.holding and lease.address != here]
    if len(orders) > MAX_REMEMBERED:
        orders.clear()
    orders.update((lease.address, here) for lease in held)
    return [lease for lease in held if (here, lease.address) in orders]


def _log_nested(remote: RemoteSemaphore, request: Request, around: Blocks, task: int) -> None:
    """*request* has waited for a lease. Log it if *task* seems to wait for itself."""
    if holders := _holders(remote, request, around, blocked_by_of(request)):
        holder = "it holds one itself" if task in holders else "the task that created it holds one"
        text = (
            "%s, and the wait never ends unless that one is released: release it first, acquire"
            " all permits in one step (permits=...), or pass a timeout"
        )
        _log(remote, request, text, holder)


def _log_opposite(remote: RemoteSemaphore, request: Request, opposite: list[Lease]) -> None:
    """*request* has waited for three leases. Log it if one of *opposite* is still held.

    Whether its waiters hold what *request* waits for is not known if they are in other processes.
    """
    if names := [lease.address.name for lease in opposite if lease.holding]:
        text = (
            "it is in a block of %r, and other tasks acquire these in the opposite order, so each"
            " may wait for the other forever: acquire them in one order everywhere, or pass a"
            " timeout"
        )
        _log(remote, request, text, names[0])


def _log(remote: RemoteSemaphore, request: Request, text: str, held: str) -> None:
    """Log, once for each semaphore, a wait of *request* that does not end by itself."""
    if "nested" in remote.logged_at or blocked_by_of(request) in ("paused", "back_off"):
        return
    now = remote.logged_at["nested"] = clock()
    waited = now - request.started
    extra = facts("nested", semaphore=remote.name, waited=waited)
    text = f"a task has waited %.3g s for a permit of %r while {text}"
    logger.warning(text, waited, remote.name, held, extra=extra)
