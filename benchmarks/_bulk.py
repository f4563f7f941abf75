"""Jobs with many tasks: they hold permits, or wait for them."""

import asyncio
import time
from dataclasses import dataclass

from benchmarks._children import JobContext
from benchmarks._limit_check import CorrectnessError
from benchmarks.libraries import OpenSemaphore, Options
from redsem_async import Permit

LONG = 3600.0  # seconds; too long for a refresh during a measurement


@dataclass(frozen=True, slots=True)
class Open:
    """Connect, and load all scripts."""

    label: str
    options: Options

    async def run(self, context: JobContext) -> None:
        semaphore = await context.semaphore(self.label, self.options)
        await semaphore.held()


@dataclass(frozen=True, slots=True)
class Hold:
    """Acquire *count* permits and keep them; returns the seconds that each acquire took."""

    label: str
    options: Options
    count: int

    async def run(self, context: JobContext) -> list[float]:
        semaphore = await context.semaphore(self.label, self.options)
        waits: list[float] = []
        all_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        permits = context.shared.setdefault("permits", [])

        async def hold() -> None:
            start = time.perf_counter()
            async with semaphore.permit() as permit:
                waits.append(time.perf_counter() - start)
                permits.append(permit)
                if len(waits) == self.count:
                    all_in.set_result(None)
                await asyncio.Event().wait()

        def ended(task: asyncio.Task[None]) -> None:
            if not all_in.done() and not task.cancelled() and (error := task.exception()):
                all_in.set_exception(error)

        for _ in range(self.count):
            task = asyncio.create_task(hold())
            task.add_done_callback(ended)
            context.tasks.append(task)
        await all_in
        return waits


@dataclass(frozen=True, slots=True)
class CountLost:
    """Return how many of the permits held by this process were lost."""

    async def run(self, context: JobContext) -> int:
        permits = context.shared.get("permits", [])
        return sum(isinstance(permit, Permit) and permit.lost for permit in permits)


@dataclass(frozen=True, slots=True)
class Wait:
    """Start *count* tasks that wait for a permit, which they do not get."""

    label: str
    options: Options
    count: int

    async def run(self, context: JobContext) -> None:
        semaphore = await context.semaphore(self.label, self.options)
        context.tasks += [asyncio.create_task(_wait(semaphore)) for _ in range(self.count)]


@dataclass(frozen=True, slots=True)
class CheckStillWaiting:
    """Raise `CorrectnessError` unless all tasks still wait."""

    async def run(self, context: JobContext) -> None:
        for task in context.tasks:
            if task.done():
                raise CorrectnessError("a task that should wait has ended") from task.exception()


async def _wait(semaphore: OpenSemaphore) -> None:
    async with semaphore.permit():
        await asyncio.Event().wait()
