"""P5, P7 and P8: what thousands of permits and waiters of one process cost."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from redis.asyncio import Redis

from benchmarks._bench import Bench, Case, CorrectnessError, Leaked
from benchmarks._children import Child, Context, child
from benchmarks._comparison import name_for
from benchmarks._libraries import OURS, PEERS, PY_REDIS_SEMAPHORE, Library, OpenSemaphore, Options
from benchmarks._stats import (
    connections,
    key_memory,
    own_cpu_time,
    own_memory,
    traffic,
    used_memory,
)
from redsem_async import Permit

LONG = 3600.0  # seconds; too long for a refresh during a measurement
LEASE = 10.0


async def _open(context: Context, label: str, options: Options) -> None:
    """A job: connect, and load all scripts."""
    await (await context.semaphore(label, options)).held()


async def _hold(context: Context, label: str, options: Options, count: int) -> list[float]:
    """A job: acquire *count* permits and keep them; returns the seconds of each acquire."""
    semaphore = await context.semaphore(label, options)
    waits: list[float] = []
    all_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    permits = context.shared.setdefault("permits", [])

    async def hold() -> None:
        start = time.perf_counter()
        async with semaphore.permit() as permit:
            waits.append(time.perf_counter() - start)
            permits.append(permit)
            if len(waits) == count:
                all_in.set_result(None)
            await asyncio.Event().wait()

    def ended(task: asyncio.Task[None]) -> None:
        if not all_in.done() and not task.cancelled() and (error := task.exception()):
            all_in.set_exception(error)

    for _ in range(count):
        task = asyncio.create_task(hold())
        task.add_done_callback(ended)
        context.tasks.append(task)
    await all_in
    return waits


async def _wait(context: Context, label: str, options: Options, count: int) -> list[float]:
    """A job: start *count* tasks that wait for a permit, which they do not get."""
    semaphore = await context.semaphore(label, options)

    async def wait() -> None:
        async with semaphore.permit():
            await asyncio.Event().wait()

    context.tasks += [asyncio.create_task(wait()) for _ in range(count)]
    return []


async def _lost(context: Context) -> int:
    """A job: the number of permits that were lost; raises if a task has ended."""
    for task in context.tasks:
        if task.done():
            raise CorrectnessError("a task that should wait has ended") from task.exception()
    permits = context.shared.get("permits", [])
    return sum(isinstance(permit, Permit) and permit.lost for permit in permits)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the keys, of the whole server, and of the process."""

    keys: int
    server: int
    process: int

    @classmethod
    async def of(cls, client: Redis, name: str, process: Child) -> "Memory":
        return cls(
            await key_memory(client, name),
            await used_memory(client),
            await process.run(own_memory),
        )


@dataclass(frozen=True, slots=True)
class Crowd:
    """Many holders or waiters of one process.

    Attributes:
        setting: their number, in words.
        count: their number.
        observer: their semaphore in this process; it holds the only permit if they wait.
        process: their process.
        connections: the connections that they opened.
        before: the memory in use before.
        after: the memory in use once all are in place.
        waits: the seconds of each acquire.
    """

    setting: str
    count: int
    observer: OpenSemaphore
    process: Child
    connections: int
    before: Memory
    after: Memory
    waits: list[float]


