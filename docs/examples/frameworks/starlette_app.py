import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from redsem_async import FairSemaphore, aclose
from redsem_async.asgi import ConcurrencyLimitMiddleware

redis = Redis.from_url("redis://localhost:6379")
gpu = FairSemaphore(redis, "gpu", limit=2, max_waiters=100)


async def render(request: Request) -> JSONResponse:
    await asyncio.sleep(0.5)  # ... the work
    return JSONResponse({"token": request.scope["redsem_async.permit"].fencing_token})


async def health(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    yield
    await aclose(redis, drain=5.0)
    await redis.aclose()


limited = Middleware(ConcurrencyLimitMiddleware, sem_or_group=gpu, timeout=0.2)
app = Starlette(
    routes=[Route("/render", render, middleware=[limited]), Route("/health", health)],
    lifespan=lifespan,
)
