"""Deletes the temporary semaphores of `bench`, `demo` and `doctor`."""

import asyncio
from contextlib import suppress
from typing import Any

from redsem_async import AnySemaphore, Semaphore, SemaphoreError
from redsem_async._core.keys import Address, Mode


async def erase(client: Any, semaphore: AnySemaphore, prefix: str) -> None:
    """Delete *semaphore*, and the keys that would remain for some time after that.

    Only safe if no other process uses it. Gives up after a second, because during an outage it
    would retry for a whole lease.
    """
    mode: Mode = "zset+slots" if isinstance(semaphore, Semaphore) else "fair+share+slots"
    address = Address(mode, prefix, semaphore.name, "server")
    with suppress(SemaphoreError, TimeoutError):
        async with asyncio.timeout(1.0):
            await semaphore.delete()
            await client.unlink(*address.keys)
