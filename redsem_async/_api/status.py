"""What ``status()`` gives: how a semaphore stands, for people and programs to read."""

from dataclasses import dataclass
from typing import cast

from redsem_async._core.keys import Mode
from redsem_async._protocol.hub_info import facts_of
from redsem_async._protocol.replies import StatusReply


@dataclass(frozen=True, slots=True)
class Client:
    """A process that holds or waits, as it introduced itself.

    Attributes:
        id: of its connection to the semaphores; a process that was idle has another one.
        label: what it calls itself, if anything.
        host: its host name.
        pid: its process id there.
        limit: the limit that it declares.
    """

    id: str
    label: str | None = None
    host: str | None = None
    pid: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """A held permit.

    Attributes:
        id: of the permit.
        client: who holds it.
        age: seconds since it was granted, by the semaphore's clock.
        expires_in: seconds after which it ends unless it is refreshed.
        fencing_token: of the permit.
        permits: how many permits it stands for.
    """

    id: str
    client: Client
    age: float
    expires_in: float
    fencing_token: int
    permits: int


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request that waits; in ZSET mode, a process with requests that wait.

    Attributes:
        id: of the request, which will be the permit's; of the client in ZSET mode.
        client: who waits.
        position: 0 for the head of the line.
        age: seconds since it joined the line, by the semaphore's clock; 0 in ZSET mode.
        permits: how many permits it asks for; in ZSET mode, how many requests wait there.
    """

    id: str
    client: Client
    position: int
    age: float
    permits: int


@dataclass(frozen=True, slots=True)
class SemaphoreStatus:
    """How a semaphore stood at one moment.

    Attributes:
        name: of the semaphore.
        limit: the limit in force: the set one, or else this client's own.
        held: permits in use.
        available: permits free under that limit; never negative.
        waiting: requests that wait. In ZSET mode, what the processes last announced.
        holders: the first of them by expiry.
        waiters: the first of them in line.
        set_limit: the limit that was set with ``set_limit``, if any.
    """

    name: str
    limit: int
    held: int
    available: int
    waiting: int
    holders: tuple[Holder, ...]
    waiters: tuple[Waiter, ...]
    set_limit: int | None = None


def status_of(name: str, declared: int, mode: Mode, reply: StatusReply) -> SemaphoreStatus:
    """Put a server's answer into words."""
    clients = {hub: client_of(hub, description) for hub, description in reply.hubs.items()}
    limit = declared if reply.set_limit is None else reply.set_limit

    def client(identity: str) -> Client:
        hub = identity.partition(".")[0]
        return clients.get(hub) or Client(hub)

    def age(drawn: int) -> float:
        # Tokens and tickets follow the clock, in microseconds.
        return max(0.0, (reply.now_us - drawn) / 1e6)

    return SemaphoreStatus(
        name=name,
        limit=limit,
        held=reply.held,
        available=max(0, limit - reply.held),
        waiting=reply.waiting,
        holders=tuple(
            Holder(
                id=entry.id,
                client=client(entry.id),
                age=age(entry.token),
                expires_in=entry.left_ms / 1000,
                fencing_token=entry.token,
                permits=entry.permits,
            )
            for entry in reply.holders
        ),
        waiters=tuple(
            Waiter(
                id=entry.id,
                client=client(entry.id),
                position=position,
                age=age(entry.ticket) if mode == "fair" else 0.0,
                permits=entry.permits,
            )
            for position, entry in enumerate(reply.line)
        ),
        set_limit=reply.set_limit,
    )


def client_of(hub: str, description: str) -> Client:
    """The process that is known as *hub*, as it describes itself."""
    facts = facts_of(description)
    return Client(
        id=hub,
        label=cast("str | None", facts.get("label")),
        host=cast("str | None", facts.get("host")),
        pid=cast("int | None", facts.get("pid")),
        limit=cast("int | None", facts.get("limit")),
    )
