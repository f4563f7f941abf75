"""Finish something although this task is cancelled."""

import asyncio
from typing import Any

import anyio


async def finish(future: "asyncio.Future[Any]", timeout: float) -> None:
    """Wait until *future* is done, for *timeout* seconds, and only then pass a cancellation on.

    The future itself is never cancelled. An anyio scope repeats its cancellation until the task
    has left it, so a shield keeps it out. A task's own cancellation comes once for each call of
    ``cancel()``, and is remembered.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not future.done() and (left := deadline - loop.time()) > 0:
            try:
                await asyncio.wait([future], timeout=left)
            except asyncio.CancelledError as cancellation:
                cancelled = cancellation
    if cancelled is not None:
        raise cancelled
