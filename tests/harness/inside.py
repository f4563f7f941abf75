"""What a semaphore knows, which its API does not tell: the one place that reaches for it."""

from redis.asyncio import Redis

from redsem_async import AnySemaphore
from redsem_async._api.backends import backend_of
from redsem_async._hub.hub import hub_for
from redsem_async._hub.lease import Lease
from redsem_async._hub.request import Request
from redsem_async._hub.state import SemaphoreState


def state_of(semaphore: AnySemaphore) -> SemaphoreState:
    return semaphore._bound().remote.state


def kept_leases_of(semaphore: AnySemaphore) -> list[Lease]:
    """The leases without a permit, which `linger` keeps. The list changes with them."""
    return state_of(semaphore).idle


def requests_of(semaphore: AnySemaphore) -> list[Request]:
    """What waits in this process, as the server told it."""
    return [*state_of(semaphore).waiting]


def names_in_use(redis: Redis) -> list[str]:
    """The semaphores that the hub of *redis* still knows."""
    return [address.name for address in hub_for(backend_of(redis), redis)._semaphores]
