"""An LLM gateway: a limit for each model, shared by all gateways, and one for each tenant.

    pip install 'redsem-async[fastapi,httpx]' uvicorn
    export UPSTREAM=https://api.example.com UPSTREAM_KEY=secret REDIS_URL=redis://localhost:6379
    uvicorn llm_gateway:app --timeout-graceful-shutdown 25

A request waits in the queue of its tenant first, then in that of its model. It holds both permits
until its response, streamed or not, has been sent, or its client has disconnected from the stream.
(FastAPI interrupts no handler before the response begins: if the client disconnects earlier, the
provider is called nevertheless.)
"""

import math
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict
from redis.asyncio import Redis

from redsem_async import Permit, SemaphoreError, SemaphoreGroup, aclose
from redsem_async.fastapi import RequirePermit
from redsem_async.httpx import SemaphoreTransport

MODELS = {"large": 4, "small": 40}  # concurrent calls that the provider allows

redis = Redis.from_url(os.environ["REDIS_URL"])
tenants = SemaphoreGroup(redis, "tenant", 8, max_waiters=50, timeout=2)
models = SemaphoreGroup(redis, "model", lambda model: MODELS[model], timeout=20)
upstream = httpx.AsyncClient(
    base_url=os.environ["UPSTREAM"],
    headers={"Authorization": f"Bearer {os.environ['UPSTREAM_KEY']}"},
    timeout=120,
    transport=SemaphoreTransport(models, key=lambda request: request.extensions["model"]),
)
turn = RequirePermit(  # your authentication sets the header
    tenants, key=lambda request: request.headers.get("x-tenant", ""), status=429
)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    """Release all permits when the process ends."""
    yield
    await aclose(redis, drain=2.0)
    await upstream.aclose()
    await redis.aclose()


app = FastAPI(lifespan=lifespan)


class Question(BaseModel):
    """A request of a client. The gateway reads the model only, and passes the rest on."""

    model_config = ConfigDict(extra="allow")
    model: str


async def answered(
    question: Question, _: Annotated[Permit, Depends(turn)]
) -> AsyncGenerator[httpx.Response]:
    """Call the provider, and close its response when ours has been sent."""
    if question.model not in MODELS:
        raise HTTPException(404, "no such model")
    async with upstream.stream(
        "POST",
        "/v1/chat/completions",
        json=question.model_dump(),
        extensions={"model": question.model},
    ) as answer:
        yield answer


@app.post("/v1/chat/completions", responses=turn.responses)
async def complete(answer: Annotated[httpx.Response, Depends(answered)]) -> StreamingResponse:
    """Stream the response of the provider."""
    kind = answer.headers.get("content-type")
    return StreamingResponse(answer.aiter_bytes(), answer.status_code, media_type=kind)


@app.exception_handler(SemaphoreError)
async def busy(_: Request, error: SemaphoreError) -> JSONResponse:
    """Tell the client when to retry: the model's queue was too long, or Redis is unavailable."""
    seconds = max(1, math.ceil(getattr(error, "retry_after", 0)))
    return JSONResponse({"detail": "try again later"}, 503, {"Retry-After": str(seconds)})
