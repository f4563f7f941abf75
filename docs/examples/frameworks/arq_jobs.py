import random
from typing import Any

from arq import Retry
from arq.connections import RedisSettings
from arq.worker import func
from redis.asyncio import Redis
from work import render

from redsem_async import FairSemaphore, PermitLost, SemaphoreFull, aclose

URL = "redis://localhost:6379"
redis = Redis.from_url(URL)
gpu = FairSemaphore(redis, "gpu", limit=2)


async def convert(ctx: dict[str, Any], document: str) -> str:
    try:
        async with gpu.acquire(timeout=1.0):
            return await render(document)
    except SemaphoreFull as full:
        raise Retry(defer=full.retry_after + random.uniform(0, 1)) from None
    except PermitLost:
        raise Retry(defer=1.0) from None


async def close(ctx: dict[str, Any]) -> None:
    await aclose(redis)
    await redis.aclose()


class WorkerSettings:
    redis_settings = RedisSettings.from_dsn(URL)
    functions = [func(convert, max_tries=1000)]
    on_shutdown = close
