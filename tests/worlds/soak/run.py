"""A soak: many processes, many semaphores, many faults, and the journal checked along the way."""

import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

import redsem_async
from redsem_async import SemaphoreError
from redsem_async._core.clock import now
from redsem_async.testing._embedded import EmbeddedRedis, embedded_redis
from tests.harness.proxy import Proxy, say_again
from tests.harness.wait import until
from tests.scripts.journal import JournalChecker, Stay
from tests.scripts.recording import Flushed, journal_key, record_of
from tests.worlds.look import Permit
from tests.worlds.simulation.actors import KEYS
from tests.worlds.soak.plan import LONGEST_LEASE, PREFIX, Place, Plan, places

JOURNAL = journal_key(PREFIX)
PIECE = 200  # records fetched at a time
MOST_BEHIND = 5_000  # records, from which on the processes rest
RESTING = 5.0  # seconds between two attempts, while the journal is far behind
LONGER = 60.0  # seconds that a busy machine may need for all faults and modes to happen
# How much a process may grow by in the second half, beside a tenth of its memory.
GROWTH = {"rss": 8 << 20, "objects": 5000, "tasks": 25, "fds": 25}
# Behind everything else on the path: the package that is installed is the one to run.
_RUN = f"""
import runpy, sys
sys.path.append({str(Path(__file__).parents[3])!r})
runpy.run_module("tests.worlds.soak.worker", run_name="__main__")
"""


class Worker:
    """One process, as seen from outside: started, stopped, killed, and read from."""

    def __init__(self, number: int, soak: "Soak", urls: list[str]) -> None:
        self.stopped = False
        self.sizes: list[dict[str, int]] = []
        self._soak = soak
        self._options = {"number": number, "plan": asdict(soak.plan), "urls": urls, "seed": 0}
        self.name = f"process {number}"
        self._process: Any = None
        self._reading: asyncio.Task[None]

    async def start(self) -> None:
        self.stopped, self.sizes = False, []
        self._options["seed"] = self._soak.dice.randrange(1 << 30)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", _RUN, json.dumps(self._options)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        self._soak.sizes.append(self.sizes)
        self._reading = asyncio.create_task(self._read(self._process.stdout))

    def rest(self, seconds: float | None) -> None:
        """Let it rest so long between two attempts from now on, or end."""
        with suppress(ConnectionError):
            if seconds is None:
                self._process.stdin.close()
            else:
                self._process.stdin.write(b"%f\n" % seconds)

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)
        self.stopped = number == signal.SIGSTOP

    async def end(self, *, kill: bool = True) -> None:
        """Wait for its end and its last report. One that was not killed ends without an error."""
        if self._process is None:
            return
        if kill and self._process.returncode is None:
            self.signal(signal.SIGKILL)
        await self._reading
        if await self._process.wait() not in (0, -signal.SIGKILL):
            self._soak.wrong(f"{self.name} ended with {self._process.returncode}")

    async def _read(self, reports: asyncio.StreamReader) -> None:
        soak = self._soak
        while (line := await reports.readline()).endswith(b"\n"):
            match json.loads(line):
                case ["stay", identity, held, *times]:
                    expiry, token, permits, key, slots = held
                    permit = Permit(expiry, token, permits, key, tuple(slots))
                    since, ended = (moment + soak.ahead for moment in times)
                    soak.checker.left(Stay(self.name, identity, permit, since, ended))
                    await asyncio.sleep(0)
                case ["size", size]:
                    self.sizes.append(size)
                case ["end", outcomes, rest]:
                    soak.outcomes.update(outcomes)
                    if rest["tasks"] > 1 or rest["fds"] > self.sizes[0]["fds"]:
                        soak.wrong(f"{self.name} was left with {rest}")
                case said:
                    soak.wrong(f"{self.name} said {said}")


