import random
from typing import Any

from celery import Celery, Task
from celery.signals import worker_process_shutdown
from work import render

from redsem_async import SemaphoreFull
from redsem_async.blocking import Portal

URL = "redis://localhost:6379"
app = Celery("celery_jobs", broker=URL, backend=URL)
portal = Portal(URL)
gpu = portal.fair("gpu", limit=2)


@worker_process_shutdown.connect
def close(**_: Any) -> None:
    portal.close()


async def limited(document: str) -> str:
    async with gpu.wrapped.acquire(timeout=1.0):
        return await render(document)


@app.task(bind=True, max_retries=None)
def convert(self: Task, document: str) -> str:
    try:
        return portal.run(limited(document))
    except SemaphoreFull as full:
        raise self.retry(countdown=full.retry_after + random.uniform(0, 1)) from None
