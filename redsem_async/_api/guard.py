"""Guards a block: cancels the task that entered it, when the permit of the block is lost."""

import asyncio
from typing import Any

from redsem_async._hub.claim import Claim
from redsem_async._hub.ledger import Ledger


class Guard:
    """Cancels the task once.

    As ``asyncio.timeout`` does, by ``cancel()`` and ``uncancel()``, and not by a cancel scope:
    the body's own clean-up may await.
    """

    __slots__ = ("_cancelled", "_cancelling", "_claim", "_inside", "_later", "_task")

    def __init__(
        self, ledger: Ledger, claim: Claim, task: "asyncio.Task[Any]", *, cancel: bool
    ) -> None:
        self._inside = ledger.inside
        self._inside.setdefault(id(task), []).append(claim)
        self._task = task
        self._claim = claim
        self._cancelling = task.cancelling()
        self._cancelled = False
        self._later: asyncio.Handle | None = None
        if cancel:
            claim.on_lost = self._on_lost

    def _on_lost(self) -> None:
        if asyncio.current_task(self._task.get_loop()) is self._task:
            # The body found out by itself, with check() say: its next await comes soon enough.
            self._later = self._task.get_loop().call_soon(self._cancel)
        else:
            self._cancel()

    def _cancel(self) -> None:
        self._cancelled = True
        self._task.cancel(f"a permit of {self._claim.address.name!r} was lost")

    def disarm(self, exc: BaseException | None) -> bool:
        """Whether the block ends by our cancellation alone."""
        self._claim.on_lost = None
        claims = self._inside[id(self._task)]
        claims.remove(self._claim)
        if not claims:
            del self._inside[id(self._task)]
        if self._later is not None:
            self._later.cancel()
        if not self._cancelled or asyncio.current_task() is not self._task:
            return False
        ours = self._task.uncancel() <= self._cancelling
        return ours and isinstance(exc, asyncio.CancelledError)
