"""A request takes a permit, and a worker process does the work under it.

    pip install 'redsem-async[embedded,fastapi,httpx]'
    python handover.py

Who orders a report while all are busy is told at once, rather than after an hour in a queue: the
request acquires the permit, and hands it over by its id, together with the job. Here are a
service with FastAPI, a queue in Redis and a worker process, on a server that is started where
``REDIS_URL`` names none.
"""

import asyncio
import json
import os
import sys
from contextlib import ExitStack

import httpx
from fastapi import FastAPI, HTTPException
from redis.asyncio import Redis

from redsem_async import AcquireTimeout, FairSemaphore, PermitLost, connect
from redsem_async.testing import embedded_redis

JOBS, RESULTS = "handover:jobs", "handover:results"
IN_QUEUE = 30.0  # seconds for which a job may lie there, and its permit with it


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
        except AcquireTimeout as full:
            later = {"Retry-After": str(round(full.retry_after) + 1)}
            raise HTTPException(503, "all reports are busy", later) from full
        try:
            await redis.rpush(JOBS, json.dumps({"report": name, "permit": ticket}))
        except BaseException:
            await sem.release(ticket)
            raise
        return f"{name} will be made"

    return app


# -- the worker


async def work(url: str) -> None:
    """Be the worker: do what comes, each job in a task, until a job says that it is the last."""
    async with connect(url) as redis, asyncio.TaskGroup() as tasks:
        while True:
            delivered = await redis.blpop(JOBS)
            assert delivered is not None  # it waits for ever
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
        result = f"{report}: not made, for it lay for too long or was delivered twice"
    await redis.rpush(RESULTS, result)


# -- who uses them


async def main(url: str) -> None:
    async with connect(url, decode_responses=True) as redis:
        await redis.delete(JOBS, RESULTS)
        transport = httpx.ASGITransport(service(redis))
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            for name in ("january", "february", "march"):
                answer = await client.post(f"/reports/{name}")
                print(answer.status_code, answer.json())
        twice = str(await redis.lindex(JOBS, 0))  # as queues deliver at times
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
