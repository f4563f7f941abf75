"""What 100,000 waiters cost their process: ``python -m benchmarks.scale`` prints a table."""

import asyncio
import gc
import time

from benchmarks._report import number
from redsem_async import FairSemaphore, connect
from redsem_async.testing import embedded_redis

WAITERS = 100_000
AT_ONCE = 100  # tasks that are started or cancelled in a turn of the loop
LIMIT = 100


async def waiters(url: str) -> dict[str, tuple[float, float]]:
    """The seconds of each phase, and the CPU time of the loop's longest turn in it, in ms."""
    phases: dict[str, tuple[float, float]] = {}
    longest = began = 0.0
    served = asyncio.Semaphore(0)

    async def watch() -> None:
        nonlocal longest
        while True:
            at = time.thread_time()  # a busy machine does not lengthen it
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - at)

    def ended(phase: str) -> None:
        nonlocal longest, began
        phases[phase] = time.perf_counter() - began, 1000 * longest
        longest, began = 0.0, time.perf_counter()

    async def waiting(count: int) -> None:
        while (await sem.status(0)).waiting != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def use() -> None:
        async with sem:
            served.release()

    async with connect(url) as redis:
        sem = FairSemaphore(redis, "scale", LIMIT)
        watcher = asyncio.create_task(watch())
        async with sem.acquire(permits=LIMIT):
            tasks: list[asyncio.Task[None]] = []
            began = time.perf_counter()
            while len(tasks) < WAITERS:
                tasks += [asyncio.create_task(use()) for _ in range(AT_ONCE)]
                await asyncio.sleep(0)
            await waiting(WAITERS)
            ended(f"Enqueue {WAITERS:,}")
            await asyncio.sleep(10)
            ended("Wait, with heartbeats")
            for start in range(0, WAITERS, 2 * AT_ONCE):
                for task in tasks[start : start + AT_ONCE]:
                    task.cancel()
                await asyncio.sleep(0)
            await waiting(WAITERS // 2)
            ended("Cancel half")
        for _ in range(WAITERS // 2):
            await served.acquire()
        ended(f"Serve the others, {LIMIT} at once")
        watcher.cancel()
    return phases


async def main(url: str) -> None:
    print("| | Seconds | Longest turn of the loop, ms | Without garbage collection, ms |")
    print("| --- | ---: | ---: | ---: |")
    collected = await waiters(url)
    gc.disable()
    for phase, (_, longest) in (await waiters(url)).items():
        seconds, with_gc = collected[phase]
        print(f"| {phase} | {seconds:.1f} | {number(with_gc)} | {number(longest)} |")


if __name__ == "__main__":
    with embedded_redis() as server:
        asyncio.run(main(server.url))
