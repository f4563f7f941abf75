"""A request takes a permit, and a worker process does the work under it.

    pip install 'redsem-async[embedded,fastapi,httpx]'
    python handover.py

A client that orders a report while no permit is free gets an error at once, rather than after an
hour in a queue: the request acquires the permit, and puts its id into the queue together with the
job. The program has a service with FastAPI, a queue in Redis and a worker process. It starts a
Redis server if ``REDIS_URL`` is not set.
"""

import asyncio
import json
import os
import sys
from contextlib import ExitStack

import httpx
from fastapi import FastAPI, HTTPException
from redis.asyncio import Redis

from redsem_async import BackendUnavailable, FairSemaphore, PermitLost, SemaphoreFull, connect
from redsem_async.testing import embedded_redis

JOBS, RESULTS = "handover:jobs", "handover:results"
IN_QUEUE = 30.0  # seconds that a job, and its permit, may stay in the queue


def permits(redis: Redis) -> FairSemaphore:
    return FairSemaphore(redis, "reports", limit=2)


# -- the service


def service(redis: Redis) -> FastAPI:
    app = FastAPI()
    sem = permits(redis)

    @app.post("/reports/{name}", status_code=202)
    async def order(name: str) -> str:
        try:
            async with sem.acquire(timeout=0) as permit:
                ticket = await permit.detach(expires_in=IN_QUEUE)
        except SemaphoreFull as full:
            later = {"Retry-After": str(round(full.retry_after) + 1)}
            raise HTTPException(503, "all reports are busy", later) from full
        except BackendUnavailable as away:
            raise HTTPException(503, "Redis is unavailable", {"Retry-After": "1"}) from away
        try:
            await redis.rpush(JOBS, json.dumps({"report": name, "permit": ticket}))
        except BaseException:
            await sem.release(ticket)
            raise
        return f"{name} accepted"

    return app


# -- the worker


async def work(url: str) -> None:
    """The worker: run each job in a task, until a job says that it is the last."""
    async with connect(url) as redis, asyncio.TaskGroup() as tasks:
        while True:
            delivered = await redis.blpop(JOBS)
            assert delivered is not None  # without a timeout it never gives up
            job = json.loads(delivered[1])
            if job is None:
                return
            tasks.create_task(do(redis, **job))


async def do(redis: Redis, report: str, permit: str) -> None:
    try:
        async with permits(redis).adopt(permit) as adopted:  # refreshed from here on
            await asyncio.sleep(0.1)  # ... the report is made
            result = f"{report}: made by another process, fencing token {adopted.fencing_token}"
    except PermitLost:
        result = f"{report}: skipped (expired in the queue, or delivered twice)"
    await redis.rpush(RESULTS, result)


# -- the client


async def main(url: str) -> None:
    async with connect(url, decode_responses=True) as redis:
        await redis.delete(JOBS, RESULTS)
        transport = httpx.ASGITransport(service(redis))
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            for name in ("january", "february", "march"):
                answer = await client.post(f"/reports/{name}")
                print(answer.status_code, answer.json())
        twice = str(await redis.lindex(JOBS, 0))  # queues sometimes deliver a job twice
        await redis.rpush(JOBS, twice, "null")
        worker = await asyncio.create_subprocess_exec(sys.executable, __file__, url)
        assert await worker.wait() == 0
        for result in await redis.lrange(RESULTS, 0, -1):
            print(result)
        await redis.delete(JOBS, RESULTS)
        print("free again:", await permits(redis).available())


if __name__ == "__main__":
    if sys.argv[1:]:
        asyncio.run(work(sys.argv[1]))
    else:
        with ExitStack() as stack:
            redis_url = os.environ.get("REDIS_URL") or stack.enter_context(embedded_redis()).url
            asyncio.run(main(redis_url))
