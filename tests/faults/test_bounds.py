"""Nothing that a program asks for makes one command, or one write, as large as it likes."""

import asyncio

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, Semaphore
from redsem_async._core.keys import new_hub_id, parse_permit_id
from redsem_async._hub.operations.acquire import MAX_ACQUIRES
from redsem_async._hub.operations.refresh import MAX_REFRESHES
from redsem_async._hub.operations.release import MAX_RELEASES
from redsem_async._hub.window import MAX_WINDOW
from tests.harness.clients import Kind, hub_of
from tests.harness.proxy import Proxy, Sent

MANY = 3000


def ids_in(sent: Sent, before: int) -> int:
    """How many ids a script was given, behind its keys, the common arguments and its own."""
    keys = int(sent.arguments[2])
    return len(sent.arguments) - 3 - keys - 4 - before


async def test_batches_are_bounded(kind: Kind, proxied: Redis, proxy: Proxy) -> None:
    """Redis runs one script at a time: thousands of ids are many short ones."""
    semaphore = kind(proxied, "jobs", MANY, lease=30.0)
    permits = await asyncio.gather(*(semaphore.acquire() for _ in range(MANY)))
    await asyncio.gather(*(permit.refresh() for permit in permits))
    await asyncio.gather(*(permit.release() for permit in permits))
    for operation, before, most in (
        ("acquire", 6, MAX_ACQUIRES),
        ("refresh", 1, MAX_REFRESHES),
        ("release", 2, MAX_RELEASES),
    ):
        sizes = [ids_in(sent, before) for sent in proxy.operations(operation)]
        assert sum(sizes) >= MANY
        assert max(sizes) <= most


async def test_letters_on_their_way_are_bounded(kind: Kind, proxied: Redis, proxy: Proxy) -> None:
    """What waits for a slow server waits here, and not in its buffers."""
    semaphores = [kind(proxied, f"jobs {number}", 1) for number in range(100)]
    await asyncio.gather(*(semaphore.reap() for semaphore in semaphores))
    before = len(proxy.sent)
    held = proxy.hold("acquire")
    acquiring = [asyncio.ensure_future(semaphore.acquire()) for semaphore in semaphores]
    await asyncio.wait_for(held.struck.wait(), 2)
    await asyncio.sleep(0.2)  # nothing tells that nothing more comes
    assert len(proxy.sent) - before <= MAX_WINDOW
    held.lift()
    for permit in await asyncio.gather(*acquiring):
        assert await permit.release()


def test_ids_cannot_be_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 bits of the system's randomness, whatever anybody has seeded."""

    def of_the_system(size: int) -> str:
        return f"{size} bytes"

    monkeypatch.setattr("secrets.token_hex", of_the_system)
    assert new_hub_id() == "16 bytes"


async def test_every_hub_draws_an_id_of_its_own(client_a: Redis, client_b: Redis) -> None:
    """Two clients, and one that comes back."""
    ids: set[str] = set()
    for redis in (client_a, client_b):
        for kind in (Semaphore, FairSemaphore):
            async with kind(redis, kind.__name__, 1) as permit:
                assert parse_permit_id(permit.id) is not None
                ids.add(hub_of(permit))
    assert len(ids) == 2
