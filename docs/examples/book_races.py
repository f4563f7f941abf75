"""The semaphores of *Redis in Action*, 6.3, and three ways in which they exceed their limit of 1.

Each case runs the book's commands in an order in which two processes can send them. The same is
then tried with a `FairSemaphore`, whose steps are one script on the server's clock.

    REDIS_URL=redis://localhost:6379 python book_races.py
"""

import asyncio
import os
import secrets
import time

from redis.asyncio import Redis

from redsem_async import FairSemaphore, connect

LIMIT = 1
URL = os.environ.get("REDIS_URL", "redis://localhost:6379")


async def basic(redis: Redis, name: str, now: float, timeout: float = 10.0) -> bool:
    """`acquire_semaphore`: drop the old, add an identifier by the caller's clock, and rank it."""
    identifier = secrets.token_hex(8)
    async with redis.pipeline() as steps:
        steps.zremrangebyscore(name, "-inf", now - timeout)
        steps.zadd(name, {identifier: now})
        steps.zrank(name, identifier)
        rank = (await steps.execute())[-1]
    if rank < LIMIT:
        return True
    await redis.zrem(name, identifier)
    return False


async def draw(redis: Redis, name: str) -> int:
    """The first round trip of `acquire_fair_semaphore` draws a number from a counter."""
    return int(await redis.incr(f"{name}:counter"))


async def take(redis: Redis, name: str, number: int) -> bool:
    """The second one adds an identifier with that number, and looks at its rank."""
    identifier = secrets.token_hex(8)
    async with redis.pipeline() as steps:
        steps.zadd(f"{name}:owners", {identifier: number})
        steps.zrank(f"{name}:owners", identifier)
        rank = (await steps.execute())[-1]
    return bool(rank < LIMIT)


async def ours(here: Redis, there: Redis, name: str) -> int:
    """How many of two processes a FairSemaphore admits. The second has a far shorter lease."""
    first = FairSemaphore(here, name, LIMIT)
    second = FairSemaphore(there, name, LIMIT, lease=0.1)
    tried = await asyncio.gather(first.try_acquire(), second.try_acquire())
    permits = [permit for permit in tried if permit is not None]
    for permit in permits:
        await permit.release()
    return len(permits)


async def main() -> None:
    async with connect(URL) as here, connect(URL) as there:
        name, now = f"book:{secrets.token_hex(8)}", time.time()

        # The second clock is five seconds behind, so its identifier has the lowest score.
        clocks = [await basic(here, f"{name}:1", now), await basic(there, f"{name}:1", now - 5)]
        # The second process has a timeout of a second, and removes the identifier of the first.
        timeouts = [
            await basic(here, f"{name}:2", now),
            await basic(there, f"{name}:2", now + 2, timeout=1),
        ]
        # The first process draws its number first, and takes its place last.
        early, late = await draw(here, name), await draw(there, name)
        trips = [await take(there, name, late), await take(here, name, early)]

        for case, admitted in (("clocks", clocks), ("timeouts", timeouts), ("trips", trips)):
            mine = await ours(here, there, f"{name}:{case}")
            print(f"{case}: the book admits {sum(admitted)}, FairSemaphore {mine}")
        await here.delete(f"{name}:1", f"{name}:2", f"{name}:counter", f"{name}:owners")


asyncio.run(main())
