import asyncio
from typing import Any

from litestar import Litestar, Request, get
from litestar.middleware import DefineMiddleware
from redis.asyncio import Redis

from redsem_async import FairSemaphore, aclose
from redsem_async.asgi import ConcurrencyLimitMiddleware

redis = Redis.from_url("redis://localhost:6379")
gpu = FairSemaphore(redis, "gpu", limit=2, max_waiters=100)
limited = DefineMiddleware(ConcurrencyLimitMiddleware, sem_or_group=gpu, timeout=0.2)


@get("/render", middleware=[limited])
async def render(request: Request[Any, Any, Any]) -> dict[str, int]:
    await asyncio.sleep(0.5)  # ... the work
    return {"token": request.scope["redsem_async.permit"].fencing_token}  # type: ignore[typeddict-item]


@get("/health")
async def health() -> str:
    return "ok"


async def close() -> None:
    await aclose(redis, drain=5.0)
    await redis.aclose()


app = Litestar([render, health], on_shutdown=[close])
