"""Deletes the temporary semaphores of `bench`, `demo` and `doctor`."""

import asyncio
from contextlib import suppress
from typing import Any

from redsem_async import AnySemaphore, Semaphore, SemaphoreError
from redsem_async._core.keys import Address, Mode


async def erase(client: Any, semaphore: AnySemaphore, prefix: str) -> None:
    """Clear *semaphore*, and delete the keys that remain for some time after a clear.

    Only safe if no other process uses it. Gives up after a second, because during an outage it
    would retry for a whole lease.
    """
    mode: Mode = "zset+slots" if isinstance(semaphore, Semaphore) else "fair+keys+slots"
    address = Address(mode, prefix, semaphore.name, "server")
    with suppress(SemaphoreError, TimeoutError):
        async with asyncio.timeout(1.0):
            await semaphore.clear()
            await client.unlink(*address.keys, *address.first_keys)
