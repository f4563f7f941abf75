"""A soak: many processes, many semaphores, many faults, and the journal checked along the way."""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

from redis.asyncio import Redis

import redsem_async
from redsem_async import SemaphoreError
from redsem_async.testing._embedded import EmbeddedRedis, embedded_redis
from tests.harness.proxy import Proxy
from tests.harness.wait import until
from tests.scripts.history import of_key, of_slot
from tests.scripts.journal import JournalChecker
from tests.scripts.recording import Flushed, journal_key, record_of
from tests.worlds.look import PARKED
from tests.worlds.soak.chaos import Chaos, forget_the_past
from tests.worlds.soak.fleet import Sizes, Tally, Worker
from tests.worlds.soak.plan import (
    KEYS,
    LONGEST_LEASE,
    ON_THE_WAY,
    PREFIX,
    Fault,
    Place,
    Plan,
    places,
)

JOURNAL = journal_key(PREFIX)
PIECE = 500  # records fetched at a time
SLICE = 10  # records checked before the proxies have their turn
MOST_BEHIND = 20_000  # records, from which on the processes rest
RESTING = 5.0  # seconds between two stays, while the journal is far behind
LONGER = 60.0  # seconds that a busy machine may need for all faults and modes to happen
GROWTH = 8 << 20  # bytes that a process may grow by, beside a tenth
SETTLED = 20  # samples, after which a process has made all that it keeps
OBJECTS_GROWTH = 5000  # that the collector knows, and cannot collect
OPEN_GROWTH = 25  # tasks or file descriptors


@dataclass
class Report:
    """What a soak came to."""

    plan: Plan
    checker: JournalChecker
    seconds: float = 0.0
    checking: float = 0.0  # seconds of processor time
    faults: Counter[Fault] = field(default_factory=Counter[Fault])
    stays: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    leftovers: list[str] = field(default_factory=list[str])
    growth: list[str] = field(default_factory=list[str])
    sizes: list[tuple[dict[str, float], dict[str, float]]] = field(
        default_factory=list[tuple[dict[str, float], dict[str, float]]]
    )
    tried: int = 0  # semaphores of which every permit was there afterwards
    keys_left: int = 0
    longest_ttl: float = 0.0

    @property
    def violations(self) -> list[str]:
        found = [str(violation) for violation in self.checker.findings.violations]
        return [*found, *self.leftovers, *self.growth]

    @property
    def never_happened(self) -> list[Fault]:
        return [fault for fault in self.plan.faults if not self.faults[fault]]


class Drain:
    """Fetches the journal and has it checked, and knows how far it has come."""

    def __init__(self, redis: Redis, checker: JournalChecker) -> None:
        self.checking = 0.0
        self._since = 0  # records, since the history was looked at
        self._redis = redis
        self._checker = checker
        self._turn = asyncio.Lock()

    async def once(self) -> bool:
        """Fetch and check a piece. Returns whether that was the end of the journal for now."""
        async with self._turn:
            at = time.time()
            fetched = cast("list[bytes] | None", await self._redis.lpop(JOURNAL, PIECE)) or []
            await self._check(fetched)
            at_end = len(fetched) < PIECE
            if not at_end:
                at = record_of(fetched[-1]).server_us / 1e6
            # To advance is to look at all that is open: seldom enough, it is linear work.
            self._since += len(fetched)
            if at_end or self._since > len(self._checker.history):
                self._since = 0
                self._checker.history.advance(at)
            return at_end

    async def lose(self, fault: Fault, server: EmbeddedRedis) -> None:
        """Let the server forget everything, but for the end of the journal."""
        async with self._turn:
            if fault == "flushall":
                pipeline: Any = self._redis.pipeline(transaction=True)
                pipeline.lrange(JOURNAL, 0, -1).flushall().time()
                fetched, _, (seconds, us) = await pipeline.execute()
                at = seconds * 1_000_000 + us
            else:
                # No script runs any more, and what the last ones did can be read.
                await self._redis.client_pause(60_000, all=False)
                fetched = cast("list[bytes]", await self._redis.lrange(JOURNAL, 0, -1))
                await asyncio.to_thread(server.restart)
                at = int(time.time() * 1e6)
                await self._redis.connection_pool.disconnect()
            await self._check(fetched)
            self._checker.feed([Flushed(at)])

    async def behind(self) -> int:
        """How many records are not checked yet."""
        async with self._turn:  # not while the server restarts
            return int(await self._redis.llen(JOURNAL))

    async def _check(self, fetched: Sequence[bytes]) -> None:
        for start in range(0, len(fetched), SLICE):
            began = time.thread_time()
            self._checker.feed(map(record_of, fetched[start : start + SLICE]))
            self.checking += time.thread_time() - began
            await asyncio.sleep(0)


