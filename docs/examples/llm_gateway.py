"""An LLM gateway: a limit for each model, shared by all gateways, and in it one for each tenant.

    pip install 'redsem-async[fastapi,httpx]' uvicorn
    export UPSTREAM=https://api.example.com UPSTREAM_KEY=secret REDIS_URL=redis://localhost:6379
    uvicorn llm_gateway:app --timeout-graceful-shutdown 25

A request waits for its model and its tenant together, so it holds no place of one while it waits
for the other. It holds its permit until the response, streamed or not, has been sent, or its
client has disconnected from the stream. With ``share``, the next permit of a model goes to the
tenant that uses the least of it. (FastAPI interrupts no handler before the response begins. If the
client disconnects earlier, the provider is still called.)

It also waits until its model's tokens per minute cover the most that it may use. Once its
response has been sent, what it really used counts. The provider says that in the response, or in
the last event of a stream if the client asks for that with ``stream_options``.
"""

import math
import os
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from redis.asyncio import Redis

from redsem_async import (
    AcquireTimeout,
    FairSemaphore,
    QueueFull,
    Rate,
    SemaphoreError,
    SemaphoreFull,
    aclose,
)
from redsem_async.httpx import SemaphoreTransport

MODELS = {"large": 4, "small": 40}  # concurrent calls that the provider allows
TOKENS = {"large": 900_000, "small": 4_000_000}  # a minute
PLANS = {"acme": 8, "globex": 4}  # concurrent calls of a tenant to one model
WAITING = int(os.environ.get("WAITING_PER_TENANT", "100"))

redis = Redis.from_url(os.environ["REDIS_URL"])


def upstream_of(model: str) -> httpx.AsyncClient:
    """The client of one model: its semaphore has a key for each tenant."""
    sem = FairSemaphore(
        redis,
        f"model:{model}",
        MODELS[model],
        key_limit=lambda tenant: PLANS.get(tenant, 2),
        share=True,
        rate={"tokens": Rate(TOKENS[model], per=60)},
        max_waiters_per_key=WAITING,
        lease=5,
        timeout=60,  # and its patience: until then, a request waits for its share
    )
    return httpx.AsyncClient(
        base_url=os.environ["UPSTREAM"],
        headers={"Authorization": f"Bearer {os.environ['UPSTREAM_KEY']}"},
        timeout=120,
        transport=SemaphoreTransport(
            sem,
            key=lambda request: request.extensions["tenant"],
            cost=lambda request: request.extensions["tokens"],
            settle=tokens_used,
            timeout=60,
        ),
    )


def tokens_used(response: httpx.Response) -> float | None:
    """As its last ``usage`` says, and 0 if it was rejected. None if the estimate counts."""
    if response.is_error:
        return 0
    totals: list[bytes] = re.findall(rb'"total_tokens": ?(\d+)', response.content)
    return int(totals[-1]) if totals else None


upstreams = {model: upstream_of(model) for model in MODELS}


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    """Release all permits when the process ends."""
    yield
    await aclose(redis, drain=2.0)
    for upstream in upstreams.values():
        await upstream.aclose()
    await redis.aclose()


app = FastAPI(lifespan=lifespan)


class Question(BaseModel):
    """A request of a client. The gateway passes on what it does not read, too."""

    model_config = ConfigDict(extra="allow")
    model: str
    max_tokens: int = Field(default=1_000, ge=1, le=10_000)

    def most_tokens(self) -> float:
        """Those of the answer, and about one for four characters of the rest."""
        return self.max_tokens + len(self.model_dump_json()) / 4


async def answered(
    question: Question,
    x_tenant: Annotated[str, Header(min_length=1, max_length=100)],  # set by your authentication
) -> AsyncGenerator[httpx.Response]:
    """Call the provider, and close its response when ours has been sent."""
    if question.model not in upstreams:
        raise HTTPException(404, "no such model")
    async with upstreams[question.model].stream(
        "POST",
        "/v1/chat/completions",
        json=question.model_dump(),
        extensions={"tenant": x_tenant, "tokens": question.most_tokens()},
    ) as answer:
        yield answer


@app.post("/v1/chat/completions")
async def complete(answer: Annotated[httpx.Response, Depends(answered)]) -> StreamingResponse:
    """Stream the response of the provider."""
    kind = answer.headers.get("content-type")
    return StreamingResponse(answer.aiter_bytes(), answer.status_code, media_type=kind)


@app.exception_handler(SemaphoreError)
async def busy(_: Request, error: SemaphoreError) -> JSONResponse:
    """429 if the tenant has too many requests, 503 if the model has, or Redis is unavailable."""
    tenants = (isinstance(error, QueueFull) and error.for_key) or (
        isinstance(error, AcquireTimeout) and error.blocked_by == "key"
    )
    seconds = max(1, math.ceil(error.retry_after if isinstance(error, SemaphoreFull) else 0))
    headers = {"Retry-After": str(seconds)}
    return JSONResponse({"detail": "try again later"}, 429 if tenants else 503, headers)
