import random

import dramatiq
from dramatiq import Broker, Worker
from dramatiq.asyncio import async_to_sync
from dramatiq.brokers.redis import RedisBroker
from dramatiq.errors import Retry
from dramatiq.middleware import AsyncIO, Middleware
from redis.asyncio import Redis
from work import render

from redsem_async import FairSemaphore, SemaphoreFull, aclose

URL = "redis://localhost:6379"
redis = Redis.from_url(URL)
gpu = FairSemaphore(redis, "gpu", limit=2)


class ClosePermits(Middleware):
    def after_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        async_to_sync(aclose)(redis)


broker = RedisBroker(url=URL)
broker.add_middleware(AsyncIO())
broker.add_middleware(ClosePermits())  # after AsyncIO, because these run in reverse at the end
dramatiq.set_broker(broker)


def again(retries: int, error: BaseException) -> bool:
    return isinstance(error, Retry) or retries < 3


@dramatiq.actor(retry_when=again, notify_shutdown=True)
async def convert(document: str) -> None:
    try:
        async with gpu.acquire(timeout=1.0):
            await render(document)
    except SemaphoreFull as full:
        delay = full.retry_after + random.uniform(0, 1)
        raise Retry(str(full), delay=int(delay * 1000)) from None
