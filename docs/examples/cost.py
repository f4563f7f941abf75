"""What an acquire and its release cost: scripts, and the commands that run in them.

    REDIS_URL=redis://localhost:6379 python cost.py

On a server that nothing else uses, because the server counts the commands of all clients.
"""

import asyncio
import os

from redis.asyncio import Redis

from redsem_async import FairSemaphore, Rate


async def calls(redis: Redis) -> dict[str, int]:
    stats = await redis.info("commandstats")
    return {name: each["calls"] for name, each in stats.items() if name != "cmdstat_info"}


async def cost(redis: Redis, sem: FairSemaphore, key: str | None = None) -> None:
    await (await sem.acquire(key=key)).release()  # connects, and loads the scripts
    before = await calls(redis)
    await (await sem.acquire(key=key)).release()
    spent = {name: count - before.get(name, 0) for name, count in (await calls(redis)).items()}
    print(sem.name, spent.pop("cmdstat_evalsha"), "scripts", sum(spent.values()), "commands")


async def main() -> None:
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        await cost(redis, FairSemaphore(redis, "limit", 4))
        await cost(redis, FairSemaphore(redis, "key_limit", 4, key_limit=2), key="acme")
        await cost(redis, FairSemaphore(redis, "share", 4, share=True), key="acme")
        await cost(redis, FairSemaphore(redis, "slots", slots=range(4)))
        await cost(redis, FairSemaphore(redis, "rate", 4, rate=Rate(100)))


asyncio.run(main())
