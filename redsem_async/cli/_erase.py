"""Deletes the temporary semaphores of `bench` and `doctor`."""

from typing import Any

from redsem_async import AnySemaphore, Semaphore
from redsem_async._core.keys import Address, Mode


async def erase(client: Any, semaphore: AnySemaphore, prefix: str) -> None:
    """Clear *semaphore*, and delete the keys that remain for some time after a clear.

    Only safe if no other process uses it.
    """
    await semaphore.clear()
    mode: Mode = "zset+slots" if isinstance(semaphore, Semaphore) else "fair+keys+slots"
    address = Address(mode, prefix, semaphore.name, "server")
    await client.unlink(*address.keys, *address.first_keys)
