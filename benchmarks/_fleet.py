"""A fleet of processes that calls an upstream on and on, with this library's back-off or another.

In real processes, or in simulated time: there the scripts run in memory, and 30 s take two.
"""

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

import httpx
from redis.asyncio import Redis

from benchmarks._bench import LimitExceeded
from benchmarks._children import Child, Context
from benchmarks._comparison import name_for
from benchmarks._upstream import OK, Event, Phase, Upstream, follow, listen, most_inside
from redsem_async import AnySemaphore, FairSemaphore, Semaphore
from redsem_async.httpx import SemaphoreTransport
from redsem_async.testing import MemoryBackend

OURS = {"fair": FairSemaphore, "zset": Semaphore}
HEAVY = "-heavy"  # behind the name of a fleet: its heavy requests
TRIP = 0.0005  # seconds from client to upstream and back, each, in simulated time
START_DELAY = 1.0  # seconds until all processes start at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """An upstream, and who calls it.

    Attributes:
        hold: seconds that the upstream takes, half more or less.
        limits: the limit of each fleet, or of a key where there are *keys*.
        joins: seconds between the fleets' beginnings.
        keys: number of keys, each with the upstream's capacity.
        heavy: permits that the heavy requests need, which one task of each process sends.
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
    """What a run of a scenario came to.

    Attributes:
        scripts: that the server ran.
        script_us: the server's time for each.
        load: of the machine when it began.
    """

    events: list[Event]
    scripts: int
    script_us: float = 0.0
    load: float = field(default_factory=lambda: os.getloadavg()[0])