async def soak(plan: Plan) -> Report:
    known = places(plan)
    ceilings = {place.name: place.ceiling for place in known}
    ceilings |= {
        of_key(place.name, key): place.key_ceiling for place in known for key in KEYS * place.keyed
    }
    ceilings |= {
        of_slot(place.name, slot): 1
        for place in known
        for slot in range(place.ceiling * place.slotted)
    }
    checker = JournalChecker(ceilings)
    report = Report(plan, checker)
    began = time.monotonic()
    async with _surroundings(plan) as (server, admin, reader, proxies):
        drain = Drain(reader, checker)
        tally = Tally(checker)
        proxied = not set(ON_THE_WAY).isdisjoint(plan.faults)
        workers = [
            # A proxy costs more than what passes it: for faults that need one alone.
            Worker(number, plan, [server.url, proxy.url if proxied else server.url], tally)
            for number, proxy in enumerate(proxies)
        ]
        chaos = Chaos(
            plan, server, admin, workers, proxies, lambda fault: drain.lose(fault, server)
        )
        try:
            await asyncio.gather(*(worker.start() for worker in workers))
            await _go_on(plan, report, workers, proxies, drain, chaos)
            for worker in workers:
                worker.command("end")
            await asyncio.wait_for(_all_end(workers, drain), 60)
        finally:
            for worker in workers:
                await worker.end()
        while not await drain.once():
            pass
        checker.history.finish()
        report.seconds = time.monotonic() - began
        report.checking = drain.checking
        report.faults, report.stays, report.outcomes = chaos.happened, tally.stays, tally.outcomes
        _judge_growth(report, tally.sizes)
        await _look_for_leftovers(report, known, server, reader)
    return report


@asynccontextmanager
async def _surroundings(
    plan: Plan,
) -> AsyncGenerator[tuple[EmbeddedRedis, Redis, Redis, list[Proxy]]]:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(embedded_redis())
        admin, reader = [
            await stack.enter_async_context(
                Redis.from_url(server.url, socket_timeout=None, client_name="admin")
            )
            for _ in range(2)
        ]
        proxies = [
            await stack.enter_async_context(Proxy(server.port)) for _ in range(plan.processes)
        ]
        yield server, admin, reader, proxies


async def _go_on(
    plan: Plan,
    report: Report,
    workers: Sequence[Worker],
    proxies: Sequence[Proxy],
    drain: Drain,
    chaos: Chaos,
) -> None:
    ending = asyncio.Event()
    await until(lambda: all(worker.sizes.sizes for worker in workers), "all have begun", 60)
    causing = asyncio.create_task(chaos.go_on(ending))
    ends = time.monotonic() + plan.seconds
    resting = False
    looked = 0.0
    modes = {place.mode for place in places(plan)}
    scripts = {f"{mode} {op}" for mode in modes for op in ("acquire", "release")}

    def complete() -> bool:
        return chaos.complete and scripts <= report.checker.scripts.keys()

    while (now := time.monotonic()) < ends or (now < ends + LONGER and not complete()):
        at_end = await drain.once()
        if plan.operations is not None and report.checker.operations >= plan.operations:
            break
        if at_end:
            await asyncio.sleep(0.05)
        if time.monotonic() - looked > 2.0:
            looked = time.monotonic()
            behind = await drain.behind() > MOST_BEHIND
            if behind is not resting:
                resting = behind
                for worker in workers:
                    worker.command("rest", RESTING if behind else plan.rest)
            for proxy in proxies:
                forget_the_past(proxy)
    ending.set()
    while not causing.done():
        await drain.once()
        await asyncio.sleep(0.05)
    await causing


async def _all_end(workers: Sequence[Worker], drain: Drain) -> None:
    ended = asyncio.gather(*(worker.ended() for worker in workers))
    while not ended.done():
        await drain.once()
        await asyncio.sleep(0.02)
    await ended


# -- afterwards


