"""A process with one version of the library, beside processes with others.

Run as ``visitor.py PHASES OPTIONS``: the names of the phases, joined by commas, and options in
JSON. It reports in lines of JSON, and begins each phase when it is told to go on. It may use what
is public in every version with the present layout, and nothing else.
"""

import asyncio
import json
import os
import sys
import traceback
from collections import Counter
from typing import Any

from redis.asyncio import Redis

import redsem_async
from redsem_async import FairSemaphore, Semaphore

OPTIONS: dict[str, Any] = json.loads(sys.argv[2])
KINDS = {"fair": FairSemaphore, "zset": Semaphore}
AnyKind = FairSemaphore | Semaphore


def say(event: str, **facts: object) -> None:
    os.write(1, f"{json.dumps({'event': event, **facts})}\n".encode())


async def told_to_go_on() -> None:
    await asyncio.to_thread(sys.stdin.readline)


def semaphores(redis: Redis, names: dict[str, str]) -> list[AnyKind]:
    """A semaphore for each name, of the kind that it is used as."""
    limit, label = OPTIONS["limit"], OPTIONS["label"]
    return [KINDS[k](redis, n, limit, lease=60.0, label=label) for n, k in names.items()]


async def take(redis: Redis) -> None:
    """Use some names once, before others do."""
    for semaphore in semaphores(redis, OPTIONS["takes"]):
        async with semaphore:
            pass
    say("took", file=redsem_async.__file__, version=redsem_async.__version__)


async def load(redis: Redis) -> None:
    """Use all names, with several tasks each, until told to go on."""
    most, stop = Counter[str](), asyncio.Event()

    async def use(semaphore: AnyKind) -> None:
        name = semaphore.name
        while not stop.is_set():
            async with semaphore:
                most[name] = max(most[name], int(await redis.incr(f"inside:{name}")))
                await redis.incr(f"served:{OPTIONS['label']}:{name}")
                await redis.decr(f"inside:{name}")

    async with asyncio.TaskGroup() as tasks:
        for semaphore in semaphores(redis, OPTIONS["names"]):
            for _ in range(OPTIONS["limit"] + 1):
                tasks.create_task(use(semaphore))
        await told_to_go_on()
        stop.set()
    say("loaded", most=most)


async def main() -> None:
    phases = {"take": take, "load": load}
    async with Redis.from_url(OPTIONS["url"]) as redis:
        for phase in sys.argv[1].split(","):
            await told_to_go_on()
            try:
                await phases[phase](redis)
            except Exception:  # noqa: BLE001 - it ends the process
                traceback.print_exc()
                os._exit(1)  # asyncio.run would wait for the thread that reads


asyncio.run(main())