class Soak:
    """One soak, and what it came to."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.places = places(plan)
        self.checker = JournalChecker()
        self.faults: Counter[str] = Counter()  # that happened
        self.outcomes: Counter[str] = Counter()
        self.sizes: list[list[dict[str, int]]] = []
        self.ahead = time.time() - now()  # of the server's clock, to that of all processes
        self.dice = random.Random(plan.seed)
        self._workers: list[Worker] = []
        self._proxies: list[Proxy] = []
        self._turn = asyncio.Lock()  # to read the journal
        self._server: EmbeddedRedis
        self._admin: Any

    def wrong(self, what: str) -> None:
        self.checker.broken("nothing unexpected happens", what)

    @property
    def complete(self) -> bool:
        """Whether each fault has happened, and each script has run in each mode."""
        scripts = {f"{p.mode} {name}" for p in self.places for name in ("acquire", "release")}
        return self.faults.keys() >= {*self.plan.faults} and scripts <= self.checker.scripts.keys()

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            self._server = stack.enter_context(embedded_redis())
            client: Any = Redis.from_url(
                self._server.url, socket_timeout=None, client_name="admin"
            )
            self._admin = await stack.enter_async_context(client)
            for number in range(self.plan.processes):
                proxy = await stack.enter_async_context(Proxy(self._server.port))
                self._proxies.append(proxy)
                self._workers.append(Worker(number, self, [self._server.url, proxy.url]))
            try:
                await asyncio.gather(*(worker.start() for worker in self._workers))
                await until(lambda: all(worker.sizes for worker in self._workers), "all begin", 60)
                await self._go_on()
                for worker in self._workers:
                    worker.rest(None)
                async with asyncio.timeout(60):
                    for worker in self._workers:
                        await worker.end(kill=False)
            finally:
                for worker in self._workers:
                    await worker.end()
            while not await self._drain():
                pass
            self.checker.advance(float("inf"))
            self._judge_growth()
            await self._look_for_leftovers()

    async def _go_on(self) -> None:
        causing, resting = asyncio.create_task(self._cause_faults()), False
        while not causing.done():
            if await self._drain():
                await asyncio.sleep(0.05)
            async with self._turn:  # not while the server restarts
                behind = await self._admin.llen(JOURNAL) > MOST_BEHIND
            if behind is not resting:
                resting = behind
                for worker in self._workers:
                    worker.rest(RESTING if behind else self.plan.rest)
            for proxy in self._proxies:  # a soak is long: keep only the latest
                del proxy.sent[:-500]
                proxy.connections[:] = proxy.open_connections()
        await causing

    # -- the journal

    async def _drain(self) -> bool:
        """Fetch and check a piece. Returns whether that was the end of the journal for now."""
        async with self._turn:
            at = time.time()
            fetched: list[bytes] = await self._admin.lpop(JOURNAL, PIECE) or []
            await self._check(fetched)
            if len(fetched) == PIECE:
                at = record_of(fetched[-1]).server_us / 1e6
            self.checker.advance(at)
            return len(fetched) < PIECE

    async def _check(self, fetched: list[bytes]) -> None:
        for data in fetched:
            self.checker.feed([record_of(data)])
            await asyncio.sleep(0)  # the proxies have their turn

    async def _lose_everything(self, fault: str) -> None:
        """Let the server forget everything, but for the end of the journal."""
        async with self._turn:
            admin = self._admin
            if fault == "flushall":
                pipeline = admin.pipeline(transaction=True)
                pipeline.lrange(JOURNAL, 0, -1).flushall().time()
                fetched, _, (seconds, us) = await pipeline.execute()
                at = seconds * 1_000_000 + us
            else:
                # No script runs any more, and what the last ones did can be read.
                await admin.client_pause(60_000, all=False)
                fetched = await admin.lrange(JOURNAL, 0, -1)
                await asyncio.to_thread(self._server.restart)
                at = int(time.time() * 1e6)
                await admin.connection_pool.disconnect()
            await self._check(fetched)
            self.checker.feed([Flushed(at)])

    # -- faults

    async def _cause_faults(self) -> None:
        """Several at a time, in each order; all is healed afterwards."""
        dice, faults, began = self.dice, list[str](), time.monotonic()
        async with asyncio.TaskGroup() as group:
            while time.monotonic() - began < self.plan.seconds + LONGER * (not self.complete):
                if not faults:
                    faults = dice.sample(self.plan.faults, len(self.plan.faults))
                group.create_task(self._cause(faults.pop()))
                await asyncio.sleep(dice.random() * 2 * self.plan.pause)

    async def _cause(self, fault: str) -> None:
        with suppress(RedisError, OSError):  # the server was just being restarted
            self.faults[fault] += await self._strike(fault)

    async def _strike(self, fault: str) -> bool:
        """Cause *fault*. Returns whether it happened."""
        dice, admin, proxy = self.dice, self._admin, self.dice.choice(self._proxies)
        worker, there = dice.choice(self._workers), bool(proxy.open_connections())
        match fault:
            case "client kill":
                clients = await admin.client_list()
                theirs = [each["id"] for each in clients if each["name"].startswith("soak-")]
                return bool(theirs and await admin.client_kill_filter(_id=dice.choice(theirs)))
            case "script flush":
                return bool(await admin.script_flush())
            case "client pause":
                return bool(await admin.client_pause(dice.randint(50, 500)))
            case "stop" if worker is not self._workers[0] and not worker.stopped:
                worker.signal(signal.SIGSTOP)
                await asyncio.sleep(dice.choice((0.1, 0.4, 1.5 * LONGEST_LEASE)))
                worker.signal(signal.SIGCONT)
                return True
            case "kill -9":  # the first: of the others it is known what grows
                await self._workers[0].end()
                await self._workers[0].start()
                return True
            case "flushall" | "restart":
                await self._lose_everything(fault)
                return True
            case "half-open":
                proxy.half_open()
                return there
            case "mute server":
                proxy.mute()
                return there
            case "refused connections":
                proxy.drop()
                proxy.refusing = True
                await asyncio.sleep(dice.uniform(0.05, 1.0))
                proxy.refusing = False
                return there
            case "late duplicate":
                sent = [s for s in proxy.sent[-200:] if s.operation in ("EVAL", "EVALSHA")]
                if sent:
                    await asyncio.sleep(dice.choice((0.0, 0.05, 2.0)))
                    await say_again(self._server.port, dice.choice(sent))
                return bool(sent)
            case "lost reply":
                struck = proxy.swallow("EVALSHA")
                with suppress(TimeoutError):
                    await asyncio.wait_for(struck.struck.wait(), 2.0)
                return struck.struck.is_set()
            case _:
                return False

    # -- afterwards

    def _judge_growth(self) -> None:
        """The end of each process beside its middle."""
        for sizes in self.sizes:
            count = len(sizes) // 5
            for what, most in GROWTH.items() if count > 3 else ():
                early = statistics.median(size[what] for size in sizes[2 * count : 3 * count])
                late = statistics.median(size[what] for size in sizes[-count:])
                if late > early * (1.1 if what == "rss" else 1.0) + most:
                    self.wrong(f"a process grew from {early} to {late} {what}")

    async def _look_for_leftovers(self) -> None:
        """Every permit is there, nobody waits, and what is left ends by itself."""
        names = [client["name"] for client in await self._admin.client_list()]
        if extra := [name for name in names if name != "admin"]:
            self.wrong(f"connections stayed open: {extra}")
        async with Redis.from_url(self._server.url) as client:
            await asyncio.gather(*(self._take_all(p, client) for p in self.places))
            await redsem_async.aclose(client)
        found = cast("AsyncIterator[bytes]", self._admin.scan_iter(f"{PREFIX}:{{*", count=1000))
        async for key in found:
            last = key.rpartition(b":")[2] in (b"meta", b"hubs")
            if not last or await self._admin.pttl(key) < 0:
                self.wrong(f"{key!r} was left")

    async def _take_all(self, place: Place, client: Redis) -> None:
        """Killed processes hold and wait until their time has run out; then all is free."""
        semaphore: Any = place.semaphore(client, 0)
        of: dict[str, Any] = {} if place.mode.startswith("zset") else {"key": None}
        try:
            for key in KEYS if place.keyed else ():
                await semaphore.set_limit(None, key=key)
            await semaphore.set_limit(None)
            wait = 5 * LONGEST_LEASE + 5.0
            taken = await semaphore.acquire(permits=semaphore.limit, timeout=wait, **of)
            await taken.release()
        except SemaphoreError as error:
            self.wrong(f"a permit of {place.name} is missing: {error!r}")
