"""What makes every metric of `redsem_async.opentelemetry` appear."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from opentelemetry.sdk.metrics import MeterProvider

from redsem_async import (
    AcquireTimeout,
    FairSemaphore,
    ModeMismatch,
    PermitLost,
    QueueFull,
    Rate,
    Semaphore,
)
from redsem_async.opentelemetry import instrument, report_status
from redsem_async.testing import MemoryBackend
from tests.harness.wait import cancelled, queue_up


@asynccontextmanager
async def every_metric(provider: MeterProvider) -> AsyncGenerator[None]:
    """Cause every outcome, loss and failure, with *provider* instrumented.

    The first status is read soon after the block is entered.
    """
    backend = MemoryBackend()
    sem = FairSemaphore(backend, "jobs", 1, max_waiters=1, rate=Rate(1_000))
    mistaken = Semaphore(backend, "jobs", 1)
    with instrument(meter_provider=provider):
        async with sem:
            with pytest.raises(AcquireTimeout):
                await sem.acquire(timeout=0)
            waiter = await queue_up(sem)
            with pytest.raises(QueueFull):
                await sem.acquire()
            with pytest.raises(ModeMismatch):
                await mistaken.acquire()
            await cancelled(waiter)
        with pytest.raises(PermitLost):
            async with sem as permit:
                backend.lose(permit)
                await asyncio.Event().wait()
        await (await sem.acquire()).detach(expires_in=1)
        statuses = report_status([mistaken, sem], interval=60, meter_provider=provider)
        reporting = asyncio.create_task(statuses)
        yield
        await cancelled(reporting)
