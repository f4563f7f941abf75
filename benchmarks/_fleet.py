"""A fleet of processes that calls an upstream on and on, with this library's back-off or a rival.

It runs in real processes, or in simulated time: there the scripts run in memory, 30 s in two.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import httpx
from redis.asyncio import Redis

from benchmarks._bench import LimitExceeded, LoopName
from benchmarks._children import Child, Context, child
from benchmarks._comparison import name_for
from benchmarks._stats import scripts_run
from benchmarks._upstream import OK, Event, Phase, Upstream, listen, most_inside, recorded
from redsem_async import AnySemaphore, FairSemaphore, Semaphore
from redsem_async.httpx import SemaphoreTransport
from redsem_async.testing import MemoryBackend

OURS: dict[str, type[AnySemaphore]] = {"fair": FairSemaphore, "zset": Semaphore}
TRIP = 0.0005  # seconds to the upstream and back, each, in simulated time
START_DELAY = 1.0  # seconds until all processes start at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """An upstream, and who calls it.

    Attributes:
        hold: seconds that a request takes, half more or less.
        limits: the limit of each fleet, or of each key if there are *keys*.
        joins: seconds from the beginning of one fleet to that of the next.
        keys: number of keys, each with the upstream's capacity.
        heavy: permits of the requests that one task of each process sends.
    """

    phases: tuple[Phase, ...]
    hold: float = 0.1
    limits: tuple[int, ...] = (64,)
    joins: float = 0.0
    keys: int = 0
    heavy: int = 0
    processes: int = 3
    tasks: int = 24

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)


@dataclass(slots=True)
class Result:
    """What happened at the upstream and on the server, and the machine's load before."""

    events: list[Event]
    scripts: float = 0.0
    script_us: float = 0.0
    load: float = field(default_factory=lambda: os.getloadavg()[0])


class Aimd(httpx.AsyncBaseTransport):
    """Each process for itself: its own limit, raised by answers and cut by refusals.

    As Netflix's AIMDLimit, by one for each answer and a tenth for each refusal; or *gentle* as
    TCP, by one for each round trip and by half for each overload.
    """

    def __init__(self, wrapped: Any, start: float, most: float, *, gentle: bool) -> None:
        self._wrapped, self._limit, self._most, self._gentle = wrapped, start, most, gentle
        self._inside, self._cut = 0, 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        loop = asyncio.get_running_loop()
        self._waiting.append(turn := loop.create_future())
        self._admit()
        await turn
        began = loop.time()
        response: httpx.Response = await self._wrapped.handle_async_request(request)
        await response.aread()
        if response.status_code == OK:
            if 2 * self._inside >= self._limit:
                self._limit += 1 / self._limit if self._gentle else 1.0
        elif not self._gentle or began > self._cut:
            self._limit *= 0.5 if self._gentle else 0.9
            self._cut = loop.time()
        self._limit = min(self._most, max(1.0, self._limit))
        self._inside -= 1
        self._admit()
        return response

    def _admit(self) -> None:
        while self._waiting and self._inside < int(self._limit):
            self._inside += 1
            self._waiting.popleft().set_result(None)


