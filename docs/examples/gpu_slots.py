"""Worker processes that each pin themselves to a GPU of their own.

    pip install 'redsem-async[embedded]'
    python gpu_slots.py

Each process takes a slot, sets ``CUDA_VISIBLE_DEVICES`` to it, and then starts its work. If the
process dies, its GPU is free for the next one after a lease. The program starts a Redis server if
``REDIS_URL`` is not set.
"""

import asyncio
import os
import sys
from contextlib import ExitStack

from redsem_async import Semaphore, connect
from redsem_async.testing import embedded_redis

GPUS = range(2)
LEASE = 2.0  # seconds; the GPU of a process that died is free after that time


async def work(url: str) -> None:
    """One of the processes: work on the GPU that the permit stands for, until stdin ends."""
    async with connect(url) as redis:
        gpus = Semaphore(redis, "gpu-slots", slots=GPUS, lease=LEASE, label=f"{os.getpid()}")
        async with gpus as permit:
            # Before CUDA starts: import torch and the like after this line.
            os.environ["CUDA_VISIBLE_DEVICES"] = str(permit.slot)
            print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
            await asyncio.to_thread(sys.stdin.read)  # ... your work
    print("done", flush=True)


async def start(url: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, __file__, url, stdin=pipe, stdout=pipe
    )


async def line_of(worker: asyncio.subprocess.Process) -> str:
    assert worker.stdout is not None
    return (await worker.stdout.readline()).decode().strip()


async def main(url: str) -> None:
    first, second = await start(url), await start(url)
    gpu, other = await line_of(first), await line_of(second)
    print("on GPUs", *sorted((gpu, other)))
    third = await start(url)  # waits
    first.kill()
    await first.communicate()
    print("after a crash, on the same GPU:", await line_of(third) == gpu)
    for worker in (second, third):
        output, _ = await worker.communicate(b"")  # ends its stdin
        assert output == b"done\n"


if __name__ == "__main__":
    if sys.argv[1:]:
        asyncio.run(work(sys.argv[1]))
    else:
        with ExitStack() as stack:
            redis_url = os.environ.get("REDIS_URL") or stack.enter_context(embedded_redis()).url
            asyncio.run(main(redis_url))
