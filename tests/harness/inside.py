"""What a semaphore knows, which its API does not tell: the one place that reaches for it."""

import asyncio
from typing import Any

from redis.asyncio import Redis

from redsem_async import AnySemaphore
from redsem_async._api.backends import backend_of
from redsem_async._hub.hub import hub_for
from redsem_async._hub.lease import Lease
from redsem_async._hub.request import Request
from redsem_async._hub.state import SemaphoreState
from redsem_async.testing import MemoryBackend


def state_of(semaphore: AnySemaphore) -> SemaphoreState:
    return semaphore._bound().remote.state


def kept_leases_of(semaphore: AnySemaphore) -> list[Lease]:
    """The leases without a permit, which `linger` keeps. The list changes with them."""
    return state_of(semaphore).idle


def requests_of(semaphore: AnySemaphore) -> list[Request]:
    """What waits in this process, as the server told it."""
    return [*state_of(semaphore).waiting]


async def is_in_flight(semaphore: AnySemaphore) -> None:
    """Wait for the very turn of the loop in which an acquire is written."""
    while not state_of(semaphore).acquires_in_flight:  # noqa: ASYNC110
        await asyncio.sleep(0)


def names_in_use(redis: Redis) -> list[str]:
    """The semaphores that the hub of *redis* still knows."""
    return [address.name for address in hub_for(backend_of(redis), redis)._semaphores]


def any_is_active(redis: Redis) -> bool:
    """Whether anything is held, waited for or to be written over *redis*."""
    return any(
        remote.active for remote in [*hub_for(backend_of(redis), redis)._semaphores.values()]
    )


def only_state_in(memory: MemoryBackend) -> Any:
    """What the specification stores of the only semaphore in *memory*."""
    (semaphore,) = memory._store._semaphores.values()
    return semaphore.state


def beat(semaphore: AnySemaphore) -> None:
    """Send a heartbeat, as is done every third of a lease."""
    semaphore._bound().remote.change(SemaphoreState.beat)
