"""Between the grant and its caller: a claim that is GRANTED, because it has to be confirmed."""

import asyncio
import time
from collections import OrderedDict

from redis.asyncio import Redis

from redsem_async import (
    AnySemaphore,
    FairSemaphore,
    PermitLost,
    Semaphore,
    SemaphoreClosed,
    aclose,
)
from redsem_async._hub.claim import Claim, State
from redsem_async.testing import MemoryBackend
from tests.harness.wait import all_free, soon, until


class Unconfirmed:
    """A semaphore whose grants nobody confirms until `confirm` is called."""

    def __init__(self, semaphore: AnySemaphore) -> None:
        self.remote = semaphore._bound().remote
        self.claims: list[Claim] = []
        self.remote.handout._confirm = self.claims.append

    async def granted(self) -> Claim:
        await until(lambda: bool(self.claims))
        assert self.claims[0].state is State.GRANTED
        return self.claims[0]


async def test_released_by_its_id_before_its_caller_has_it() -> None:
    """No push message tells the hub that released it: the caller must not get it any more."""
    backend = MemoryBackend()
    sem = FairSemaphore(backend, "jobs", 1, min_replicas=1)
    confirming = Unconfirmed(sem)
    acquiring = asyncio.create_task(sem.acquire())
    claim = await confirming.granted()
    first = claim.id
    await sem.release(first)
    confirming.remote.handout.confirmed(claim)
    assert not acquiring.done()
    await until(lambda: len(confirming.claims) == 2)
    confirming.remote.handout.confirmed(claim)
    permit = await soon(acquiring)
    assert permit.id != first
    assert await permit.release()
    await all_free(sem)


async def test_closed_before_its_caller_has_it() -> None:
    """What is closed ends with an error, and not in silence."""
    backend = MemoryBackend()
    sem = FairSemaphore(backend, "jobs", 1, min_replicas=1)
    confirming = Unconfirmed(sem)
    acquiring = asyncio.create_task(sem.acquire())
    claim = await confirming.granted()
    confirming.remote.close(claim)
    await asyncio.wait([acquiring], timeout=5)
    assert isinstance(acquiring.exception(), SemaphoreClosed)
    await aclose(backend)


async def test_an_adopt_that_is_read_too_late_is_no_other_permit(client: Redis, name: str) -> None:
    """The job is the adopted permit's: another one, with another token, would not do."""
    lease = 0.3
    giver, taker = (FairSemaphore(client, name, 1, lease=lease) for _ in range(2))
    permit_id = await (await giver.acquire()).detach(30)
    adopting = asyncio.ensure_future(taker.adopt(permit_id))
    remote = taker._bound().remote

    def sent() -> bool:
        return any(c.state is State.SENT for c in remote.ledger.by_number.values())

    while not sent():  # noqa: ASYNC110 - the very turn of the loop
        await asyncio.sleep(0)
    time.sleep(2 * lease)  # noqa: ASYNC251 - the loop stands still for longer than the lease
    await asyncio.wait([adopting], timeout=5)
    assert isinstance(adopting.exception(), PermitLost)


class CountingDict(OrderedDict[Claim, None]):
    """Counts how often an entry is moved."""

    moved = 0

    def move_to_end(self, key: Claim, last: bool = True) -> None:
        self.moved += 1
        super().move_to_end(key, last)


async def test_many_waiters_that_ask_anew_keep_their_order_at_once() -> None:
    """After a clear all ask again: what that costs grows with their number, not its square."""
    backend = MemoryBackend()
    sem = Semaphore(backend, "jobs", 1)
    remote, loop = sem._bound().remote, asyncio.get_running_loop()
    waiting = remote.ledger.waiting = CountingDict()
    claims = [
        Claim(remote.address, sem._terms, 1, float(number), True, loop.create_future())
        for number in range(1000)
    ]
    remote.waiters.must_wait(claims)
    for claim in reversed(claims):
        remote.ledger.ask_anew(claim)
    for claim in claims:
        claim.written()
    for start in range(0, 1000, 250):  # four commands, each with its reply
        remote.waiters.must_wait(claims[start : start + 250])
    assert list(waiting) == claims
    assert waiting.moved <= 10 * 1000
    remote.ledger.new.clear()
    remote.ledger.waiting.clear()
    await aclose(backend)