@asynccontextmanager
async def _crowd(
    bench: Bench, library: Library, *, waiting: bool, lease: float = LONG
) -> AsyncGenerator[Crowd]:
    count = bench.effort.bulk_of(library)
    setting = f"{count:,} {'waiters' if waiting else 'permits'}"
    bench.progress(f"{library.label}, {setting}")
    limit = 1 if waiting else count
    there = Options(url=bench.url, name=name_for("idle"), limit=limit, tasks=count, lease=lease)
    here = replace(there, tasks=1, lease=LONG if waiting else lease)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Redis.from_url(bench.url))
        observer = await stack.enter_async_context(library.open(here))
        stack.push_async_callback(observer.delete)
        if waiting:
            await stack.enter_async_context(observer.permit())
        process = await stack.enter_async_context(child(bench.loop))
        others = await connections(client)
        await process.run(_open, library.label, there)
        before = await Memory.of(client, here.name, process)
        waits = await process.run(_wait if waiting else _hold, library.label, there, count)
        await asyncio.sleep(bench.effort.settle)
        after = await Memory.of(client, here.name, process)
        opened = await connections(client) - others
        yield Crowd(setting, count, observer, process, opened, before, after, waits)
        await process.run(_lost)
        if waiting and library.ours:
            # When many waiters are cancelled at once, some peers leak permits; ours must not.
            await process.stop()
            if (held := await observer.held()) != 1:
                raise Leaked(held, 1)
        await process.kill()


async def _activity(bench: Bench, crowd: Crowd) -> dict[str, list[float]]:
    """The commands and the CPU time of a crowd that does nothing."""
    used = await crowd.process.run(own_cpu_time)
    sent, executed = await traffic(bench.url, bench.effort.window)
    cpu = await crowd.process.run(own_cpu_time) - used
    return {
        "commands/s": [sent],
        "commands/s including scripts": [executed],
        "% of a core": [100 * cpu / bench.effort.window],
    }


async def _idle_waiters(bench: Bench) -> None:
    for library in bench.installed((*OURS, *PEERS)):
        with bench.may_fail(library.label, peer=not library.ours):
            async with _crowd(bench, library, waiting=True, lease=LEASE) as crowd:
                figures = await _activity(bench, crowd) | {"connections": [crowd.connections]}
            bench.row(library.label, crowd.setting, figures=figures)


async def _idle_holders(bench: Bench) -> None:
    for library in bench.installed((*OURS, PY_REDIS_SEMAPHORE)):
        with bench.may_fail(library.label, peer=not library.ours):
            async with _crowd(bench, library, waiting=False, lease=LEASE) as crowd:
                figures = await _activity(bench, crowd)
                lost = await crowd.process.run(_lost)
                figures["lost"] = [max(lost, crowd.count - await crowd.observer.held())]
            bench.row(library.label, crowd.setting, waits=crowd.waits, figures=figures)


async def _memory(bench: Bench) -> None:
    for library in bench.installed((*OURS, *PEERS)):
        with bench.may_fail(library.label, peer=not library.ours):
            for waiting in (False, True):
                async with _crowd(bench, library, waiting=waiting) as crowd:
                    grown = {
                        "server, keys: bytes each": crowd.after.keys - crowd.before.keys,
                        "server, all: bytes each": crowd.after.server - crowd.before.server,
                        "client: bytes each": crowd.after.process - crowd.before.process,
                    }
                figures = {column: [size / crowd.count] for column, size in grown.items()}
                bench.row(library.label, crowd.setting, waits=crowd.waits, figures=figures)


P5 = Case(
    "P5",
    "Many waiters in one process, no activity",
    "Another process holds the only permit, and many tasks of one process wait for it. Measured"
    " once all wait: connections, commands by MONITOR, and the CPU time of that process. Peers"
    " have fewer waiters, as noted, because each needs a connection or polls. Nothing is acquired"
    " meanwhile.",
    _idle_waiters,
)
P7 = Case(
    "P7",
    "Many held permits, no activity",
    f"One process acquires that many permits at once and keeps them; the lease is {LEASE:g} s."
    " Acquire is the time of these requests. Then: commands by MONITOR, the CPU time of that"
    " process, and the number of permits that are lost at the end, according to the process or"
    " the server. Only one of the peers refreshes its permits.",
    _idle_holders,
)
P8 = Case(
    "P8",
    "Memory",
    "One process holds that many permits, or has that many tasks that wait while another process"
    " holds the only permit. Differences, divided by the number: MEMORY USAGE of the keys;"
    " used_memory of the server, including connections; and the resident memory of the process,"
    " including the tasks that hold, refresh or wait.",
    _memory,
)
