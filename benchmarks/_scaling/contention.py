"""Processes that are alone with their semaphores, and contended ones: what Redis does for them."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from benchmarks._children import Child, JobContext, child
from benchmarks._usage import ReportUsage
from benchmarks.libraries import ALL_OURS, Options

from .figures import Contention, Fleet
from .server import Meter

PROCESSES = 4
TASKS = 50  # of each process
LIMIT = 20  # of the semaphore that all use
WORK = 0.001  # seconds in each block
START_DELAY = 0.1  # seconds until all processes start at the same time


@dataclass(frozen=True, slots=True)
class Pairs:
    """Acquire and release in all tasks from *begin* to *end*. Returns the number of pairs."""

    label: str
    options: Options
    begin: float
    end: float

    async def run(self, context: JobContext) -> int:
        semaphore = await context.semaphore(self.label, self.options)
        made = 0

        async def pairs() -> None:
            nonlocal made
            while time.monotonic() < self.end:
                async with semaphore.permit():
                    await asyncio.sleep(WORK)
                made += 1

        await asyncio.sleep(self.begin - time.monotonic())
        await asyncio.gather(*(pairs() for _ in range(TASKS)))
        return made


def measure_contention(url: str, meter: Meter) -> Mapping[Fleet, Contention]:
    """Measure one round, each fleet for as long as *meter* measures a case."""
    return asyncio.run(_measure(url, meter))


async def _measure(url: str, meter: Meter) -> Mapping[Fleet, Contention]:
    found: dict[Fleet, Contention] = {}
    async with _children() as children:
        for library in ALL_OURS:
            for contended in (False, True):
                options = _options(url, contended=contended)
                await _run(children, library.label, options, meter.seconds / 4)
                before, cpu = meter.spent(), await _cpu(children)
                pairs = await _run(children, library.label, options, meter.seconds)
                cost, used = meter.spent(), await _cpu(children) - cpu
                found[Fleet(library.label, contended)] = Contention(
                    pairs=pairs / meter.seconds,
                    calls=(cost.calls - before.calls) / pairs,
                    cpu=(cost.cpu - before.cpu) / pairs,
                    client_cpu=1e6 * used / pairs,
                )
    return found


@asynccontextmanager
async def _children() -> AsyncGenerator[Sequence[Child]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(child("asyncio")) for _ in range(PROCESSES)]


def _options(url: str, *, contended: bool) -> Sequence[Options]:
    """Those of each process: one semaphore for all, or one for each, with room for all tasks."""
    limit = LIMIT if contended else TASKS
    names = [f"scaling-{secrets.token_hex(6)}" for _ in range(1 if contended else PROCESSES)]
    return [
        Options(url=url, name=names[i % len(names)], limit=limit, tasks=TASKS)
        for i in range(PROCESSES)
    ]


async def _run(
    children: Sequence[Child], label: str, options: Sequence[Options], seconds: float
) -> int:
    begin = time.monotonic() + START_DELAY
    jobs = [Pairs(label, its_own, begin, begin + seconds) for its_own in options]
    return sum(
        await asyncio.gather(*(one.run(job) for one, job in zip(children, jobs, strict=True)))
    )


async def _cpu(children: Sequence[Child]) -> float:
    return sum([(await one.run(ReportUsage())).cpu for one in children])
