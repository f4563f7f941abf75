"""Real taskiq workers: the cap holds for all, and nothing stays held when they end."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from redis.asyncio import Redis
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

from redsem_async import FairSemaphore
from tests.harness.wait import until

pytestmark = pytest.mark.release

APP = "tests.integrations.background.taskiq_app:broker"


StartWorkers = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start_workers(server_url: str, name: str) -> Iterator[StartWorkers]:
    """Starts taskiq's own command, with so many processes; they are stopped after the test."""
    with ExitStack() as stack:

        def start(workers: int, *arguments: str, lease: float = 1.0) -> "subprocess.Popen[bytes]":
            command = [sys.executable, "-m", "taskiq", "worker", APP, "--workers", str(workers)]
            process = subprocess.Popen(
                [*command, "--max-async-tasks", "4", *arguments],
                env=os.environ | {"REDIS_URL": server_url, "NAME": name, "LEASE": str(lease)},
            )
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)
            return process

        yield start


@pytest.fixture
async def queue(server_url: str, name: str) -> AsyncIterator[ListQueueBroker]:
    """The client's side of the workers' broker."""
    made = ListQueueBroker(server_url, queue_name=f"{name}-queue", socket_timeout=None)
    results: RedisAsyncResultBackend[Any] = RedisAsyncResultBackend(server_url)
    made.with_result_backend(results)
    made.register_task(_visit, task_name="visit")
    await made.startup()
    yield made
    await made.shutdown()


async def _visit(seconds: float) -> tuple[int, int]:
    raise AssertionError("this is for the workers")


async def visits(queue: ListQueueBroker, count: int) -> list[tuple[int, int]]:
    """Have so many visits done: how many were inside, and in which process."""
    visit = queue.find_task("visit")
    assert visit is not None
    sent = [await visit.kiq(0.03) for _ in range(count)]
    results = [await task.wait_result(check_interval=0.03, timeout=30) for task in sent]
    assert [result.error for result in results] == [None] * count
    return [result.return_value for result in results]


async def test_the_cap_holds_for_all_worker_processes(
    queue: ListQueueBroker, start_workers: StartWorkers, redis: Redis, name: str
) -> None:
    """Two processes of many tasks each, and two permits; SIGTERM ends them with nothing held."""
    workers = start_workers(2)
    async with asyncio.timeout(30):
        pids: set[int] = set()
        while len(pids) < 2:  # until both have started
            pids |= {pid for _, pid in await visits(queue, 8)}
    seen = await visits(queue, 30)
    assert max(inside for inside, _ in seen) == 2
    assert {pid for _, pid in seen} == pids, "only one of them worked"
    workers.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(workers.wait, 20) == 0
    sem = FairSemaphore(redis, name, 2)
    assert (await sem.status()).held == 0


@pytest.mark.parametrize("seconds", [1.0, 60.0], ids=["finishes", "does not finish"])
async def test_a_worker_that_is_stopped_gives_its_permits_back(
    queue: ListQueueBroker, start_workers: StartWorkers, redis: Redis, name: str, seconds: float
) -> None:
    """Once its tasks have ended, or when it has waited long enough: not a lease later."""
    workers = start_workers(1, "--wait-tasks-timeout", "3", lease=60.0)
    visit = queue.find_task("visit")
    assert visit is not None
    sent = await visit.kiq(seconds)
    sem = FairSemaphore(redis, name, 2)

    async def one_is_held() -> bool:
        return (await sem.status()).held == 1

    await until(one_is_held, within=20)
    workers.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(workers.wait, 20) == 0
    assert (await sem.status()).held == 0
    if seconds == 1.0:
        assert (await sent.wait_result(timeout=5)).return_value[0] == 1