def _judge_growth(report: Report, all_sizes: Sequence[Sizes]) -> None:
    """The end of each process beside an early plateau, and what was left at its very end."""
    for number, sizes in enumerate(all_sizes):
        first, count = sizes.sizes[0] if sizes.sizes else {}, len(sizes.sizes)
        rest = sizes.rest
        if rest is not None and (rest["tasks"] > 2 or rest["fds"] > first["fds"] + 1):
            report.growth.append(f"process {number} was left with {rest}, not {first}")
        if count < 2 * SETTLED:
            continue
        early, late = (
            {what: statistics.median(size[what] for size in part) for what in first}
            for part in (sizes.sizes[SETTLED : SETTLED + count // 5], sizes.sizes[-count // 5 :])
        )
        report.sizes.append((early, late))
        if late["rss"] > 1.1 * early["rss"] + GROWTH:
            report.growth.append(f"process {number} grew from {early} to {late}")
        if late["objects"] > early["objects"] + OBJECTS_GROWTH:
            report.growth.append(f"process {number} keeps more and more: {early} to {late}")
        if any(late[what] > early[what] + OPEN_GROWTH for what in ("tasks", "fds")):
            report.growth.append(f"process {number} has more and more: {early} to {late}")


async def _look_for_leftovers(
    report: Report, known: Sequence[Place], server: EmbeddedRedis, admin: Redis
) -> None:
    """Every permit is there, nobody waits, and what is left ends by itself."""
    left = report.leftovers
    connections = [client["name"] for client in await admin.client_list()]
    if extra := [name for name in connections if name != "admin"]:
        left.append(f"connections stayed open: {extra}")
    async with Redis.from_url(server.url) as client:
        keys = {place: place.semaphore(client, 0) for place in known}
        used = {key.split(b"}")[0] for key in await _keys(admin)}
        there = [p for p in known if f"{PREFIX}:{{{p.name}".encode() in used]
        for start in range(0, len(there), 50):
            some = there[start : start + 50]
            await asyncio.gather(*(_take_all(place, keys[place], left) for place in some))
        report.tried = len(there)
        await redsem_async.aclose(client)
    await admin.delete(JOURNAL)
    for key in await _keys(admin):
        ttl = await admin.pttl(key)
        report.keys_left += 1
        report.longest_ttl = max(report.longest_ttl, ttl / 1000)
        kind = key.rpartition(b":")[2]
        expires = ttl >= 0 and kind in (b"meta", b"hubs")
        if kind == b"slots":  # the list of them, and nobody's slot
            expires = ttl >= 0 and await admin.hkeys(key) == [b"list"]
        # Requests of killed processes are there until those count as dead.
        if kind == b"keys":
            expires = ttl >= 0 and all(text[:1] == b"g" for text in await admin.zrange(key, 0, -1))
        if kind == b"queue":
            expires = ttl >= 0 and not await admin.zcount(key, -PARKED, "+inf")
        if not expires:
            left.append(f"{key!r} was left, for {ttl} ms")


async def _keys(admin: Redis) -> list[bytes]:
    keys = cast("AsyncIterator[bytes]", admin.scan_iter(f"{PREFIX}:{{*", count=1000))
    return [key async for key in keys]


async def _take_all(place: Place, semaphore: redsem_async.AnySemaphore, left: list[str]) -> None:
    """Killed processes hold and wait until their time has run out; then every permit is there."""

    async def idle() -> bool:
        with suppress(redsem_async.BackendUnavailable):  # a busy machine: not known
            await semaphore.reap()
            status = await semaphore.status()
            return not (status.held or status.waiting)
        return False

    try:
        await until(idle, f"{place.name} is idle", 4 * LONGEST_LEASE)
        if place.mutable:
            await semaphore.set_limit(None)
        no_key: dict[str, Any] = {}
        if isinstance(semaphore, redsem_async.FairSemaphore) and place.keyed:
            no_key["key"] = None
            for key in KEYS:
                await semaphore.set_limit(None, key=key)
        # Not at once: after a loss of state nobody may be admitted for a lease.
        timeout = 2 * place.lease + 5.0
        acquiring = semaphore.acquire(permits=semaphore.limit, timeout=timeout, **no_key)
        await (await acquiring).release()
    except (AssertionError, SemaphoreError) as error:
        left.append(f"a permit of {place.name} is missing: {error!r}")
