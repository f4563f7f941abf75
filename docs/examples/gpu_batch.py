"""A batch job on a few GPU slots, shared by several processes.

    pip install 'redsem-async[embedded]'
    python gpu_batch.py

Four processes take images from one queue and share two GPU slots. The program starts a Redis
server if ``REDIS_URL`` is not set.
"""

import asyncio
import os
import sys
import time
from contextlib import ExitStack

from redis.asyncio import Redis

from redsem_async import Permit, PermitLost, Semaphore, connect
from redsem_async.testing import embedded_redis

PROCESSES = 4
SLOTS = 2
IMAGES = 40
KEYS = PENDING, DONE, BUSY, HERE, GO = [
    f"gpu-batch:{what}" for what in ("pending", "done", "busy", "here", "go")
]


def render(image: str, permit: Permit) -> str:
    """A placeholder for GPU work. It runs in a thread, which cannot be cancelled."""
    for _ in range(4):
        permit.check()  # so check between steps that the slot is still held
        time.sleep(0.005)
    return f"{image} by {os.getpid()}"


async def work(url: str) -> None:
    """One of the processes: take an image when a slot is free, until no image is left."""
    async with connect(url, decode_responses=True) as redis:
        slots = Semaphore(redis, "gpu-batch", SLOTS, lease=5, label=f"batch {os.getpid()}")
        if await redis.incr(HERE) == PROCESSES:  # the batch is small: start all processes together
            await redis.rpush(GO, *["go"] * PROCESSES)
        await redis.blpop(GO)
        while await redis.llen(PENDING):
            try:
                async with slots as permit:
                    await take_one(redis, permit)
            except PermitLost:
                continue  # the image is back in the queue


async def take_one(redis: Redis, permit: Permit) -> None:
    image = await redis.lpop(PENDING)
    if not isinstance(image, str):  # another process took the last one
        return
    busy = await redis.incr(BUSY)
    try:
        done = await asyncio.to_thread(render, image, permit)
        await redis.rpush(DONE, f"{busy} {done}")
    except BaseException:
        await redis.rpush(PENDING, image)
        raise
    finally:
        await redis.decr(BUSY)


async def main(url: str) -> None:
    async with connect(url, decode_responses=True) as redis:
        await redis.delete(*KEYS)
        await redis.rpush(PENDING, *[f"image {number}" for number in range(IMAGES)])
        processes = [
            await asyncio.create_subprocess_exec(sys.executable, __file__, url)
            for _ in range(PROCESSES)
        ]
        for process in processes:
            assert await process.wait() == 0
        done = await redis.lrange(DONE, 0, -1)
        await redis.delete(*KEYS)
    busiest = max(int(line.split()[0]) for line in done)
    workers = {line.split()[-1] for line in done}
    print(f"{len(done)} images by {len(workers)} processes, at most {busiest} at a time")


if __name__ == "__main__":
    if sys.argv[1:]:
        asyncio.run(work(sys.argv[1]))
    else:
        with ExitStack() as stack:
            redis_url = os.environ.get("REDIS_URL") or stack.enter_context(embedded_redis()).url
            asyncio.run(main(redis_url))