class Modelled(httpx.AsyncBaseTransport):
    """Brings requests to an upstream in the same loop."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(TRIP)
        answers = asyncio.Queue[Any]()
        self._upstream.ask(
            request.url.path, lambda status, told: answers.put_nowait((status, told))
        )
        status, told = await answers.get()
        await asyncio.sleep(TRIP)
        return httpx.Response(status, headers={"Retry-After": told} if told else {})


def _key(request: httpx.Request) -> str:
    return request.url.path.split("/")[2]


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a fleet, which has a number and the name of its semaphore."""

    scenario: Scenario
    how: str
    fleet: int
    name: str

    @property
    def limit(self) -> int:
        return self.scenario.limits[self.fleet]

    def semaphore(self, client: Any) -> AnySemaphore:
        keys = self.scenario.keys
        of_keys: dict[str, Any] = {"key_limit": self.limit} if keys else {}
        return OURS[self.how](client, self.name, self.limit * max(1, keys), **of_keys)

    def _transport(self, client: Any, wrapped: Any, permits: int) -> httpx.AsyncBaseTransport:
        if self.how not in OURS:
            start = self.limit / self.scenario.processes
            return Aimd(wrapped, start, self.limit, gentle=self.how == "gentle")
        key = _key if self.scenario.keys else ...
        options: dict[str, Any] = {"key": key, "permits": permits, "timeout": None}
        return SemaphoreTransport(self.semaphore(client), wrapped, back_off=True, **options)

    async def call_on(self, client: Any, url: str, wrap: Callable[[], Any], begin: float) -> None:
        """Call the upstream in all tasks until the end of the scenario."""
        scenario, loop, who = self.scenario, asyncio.get_running_loop(), "abcdef"[self.fleet]
        ends = begin + scenario.seconds

        async def call(http: httpx.AsyncClient, path: str) -> None:
            while True:
                await http.get(url + path)

        async with AsyncExitStack() as stack:

            async def http(permits: int) -> httpx.AsyncClient:
                transport = self._transport(client, wrap(), permits)
                made = httpx.AsyncClient(transport=transport, timeout=60, trust_env=False)
                return await stack.enter_async_context(made)

            light, keys = await http(1), max(1, scenario.keys)
            calls = [call(light, f"/{who}/{n % keys}/1") for n in range(scenario.tasks)]
            if scenario.heavy:
                path = f"/{who}-heavy/0/{scenario.heavy}"
                calls.append(call(await http(scenario.heavy), path))
            await asyncio.sleep(begin + self.fleet * scenario.joins - loop.time())
            tasks = [asyncio.create_task(each) for each in calls]
            await asyncio.wait(tasks, timeout=ends - loop.time(), return_when="FIRST_EXCEPTION")
            failed = [task for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task in failed:
                task.result()


def _fleets(scenario: Scenario, how: str, prefix: str) -> list[Process]:
    numbers = [*range(len(scenario.limits))] * scenario.processes
    return [Process(scenario, how, fleet, f"{prefix}-{fleet}") for fleet in numbers]


def _checked(scenario: Scenario, how: str, result: Result) -> Result:
    for who, limit in zip("abcdef", scenario.limits if how in OURS else (), strict=False):
        most, allowed = most_inside(result.events, who), limit * max(1, scenario.keys)
        if most > allowed:
            raise LimitExceeded(most, allowed)
    return result


@asynccontextmanager
async def children(count: int, loop: LoopName) -> AsyncGenerator[list[Child]]:
    """An upstream's process, and after it so many of fleets."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(child(loop)) for _ in range(1 + count)]


async def _work(context: Context, redis: str, process: Process, url: str, begin: float) -> None:
    """A job: be that process."""
    client: Redis = await context.once(redis, lambda: Redis.from_url(redis))
    unbounded = httpx.Limits(max_connections=None)
    wrap = partial(httpx.AsyncHTTPTransport, limits=unbounded)
    await process.call_on(client, url, wrap, begin)


async def run(scenario: Scenario, how: str, redis: str, processes: Sequence[Child]) -> Result:
    """Run *scenario* in real processes: of these, the first is the upstream's."""
    fleets, begin = _fleets(scenario, how, name_for("back-off")), time.monotonic() + START_DELAY
    upstream, *workers = processes
    async with Redis.from_url(redis) as client:
        url = await upstream.run(listen, scenario.phases, scenario.hold, begin)
        result, before = Result([]), await scripts_run(client)
        pairs = zip(workers, fleets, strict=False)
        jobs = (worker.run(_work, redis, process, url, begin) for worker, process in pairs)
        await asyncio.gather(*jobs)
        after, result.events = await scripts_run(client), await upstream.run(recorded)
        result.scripts = after[0] - before[0]
        result.script_us = (after[1] - before[1]) / max(1, result.scripts)
        for process in fleets[: len(scenario.limits)] if how in OURS else ():
            await process.semaphore(client).delete()
    return _checked(scenario, how, result)


def simulate(scenario: Scenario, how: str) -> Result:
    """Run *scenario* in simulated time, where nothing but the upstream takes any."""
    from tests.worlds.simulated_time import in_simulated_time

    memory, result = MemoryBackend(), Result([])
    server: Any = cast("Any", memory)._store.redis
    evaluate = server.eval

    def counted(*arguments: Any) -> Any:
        result.scripts += 1
        return evaluate(*arguments)

    async def measure() -> None:
        upstream = Upstream(scenario.phases, scenario.hold)
        result.events, wrap = upstream.events, partial(Modelled, upstream)
        fleets = _fleets(scenario, how, "fleet")
        await asyncio.gather(*(f.call_on(memory.peer(), "http://model", wrap, 0) for f in fleets))

    server.eval = counted
    in_simulated_time(measure)
    return _checked(scenario, how, result)