class Aimd(httpx.AsyncBaseTransport):
    """Each process for itself: it adds to its limit for answers, and cuts it for refusals.

    As Netflix's AIMDLimit does, by one for each answer and by a tenth for each refusal; or with
    *gentle* as TCP, by one for each round trip, and by half once an overload.
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
        if response.status_code != OK:
            if not self._gentle or began > self._cut:
                self._limit = max(1.0, self._limit * (0.5 if self._gentle else 0.9))
                self._cut = loop.time()
        elif 2 * self._inside >= self._limit:
            gain = 1 / self._limit if self._gentle else 1.0
            self._limit = min(self._most, self._limit + gain)
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
        answered: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

        def reply(*answer: Any) -> None:
            if not answered.done():
                answered.set_result(answer)

        self._upstream.ask(request.url.path, reply)
        status, retry_after = await answered
        await asyncio.sleep(TRIP)
        return httpx.Response(status, headers={"Retry-After": retry_after} if retry_after else {})


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a fleet: its number in that, and how it is held back."""

    scenario: Scenario
    fleet: int
    how: str
    name: str

    def transport(self, client: Any, wrapped: Any, permits: int = 1) -> httpx.AsyncBaseTransport:
        scenario, limit = self.scenario, self.scenario.limits[self.fleet]
        if self.how not in OURS:
            start = limit / scenario.processes
            return Aimd(wrapped, start, limit, gentle=self.how == "gentle")
        common = limit * scenario.keys or limit
        options: dict[str, Any] = {"key_limit": limit} if scenario.keys else {}
        sem: AnySemaphore = OURS[self.how](client, self.name, common, **options)
        key: Any = (lambda request: request.url.path.split("/")[2]) if scenario.keys else ...
        more = {"key": key, "timeout": None, "permits": permits}
        return SemaphoreTransport(sem, wrapped, back_off=True, **more)

    async def call_on(self, client: Any, url: str, wrap: Callable[[], Any], begin: float) -> None:
        """Call the upstream in all tasks until the end of the scenario."""
        scenario, loop = self.scenario, asyncio.get_running_loop()
        who = chr(ord("a") + self.fleet)
        begins, ends = begin + self.fleet * scenario.joins, begin + scenario.seconds

        async def call(http: httpx.AsyncClient, path: str) -> None:
            while True:
                await http.get(url + path)

        async with AsyncExitStack() as stack:

            async def http(permits: int) -> httpx.AsyncClient:
                transport = self.transport(client, wrap(), permits)
                made = httpx.AsyncClient(transport=transport, timeout=60, trust_env=False)
                return await stack.enter_async_context(made)

            light = await http(1)
            heavy = await http(scenario.heavy) if scenario.heavy else light
            await asyncio.sleep(begins - loop.time())
            tasks = [
                asyncio.create_task(call(light, f"/{who}/{n % max(1, scenario.keys)}/1"))
                for n in range(scenario.tasks - (heavy is not light))
            ]
            if heavy is not light:
                tasks.append(asyncio.create_task(call(heavy, f"/{who}{HEAVY}/0/{scenario.heavy}")))
            await asyncio.wait(tasks, timeout=ends - loop.time(), return_when="FIRST_EXCEPTION")
            failed = [task for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task in failed:
                task.result()


async def work(context: Context, redis: str, process: Process, url: str, begin: float) -> None:
    """A job: be one process of a fleet."""
    client: Redis = await context.once(redis, lambda: Redis.from_url(redis))
    unbounded = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    wrap = partial(httpx.AsyncHTTPTransport, limits=unbounded)
    await process.call_on(client, url, wrap, begin)


async def run(scenario: Scenario, how: str, redis: str, children: Sequence[Child]) -> Result:
    """Run *scenario* in these processes, of which the first is the upstream."""
    names = [name_for("back-off") for _ in scenario.limits]
    async with Redis.from_url(redis) as client:
        url = await children[0].run(listen, scenario.phases, scenario.hold)
        ran, used = await _scripts(client)
        result = Result([], -ran)
        begin = time.monotonic() + START_DELAY
        record = asyncio.create_task(children[0].run(follow, begin))
        await asyncio.gather(
            *(
                child.run(work, redis, Process(scenario, n, how, names[n]), url, begin)
                for n, child in zip(cycle(range(len(names))), children[1:], strict=False)
            )
        )
        result.events = await record
        ran, used_now = await _scripts(client)
        result.scripts += ran
        result.script_us = (used_now - used) / max(1, result.scripts)
        for name in names:
            await FairSemaphore(client, name, 1).delete()
    return _checked(scenario, result, how)


async def _scripts(client: Redis) -> tuple[int, float]:
    """How many scripts the server ran, and its time for all of them, in µs."""
    stats: dict[str, dict[str, float]] = await client.info("commandstats")
    ran = [stats.get(f"cmdstat_{command}", {}) for command in ("eval", "evalsha", "fcall")]
    return int(sum(of.get("calls", 0) for of in ran)), sum(of.get("usec", 0) for of in ran)


def _checked(scenario: Scenario, result: Result, how: str) -> Result:
    for fleet, limit in enumerate(scenario.limits if how in OURS else ()):
        most = most_inside(result.events, chr(ord("a") + fleet))
        if most > (allowed := limit * max(1, scenario.keys)):
            raise LimitExceeded(most, allowed)
    return result


def simulate(scenario: Scenario, how: str) -> Result:
    """Run *scenario* in simulated time, on one thread."""
    from tests.worlds.simulated_time import in_simulated_time

    memory = MemoryBackend()
    ran: Counter[str] = Counter()
    evaluate = memory._store.redis.eval

    def counted(*arguments: Any) -> Any:
        ran["scripts"] += 1
        return evaluate(*arguments)

    memory._store.redis.eval = counted  # type: ignore[method-assign]
    result = Result([], 0)

    async def measure() -> None:
        upstream = Upstream(scenario.phases, scenario.hold)
        begin = asyncio.get_running_loop().time()
        fleets = [
            Process(scenario, fleet, how, f"fleet {fleet}")
            for fleet in range(len(scenario.limits))
            for _ in range(scenario.processes)
        ]
        calls = (
            process.call_on(memory.peer(), "http://model", partial(Modelled, upstream), begin)
            for process in fleets
        )
        result.events, *_ = await asyncio.gather(upstream.run(begin), *calls)

    in_simulated_time(measure)
    result.scripts = ran["scripts"]
    return _checked(scenario, result, how)
