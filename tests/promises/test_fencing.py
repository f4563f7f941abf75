"""Fencing tokens: a permit that was granted later has a higher one."""

import asyncio

from tests.harness.clients import MakePair


async def test_tokens_grow_strictly(pair: MakePair) -> None:
    """What was granted later has a higher one, whichever process asked, however many at once."""
    here, there = pair(50)
    highest = 0
    for _ in range(10):
        permits = await asyncio.gather(*(sem.acquire() for sem in (here, there) * 10))
        tokens = sorted(permit.fencing_token for permit in permits)
        assert tokens[0] > highest
        assert len(set(tokens)) == len(tokens)
        highest = tokens[-1]
        await asyncio.gather(*(permit.release() for permit in permits))


async def test_tokens_grow_across_clear(pair: MakePair) -> None:
    """The counter is deleted with the keys, and must not begin anew."""
    here, there = pair(1_000)
    highest = 0
    for _ in range(5):
        permits = await asyncio.gather(*(here.acquire() for _ in range(600)))
        assert min(permit.fencing_token for permit in permits) > highest
        highest = max(permit.fencing_token for permit in permits)
        await here.clear()
        permit = await there.acquire()
        assert permit.fencing_token > highest
        highest = permit.fencing_token
        await permit.release()
        del permits
