"""What an acquire and its release cost: scripts, and the commands that run in them.

    REDIS_URL=redis://localhost:6379 python cost.py

On a server that nothing else uses, because the server counts the commands of all clients.
"""

import asyncio
import os

from redis.asyncio import Redis

from redsem_async import FairSemaphore


async def calls(redis: Redis) -> dict[str, int]:
    stats = await redis.info("commandstats")
    return {name: each["calls"] for name, each in stats.items() if name != "cmdstat_info"}


async def main() -> None:
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        sem = FairSemaphore(redis, "cost", limit=4)
        await (await sem.acquire()).release()  # connects, and loads the scripts
        before = await calls(redis)
        await (await sem.acquire()).release()
        spent = {name: count - before.get(name, 0) for name, count in (await calls(redis)).items()}
        print(spent.pop("cmdstat_evalsha"), "scripts,", sum(spent.values()), "commands in them")


asyncio.run(main())
