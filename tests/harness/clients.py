"""Clients and semaphores of the tests, and what the server has of them."""

from collections.abc import AsyncIterator
from typing import Any, Protocol, cast

from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, Permit, Semaphore
from redsem_async.testing import MemoryBackend
from tests.harness.proxy import Proxy
from tests.harness.wait import until

Client = Redis | MemoryBackend
Kind = type[Semaphore] | type[FairSemaphore]

KEYS = ("holders", "facts", "meta", "hubs", "limit", "queue")


class Connect(Protocol):
    """What the fixture of that name gives: a client for a URL, with options of redis-py's."""

    def __call__(self, url: str, **options: Any) -> Redis: ...


class Make(Protocol):
    """Makes a semaphore of the kind, client and name of the test."""

    def __call__(self, limit: int = 1, *, client: Any = None, **options: Any) -> AnySemaphore: ...


class MakePair(Protocol):
    """Makes two semaphores of one name, in two processes as far as the server can see."""

    def __call__(self, limit: int = 1, **options: Any) -> tuple[AnySemaphore, AnySemaphore]: ...


def key_of(semaphore: AnySemaphore, what: str) -> str:
    return f"redsem:{{{semaphore.name}}}:{what}"


async def tokens_of(admin: Redis, semaphore: AnySemaphore) -> list[Any]:
    """The fencing tokens that the server keeps."""
    facts: list[Any] = await admin.hvals(key_of(semaphore, "facts"))
    return [text.partition(b":")[0] for text in facts]


def hub_of(permit: Permit) -> str:
    return permit.id.partition(".")[0]


async def keys_of(redis: Redis, semaphore: AnySemaphore) -> list[bytes]:
    """Every key that the server keeps for *semaphore*."""
    keys = cast("AsyncIterator[bytes]", redis.scan_iter(f"*{semaphore.name}*", count=1000))
    return [key async for key in keys]


async def connection_of(admin: Redis, client_name: str) -> int | None:
    """The server's number for the connection of a hub, whose client has that name."""
    clients = await admin.client_list()
    found = [int(c["id"]) for c in clients if c["name"] == client_name and "P" in c["flags"]]
    assert len(found) <= 1, "a hub has one connection"
    return found[0] if found else None


async def kill_connection(admin: Redis, client_name: str) -> int:
    """CLIENT KILL the connection of a hub, which had that number."""
    number = await connection_of(admin, client_name)
    assert number is not None
    assert await admin.client_kill_filter(_id=str(number)) == 1
    return number


async def scripts_run(admin: Redis) -> int:
    """How many scripts the server was asked to run so far."""
    stats: dict[str, dict[str, Any]] = await admin.info("commandstats")
    calls = (stats.get(f"cmdstat_{command}", {}) for command in ("eval", "evalsha"))
    return sum(stat.get("calls", 0) for stat in calls)


async def connections(admin: Redis) -> int:
    """How many connections the server has, but for the one that asks."""
    clients: list[dict[str, str]] = await admin.client_list()
    own = str(await admin.client_id())
    return sum(client["id"] != own for client in clients)


async def disconnected(admin: Redis) -> None:
    """Wait until the server has noticed that all other connections are closed."""

    async def none_is_left() -> bool:
        return await connections(admin) == 0

    await until(none_is_left, "all connections are closed")


async def cut_off(proxy: Proxy, semaphore: AnySemaphore, admin: Redis) -> None:
    """Cut off the process that is first in line, and wait until the server has noticed."""
    hub = (await semaphore.status(1)).waiters[0].client.id
    proxy.refusing = True
    proxy.drop()

    async def nobody_listens() -> bool:
        [(_, listeners)] = await admin.pubsub_numsub(f"redsem:@{hub}")
        return listeners == 0

    await until(nobody_listens, "the server has noticed")
