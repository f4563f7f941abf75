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
from redsem_async._hub.remote_semaphore import RemoteSemaphore

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


# -- tasks that wait for themselves


def note_nested(remote: RemoteSemaphore, request: Request) -> None:
    """*request* of the current task waits forever, if for a permit that the task holds."""
    around = ENTERED.get()
    if "nested" not in remote.logged_at and _holders(remote, request, around):
        task = id(asyncio.current_task())
        remote.remind(request, partial(_log_nested, remote, request, around, task))


def if_nested(remote: RemoteSemaphore, request: Request, error: AcquireTimeout) -> AcquireTimeout:
    """*error*, the end of *request*, which says whether the task itself holds a permit."""
    holders = _holders(remote, request, ENTERED.get(), error.blocked_by)
    return replace(error, nested=True) if id(asyncio.current_task()) in holders else error


def _holders(
    remote: RemoteSemaphore, request: Request, around: Blocks, blocked_by: BlockedBy = "limit"
) -> list[int]:
    """The tasks that hold a permit for which *request*, made in the blocks *around*, may wait.

    By their ids.
    """
    return [
        task
        for task, lease in around
        if lease.state is LeaseState.HELD
        and remote.leases.get(lease.number) is lease
        and (blocked_by != "key" or lease.key == request.key)
    ]


def _log_nested(remote: RemoteSemaphore, request: Request, around: Blocks, task: int) -> None:
    """*request* has waited for a lease. Log it if *task* seems to wait for itself."""
    blocked_by, now = blocked_by_of(request), clock()
    holders = _holders(remote, request, around, blocked_by)
    if not holders or blocked_by in ("paused", "back_off") or "nested" in remote.logged_at:
        return
    remote.logged_at["nested"] = now
    holder = "it holds one itself" if task in holders else "the task that created it holds one"
    text = (
        "a task has waited %.3g s for a permit of %r while %s, and the wait never ends unless"
        " that one is released: release it first, acquire all permits at once (permits=...),"
        " or pass a timeout"
    )
    waited = now - request.started
    extra = facts("nested", semaphore=remote.name, waited=waited)
    logger.warning(text, waited, remote.name, holder, extra=extra)
