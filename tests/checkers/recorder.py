"""What clients do and are told, noted by wrapping the public interface."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from redsem_async import AcquireTimeout, AnySemaphore, BackendError, Permit, PermitLost

from .linearize import Operation, Result

Release = Callable[[], Awaitable[bool]]


class Recorder:
    """The history of one semaphore, as all its clients in this process saw it."""

    def __init__(self) -> None:
        self.history: list[Operation] = []
        self._acquired: dict[Permit, Operation] = {}
        self._seen_in_line: dict[str, float] = {}  # by id

    async def acquire(
        self, semaphore: AnySemaphore, who: str, *, timeout: float | None = None, permits: int = 1
    ) -> Permit | None:
        """Acquire, and note what came of it. ``None`` when nothing did."""
        operation = Operation(
            who, time.monotonic(), math.inf, Result.UNKNOWN, semaphore.limit, permits
        )
        self.history.append(operation)
        try:
            permit = await semaphore.acquire(timeout=timeout, permits=permits)
        except AcquireTimeout:
            if timeout == 0:
                operation.result, operation.returned = Result.FULL, time.monotonic()
            return None
        except BackendError:
            return None
        operation.returned = time.monotonic()
        operation.result, operation.token = Result.GRANTED, permit.fencing_token
        operation.trusted_until = operation.called  # perhaps it came too late to be trusted
        operation.known_by = self._seen_in_line.get(permit.id, math.inf)
        self._acquired[permit] = operation
        self.look(permit)
        return permit

    async def in_line(self, semaphore: AnySemaphore) -> None:
        """Note who stands in line by now. A request's id is that of the permit it may become."""
        status = await semaphore.status()
        now = time.monotonic()
        for waiter in status.waiters:
            self._seen_in_line.setdefault(waiter.id, now)

    def look(self, permit: Permit) -> None:
        """Note for how long *permit* may be trusted: it does not leave by itself before that.

        To be called whenever it may have been refreshed, the last time before it may be lost.
        """
        left = permit.expires_in
        if left > 0:
            self._acquired[permit].trusted_until = time.monotonic() + left

    async def detach(self, permit: Permit, expires_in: float) -> None:
        """Detach, so that the permit ends by itself, unless it is lost already."""
        operation = self._acquired[permit]
        ends = time.monotonic() + expires_in
        try:
            await permit.detach(expires_in)
        except (BackendError, PermitLost):
            operation.trusted_until = min(operation.trusted_until, ends)
        else:
            operation.trusted_until = ends

    async def release(self, permit: Permit, who: str) -> bool | None:
        """Release, and note what came of it."""
        return await self._release(self._acquired[permit], who, permit.release, permit)

    async def release_by_id(
        self, semaphore: AnySemaphore, permit: Permit, who: str
    ) -> bool | None:
        """Release by the id, as another process would."""
        operation = self._acquired[permit]
        return await self._release(operation, who, lambda: semaphore.release(permit.id), None)

    async def _release(
        self, of: Operation, who: str, release: Release, permit: Permit | None
    ) -> bool | None:
        operation = Operation(who, time.monotonic(), math.inf, Result.UNKNOWN, of=of)
        self.history.append(operation)
        try:
            held = await release()
        except (BackendError, asyncio.CancelledError):
            return None
        operation.returned = time.monotonic()
        operation.result = Result.RELEASED if held else Result.NOT_HELD
        operation.lost = permit is not None and permit.lost
        return held
