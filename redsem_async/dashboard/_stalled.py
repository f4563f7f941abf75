"""Which processes have stalled, that is, were killed, stopped or cut off but hold or wait."""

from typing import NamedTuple

from redsem_async._core.lease import heartbeat_is_overdue, refresh_is_overdue
from redsem_async._integrations.discovery import SemaphoreInfo
from redsem_async._protocol.status import Client, Holder, SemaphoreStatus, Waiter


class Stalled(NamedTuple):
    """A stalled process.

    Attributes:
        client: the process.
        left: seconds until it loses the first permit, or else its places in the queue.
        holds: whether it holds permits.
    """

    client: Client
    left: float
    holds: bool


def is_unrefreshed(holder: Holder) -> bool:
    """Whether the permit expires soon, because its process does not refresh it."""
    lease, interval = holder.client.lease, holder.client.refresh_interval
    if lease is None or interval is None:
        return False
    return refresh_is_overdue(holder.expires_in, lease, interval)


def is_silent(waiter: Waiter, info: SemaphoreInfo) -> bool:
    """Whether the request leaves the queue soon, because its process sends no heartbeats."""
    lease, dead_in = waiter.client.lease, info.dead_in.get(waiter.client.id)
    return lease is not None and dead_in is not None and heartbeat_is_overdue(dead_in, lease)


def stalled(info: SemaphoreInfo, status: SemaphoreStatus | None) -> dict[str, Stalled]:
    """The stalled processes, by their ids."""
    found: dict[str, Stalled] = {}
    if status is None:
        return found
    for holder in status.holders:
        if (client := holder.client).id not in found and is_unrefreshed(holder):
            found[client.id] = Stalled(client, holder.expires_in, holds=True)
    for waiter in status.waiters:
        if (client := waiter.client).id not in found and is_silent(waiter, info):
            found[client.id] = Stalled(client, info.dead_in[client.id], holds=False)
    return found
