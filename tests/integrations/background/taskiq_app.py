"""What the workers of `test_taskiq_workers.py` run: ``taskiq worker MODULE:broker``."""

import asyncio
import os

from redis.asyncio import Redis
from taskiq import TaskiqEvents, TaskiqState
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

from redsem_async import FairSemaphore, aclose
from redsem_async.taskiq import SemaphoreMiddleware

URL, NAME = os.environ["REDIS_URL"], os.environ["NAME"]

redis = Redis.from_url(URL)
sem = FairSemaphore(redis, NAME, 2, lease=float(os.environ["LEASE"]))
broker = (
    ListQueueBroker(URL, queue_name=f"{NAME}-queue", socket_timeout=None)
    .with_result_backend(RedisAsyncResultBackend(URL))
    .with_middlewares(SemaphoreMiddleware(sem))
)


@broker.on_event(TaskiqEvents.WORKER_SHUTDOWN)
async def give_back(_: TaskiqState) -> None:
    """What tasks hold that the worker does not wait for."""
    await aclose(redis)


@broker.task(task_name="visit")
async def visit(seconds: float) -> tuple[int, int]:
    """Stay inside for *seconds*: how many were inside, as the server counts, and who we are."""
    inside = await redis.incr(f"{NAME}-inside")
    try:
        await asyncio.sleep(seconds)
    finally:
        await redis.decr(f"{NAME}-inside")
    return inside, os.getpid()
