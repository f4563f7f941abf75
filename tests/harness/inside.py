"""What the process of a semaphore has of it, which no caller sees: its leases, its connection."""

from redis.asyncio import Redis

from redsem_async import AnySemaphore, Permit
from redsem_async._api.options import backend_of
from redsem_async._core.keys import Address
from redsem_async._hub.hub import hub_for
from redsem_async._hub.model import Lease, Request
from redsem_async._hub.remote_semaphore import RemoteSemaphore
from redsem_async._hub.state import SemaphoreState
from redsem_async._protocol.backend import Link
from redsem_async.testing import MemoryBackend


def remote_of(semaphore: AnySemaphore) -> RemoteSemaphore:
    """What the hub of the running loop keeps for *semaphore*."""
    return semaphore._bound()


def lease_of(permit: Permit) -> Lease:
    """What *permit* stands for."""
    return permit._lease


def link_of(semaphore: AnySemaphore) -> Link | None:
    """The connection that the hub has now."""
    return remote_of(semaphore).route.link_state.link


def state_of(semaphore: AnySemaphore) -> SemaphoreState:
    return remote_of(semaphore)


def requests_of(semaphore: AnySemaphore) -> list[Request]:
    """What waits in this process, as the server told it."""
    return [*state_of(semaphore).waiting]


def beat(semaphore: AnySemaphore) -> None:
    """Send a heartbeat, as is done every third of a lease."""
    remote = remote_of(semaphore)
    remote.beat()
    remote.writer.settle(remote)


def known_to(client: Redis | MemoryBackend) -> dict[Address, RemoteSemaphore]:
    """The semaphores that the hub of *client* still knows."""
    return dict(hub_for(backend_of(client))._semaphores)
