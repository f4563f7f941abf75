"""Semaphores of the command's own, which leave nothing behind."""

from typing import Any

from redsem_async import AnySemaphore, Semaphore
from redsem_async._core.keys import Address, Mode


async def erase(client: Any, semaphore: AnySemaphore, prefix: str = "redsem") -> None:
    """Clear *semaphore*, and delete what stays for a while after that: nobody else uses it."""
    await semaphore.clear()
    mode: Mode = "zset" if isinstance(semaphore, Semaphore) else "fair"
    await client.unlink(*Address(mode, prefix, semaphore.name, "server").keys)
