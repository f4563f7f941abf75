"""Real workers of arq, Celery and Dramatiq: the limit holds for all, and SIGTERM releases."""

import asyncio
import os
import signal
from typing import NamedTuple

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore
from tests.harness.programs import Programs
from tests.harness.wait import all_free, available, until

pytestmark = pytest.mark.timeout(300)  # of which a busy machine needs most to start the workers


class Queue(NamedTuple):
    """How jobs come into a queue, and how its workers start."""

    enqueue: str  # code in which ``documents`` is a list
    worker: tuple[str, ...]  # the command, after ``python -m``
    commands: int  # how many of them share the work
    stopped: float  # how long a job takes, in seconds, that runs as SIGTERM comes
    finishes: bool  # whether the worker waits for it then


ARQ = """
import asyncio
from arq import create_pool
from arq_jobs import WorkerSettings

async def main():
    pool = await create_pool(WorkerSettings.redis_settings)
    for document in documents:
        await pool.enqueue_job("convert", document)

asyncio.run(main())
"""
CELERY = """
from celery_jobs import convert
for document in documents: convert.delay(document)
"""
DRAMATIQ = """
from dramatiq_jobs import convert
for document in documents: convert.send(document)
"""
IN_CELERY = ("celery", "-A", "celery_jobs", "worker", "--concurrency", "6")
IN_DRAMATIQ = ("dramatiq", "dramatiq_jobs", "--processes", "2", "--threads", "4")
QUEUES = {
    "arq": Queue(ARQ, ("arq", "arq_jobs.WorkerSettings"), 2, 60, finishes=False),
    "celery": Queue(CELERY, IN_CELERY, 1, 3, finishes=True),
    "celery-threads": Queue(CELERY, (*IN_CELERY, "--pool", "threads"), 1, 3, finishes=True),
    "dramatiq": Queue(DRAMATIQ, IN_DRAMATIQ, 1, 60, finishes=False),
}


@pytest.fixture
def queue() -> Queue:
    """The one that was chosen."""
    return QUEUES[os.environ["REDSEM_FRAMEWORKS"]]


async def test_the_limit_holds_and_all_jobs_are_done(programs: Programs, queue: Queue) -> None:
    """More workers than permits: jobs that wait for too long are put back, and come again."""
    documents = [f"{number}-0.6" for number in range(14)]
    programs.run("-c", f"documents = {documents}\n{queue.enqueue}")
    for _ in range(queue.commands):
        programs.start("-m", *queue.worker)
    async with Redis.from_url(programs.url, decode_responses=True) as redis:

        async def all_done() -> bool:
            return set(await redis.lrange("done", 0, -1)) == set(documents)

        await until(all_done, "all jobs are done", within=120)
        assert max(int(inside) for inside in await redis.lrange("seen", 0, -1)) == 2
        await all_free(FairSemaphore(redis, "gpu", 2))


async def test_a_stopped_worker_gives_its_permit_back(programs: Programs, queue: Queue) -> None:
    """At SIGTERM, as its job ends: not a lease later."""
    programs.run("-c", f"documents = ['0-{queue.stopped}']\n{queue.enqueue}")
    worker = programs.start("-m", *queue.worker)
    async with Redis.from_url(programs.url) as redis:
        sem = FairSemaphore(redis, "gpu", 2)

        async def inside() -> bool:
            return await redis.get("inside") == b"1"

        await until(inside, "the job runs", within=90)
        await available(sem, 1)
        worker.send_signal(signal.SIGTERM)
        await available(sem, 2, within=6)  # the lease is longer: ten seconds
        assert await asyncio.to_thread(worker.wait, 60) == 0
        assert await redis.llen("done") == int(queue.finishes)
