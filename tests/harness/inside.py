"""What the process of a semaphore has of it, which no caller sees: its leases, its connection."""

from redsem_async import AnySemaphore, Permit
from redsem_async._hub.lease import Lease
from redsem_async._hub.remote_semaphore import RemoteSemaphore
from redsem_async._protocol.backend import Link
from tests.harness.wait import until


def remote_of(semaphore: AnySemaphore) -> RemoteSemaphore:
    """What the hub of the running loop keeps for *semaphore*."""
    return semaphore._bound().remote


def lease_of(permit: Permit) -> Lease:
    """What *permit* stands for; to read its token or id here does not end its reuse."""
    return permit._lease


def kept_by(semaphore: AnySemaphore) -> list[Lease]:
    """The leases that are kept to be reused: the list itself, which changes with them."""
    return remote_of(semaphore).state.idle


def link_of(semaphore: AnySemaphore) -> Link | None:
    """The connection that the hub has now."""
    return remote_of(semaphore).state.route.link.link


async def link_is_lost(semaphore: AnySemaphore) -> None:
    """Wait until the hub knows that it has no connection any more."""
    await until(lambda: link_of(semaphore) is None, "the link is lost")
