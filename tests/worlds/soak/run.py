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
from tests.worlds.soak.plan import ALL_LOST, KEYS, LONGEST_LEASE, ON_THE_WAY, PREFIX, Place, Plan
from tests.worlds.soak.plan import places as places_of

JOURNAL = journal_key(PREFIX)
PIECE = 200  # records fetched at a time
MOST_BEHIND = 5_000  # records, from which on the processes rest
RESTING = 5.0  # seconds between two stays, while the journal is far behind
LONGER = 60.0  # seconds that a busy machine may need for all faults and modes to happen
PHASES = 4  # in which the server loses everything
SETTLED = 3  # samples, after which a process has made all that it keeps
# How much a process may grow by, beside a tenth of its memory.
GROWTH = {"rss": 8 << 20, "objects": 5000, "tasks": 25, "fds": 25}
_ROOT = Path(__file__).parents[3]
# Behind everything else on the path: the package that is installed is the one to run.
_RUN = f"""
import runpy, sys
sys.path.append({str(_ROOT)!r})
runpy.run_module("tests.worlds.soak.worker", run_name="__main__")
"""


class Worker:
    """One process, as seen from outside: started, stopped, killed, and read from."""

    def __init__(self, number: int, soak: "Soak", urls: list[str]) -> None:
        self.number = number
        self.stopped = False
        self.blocks = 0
        self.sizes: list[dict[str, int]] = []
        self._soak = soak
        self._urls = urls
        self._started = 0
        self._process: Any = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def runs(self) -> bool:
        there = self._process is not None and self._process.returncode is None
        return there and not self.stopped

    async def start(self) -> None:
        self._started += 1
        self.stopped, self.sizes = False, []
        options = {"number": self.number, "plan": asdict(self._soak.plan), "urls": self._urls}
        options["seed"] = hash((self._soak.plan.seed, self.number, self._started))
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", _RUN, json.dumps(options)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        self._soak.sizes.append(self.sizes)
        self._reading = asyncio.create_task(self._read(self._process.stdout))

    def command(self, *words: object) -> None:
        with suppress(ConnectionError):
            self._process.stdin.write(json.dumps(words).encode() + b"\n")

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)
        self.stopped = number == signal.SIGSTOP

    async def end(self, *, kill: bool = True) -> None:
        """Wait for its end and its last report. One that was not killed ends without an error."""
        if self._process is None:
            return
        if kill and self._process.returncode is None:
            self.signal(signal.SIGKILL)
        assert self._reading is not None
        await self._reading
        if await self._process.wait() not in (0, -signal.SIGKILL):
            self._soak.wrong(f"process {self.number} ended with {self._process.returncode}")

    @property
    def is_stopped(self) -> bool:
        """Whether the system says so, where it does."""
        stat = Path(f"/proc/{self._process.pid}/stat")
        return not stat.exists() or stat.read_text("utf-8").rpartition(")")[2].split()[0] == "T"

    async def _read(self, reports: asyncio.StreamReader) -> None:
        soak, count = self._soak, 0
        while (line := await reports.readline()).endswith(b"\n"):
            match json.loads(line):
                case ["stay", identity, held, *times, released]:
                    expiry, token, permits, key, slots = held
                    permit = Permit(expiry, token, permits, key, tuple(slots))
                    since, ended, asked = (moment + soak.ahead for moment in times)
                    stay = Stay(str(self.number), identity, permit, since, ended, asked, released)
                    soak.checker.left(stay)
                case ["size", size]:
                    self.sizes.append(size)
                case ["blocked"]:
                    self.blocks += 1
                case ["end", outcomes, rest]:
                    soak.outcomes.update(outcomes)
                    if rest["tasks"] > 2 or rest["fds"] > self.sizes[0]["fds"] + 1:
                        soak.wrong(f"process {self.number} was left with {rest}")
                case said:
                    soak.wrong(f"process {self.number} said {said}")
            count += 1
            if count % 100 == 0:
                await asyncio.sleep(0)


class Soak:
    """One soak, and what it came to."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.places = places_of(plan)
        self.checker = JournalChecker()
        self.faults: Counter[str] = Counter()  # that happened
        self.outcomes: Counter[str] = Counter()
        self.sizes: list[list[dict[str, int]]] = []
        self.seconds = 0.0
        self.ahead = time.time() - now()  # of the server's clock, to that of all processes
        self._dice = random.Random(plan.seed)
        self._workers: list[Worker] = []
        self._proxies: list[Proxy] = []
        self._turn = asyncio.Lock()  # to read the journal
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: EmbeddedRedis
        self._admin: Any
        self._reader: Any

    def wrong(self, what: str) -> None:
        self.checker.broken("nothing unexpected happens", what)

    @property
    def complete(self) -> bool:
        """Whether each fault has happened, and each script has run in each mode."""
        scripts = {f"{p.mode} {name}" for p in self.places for name in ("acquire", "release")}
        return self.faults.keys() >= {*self.plan.faults} and scripts <= self.checker.scripts.keys()

    async def run(self) -> None:
        began = time.monotonic()
        async with AsyncExitStack() as stack:
            self._server = stack.enter_context(embedded_redis())
            options: dict[str, Any] = {"socket_timeout": None, "client_name": "admin"}
            clients = [Redis.from_url(self._server.url, **options) for _ in range(2)]
            self._admin, self._reader = [await stack.enter_async_context(c) for c in clients]
            for number in range(self.plan.processes):
                proxy = await stack.enter_async_context(Proxy(self._server.port))
                self._proxies.append(proxy)
                # A proxy costs more than what passes it: for faults that need one alone.
                proxied = not {*ON_THE_WAY}.isdisjoint(self.plan.faults)
                urls = [self._server.url, proxy.url if proxied else self._server.url]
                self._workers.append(Worker(number, self, urls))
            try:
                await asyncio.gather(*(worker.start() for worker in self._workers))
                await until(lambda: all(worker.sizes for worker in self._workers), "all begin", 60)
                await self._go_on()
                for worker in self._workers:
                    worker.command("end")
                ends = asyncio.gather(*(worker.end(kill=False) for worker in self._workers))
                async with asyncio.timeout(60):
                    while not ends.done():
                        await self._drain()
                        await asyncio.sleep(0.02)
                    await ends
            finally:
                for worker in self._workers:
                    await worker.end()
            while not await self._drain():
                pass
            self.checker.advance(float("inf"))
            self.seconds = time.monotonic() - began
            self._judge_growth()
            await self._look_for_leftovers()

    async def _go_on(self) -> None:
        causing, resting = asyncio.create_task(self._cause_faults()), False
        while not causing.done():
            if await self._drain():
                await asyncio.sleep(0.05)
            async with self._turn:  # not while the server restarts
                behind = await self._reader.llen(JOURNAL) > MOST_BEHIND
            if behind is not resting:
                resting = behind
                for worker in self._workers:
                    worker.command("rest", RESTING if behind else self.plan.rest)
            for proxy in self._proxies:  # a soak is long: keep only the latest
                del proxy.sent[:-500]
                proxy.connections[:] = proxy.open_connections()
        await causing

    # -- the journal

    async def _drain(self) -> bool:
        """Fetch and check a piece. Returns whether that was the end of the journal for now."""
        async with self._turn:
            at = time.time()
            fetched: list[bytes] = await self._reader.lpop(JOURNAL, PIECE) or []
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
            if fault == "flushall":
                pipeline = self._reader.pipeline(transaction=True)
                pipeline.lrange(JOURNAL, 0, -1).flushall().time()
                fetched, _, (seconds, us) = await pipeline.execute()
                at = seconds * 1_000_000 + us
            else:
                # No script runs any more, and what the last ones did can be read.
                await self._reader.client_pause(60_000, all=False)
                fetched = await self._reader.lrange(JOURNAL, 0, -1)
                await asyncio.to_thread(self._server.restart)
                at = int(time.time() * 1e6)
                for client in (self._reader, self._admin):
                    await client.connection_pool.disconnect()
            await self._check(fetched)
            self.checker.feed([Flushed(at)])

    # -- faults

    async def _cause_faults(self) -> None:
        """Some of them at the same time; all is healed afterwards."""
        plan, dice, lost = self.plan, self._dice, 0
        phases = [fault for fault in ALL_LOST if fault in plan.faults]
        often = [fault for fault in plan.faults if fault not in ALL_LOST]
        began = time.monotonic()
        while (passed := time.monotonic() - began) < plan.seconds + LONGER * (not self.complete):
            share = passed / plan.seconds
            if phases and lost < PHASES and share > 0.25 + lost * 0.15:
                # In a phase of its own: what else goes on is seen through first.
                await asyncio.gather(*self._tasks)
                await self._cause(phases[lost % len(phases)])
                lost += 1
            elif often:
                missing = [fault for fault in often if not self.faults[fault]]
                task = asyncio.create_task(self._cause(dice.choice(missing or often)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(dice.random() * 2 * plan.pause)
        await asyncio.gather(*self._tasks)

    async def _cause(self, fault: str) -> None:
        with suppress(RedisError, OSError):  # the server was just being restarted
            self.faults[fault] += await self._strike(fault)

    async def _strike(self, fault: str) -> bool:
        """Cause *fault*. Returns whether it happened."""
        dice, admin = self._dice, self._admin
        running = [worker for worker in self._workers if worker.runs]
        if not running:
            return False
        worker = dice.choice(running)
        match fault:
            case "client kill":
                if dice.random() < 0.2:
                    return bool(await admin.client_kill_filter(_type="pubsub"))
                clients = await admin.client_list()
                theirs = [each["id"] for each in clients if each["name"].startswith("soak-")]
                return bool(theirs and await admin.client_kill_filter(_id=dice.choice(theirs)))
            case "script flush":
                return bool(await admin.script_flush())
            case "client pause":
                return bool(await admin.client_pause(dice.randint(50, 500)))
            case "stop":
                worker.signal(signal.SIGSTOP)
                try:
                    await asyncio.sleep(dice.choice((0.1, 0.4, 1.5 * LONGEST_LEASE)))
                    return worker.is_stopped
                finally:
                    worker.signal(signal.SIGCONT)
            case "kill -9":  # one of the first half: the others are watched for what grows
                mortal = [each for each in running if each.number < len(self._workers) / 2]
                if not mortal:
                    return False
                worker = dice.choice(mortal)
                await worker.end()
                await asyncio.sleep(dice.uniform(0.0, 2.0))
                await worker.start()
                return True
            case "blocked loop":
                before, seconds = worker.blocks, dice.uniform(0.05, 1.5)
                worker.command("block", seconds)
                await asyncio.sleep(seconds + 0.5)
                return worker.blocks > before
            case "flushall" | "restart":
                await self._lose_everything(fault)
                return True
            case _:
                return await self._on_the_way(fault, dice.choice(self._proxies))

    async def _on_the_way(self, fault: str, proxy: Proxy) -> bool:
        dice, there = self._dice, bool(proxy.open_connections())
        match fault:
            case "half-open":
                proxy.half_open()
            case "mute server":
                proxy.mute()
            case "dropped connection" | "refused connections" | "delay":
                proxy.drop()
                proxy.refusing = fault == "refused connections"
                # Changed between connections alone: a stream stays in order.
                proxy.delay = dice.uniform(0.001, 0.02) if fault == "delay" else 0.0
                await asyncio.sleep(dice.uniform(0.05, 1.0))
                if proxy.delay:
                    proxy.drop()
                proxy.refusing, proxy.delay = False, 0.0
            case "late duplicate":
                sent = [s for s in proxy.sent[-200:] if s.operation in ("EVAL", "EVALSHA")]
                if sent:
                    await asyncio.sleep(dice.choice((0.0, 0.05, 2.0)))
                    await say_again(self._server.port, dice.choice(sent))
                return bool(sent)
            case _:
                causes = {"lost reply": proxy.swallow, "late reply": proxy.hold}
                struck = causes.get(fault, proxy.cut)("EVALSHA")
                with suppress(TimeoutError):
                    await asyncio.wait_for(struck.struck.wait(), 2.0)
                if fault == "late reply":
                    await asyncio.sleep(dice.uniform(0.05, 1.0))
                struck.lift()
                if struck in proxy._faults:
                    proxy._faults.remove(struck)
                return struck.struck.is_set()
        return there

    # -- afterwards

    def _judge_growth(self) -> None:
        """The end of each process beside an early plateau."""
        for sizes in self.sizes:
            count = len(sizes) // 5
            if len(sizes) < 2 * SETTLED + 5:
                continue
            for what, most in GROWTH.items():
                early = statistics.median(size[what] for size in sizes[SETTLED:][: count + 1])
                late = statistics.median(size[what] for size in sizes[-count:])
                if late > early * (1.1 if what == "rss" else 1.0) + most:
                    self.wrong(f"a process grew from {early} to {late} {what}")

    async def _look_for_leftovers(self) -> None:
        """Every permit is there, nobody waits, and what is left ends by itself."""
        admin = self._admin
        names = [client["name"] for client in await admin.client_list()]
        if extra := [name for name in names if name != "admin"]:
            self.wrong(f"connections stayed open: {extra}")
        async with Redis.from_url(self._server.url) as client:
            used = {key.split(b"}")[0] for key in await self._keys()}
            there = [p for p in self.places if f"{PREFIX}:{{{p.name}".encode() in used]
            for start in range(0, len(there), 50):
                some = there[start : start + 50]
                await asyncio.gather(*(self._take_all(p, p.semaphore(client, 0)) for p in some))
            await redsem_async.aclose(client)
        for key in await self._keys():
            if await admin.pttl(key) < 0 or key.rpartition(b":")[2] not in (b"meta", b"hubs"):
                self.wrong(f"{key!r} was left")

    async def _keys(self) -> list[bytes]:
        found = cast("AsyncIterator[bytes]", self._admin.scan_iter(f"{PREFIX}:{{*", count=1000))
        return [key async for key in found]

    async def _take_all(self, place: Place, semaphore: redsem_async.AnySemaphore) -> None:
        """Killed processes hold and wait until their time has run out; then all is free."""

        async def idle() -> bool:
            with suppress(redsem_async.BackendUnavailable):  # a busy machine: not known
                await semaphore.reap()
                status = await semaphore.status()
                return not (status.held or status.waiting)
            return False

        try:
            await until(idle, f"{place.name} is idle", 4 * LONGEST_LEASE)
            no_key: dict[str, Any] = {}
            if isinstance(semaphore, redsem_async.FairSemaphore) and place.keyed:
                no_key["key"] = None
                for key in KEYS:
                    await semaphore.set_limit(None, key=key)
            await semaphore.set_limit(None)
            timeout = 2 * place.lease + 5.0
            taken = semaphore.acquire(permits=semaphore.limit, timeout=timeout, **no_key)
            await (await taken).release()
        except (AssertionError, SemaphoreError) as error:
            self.wrong(f"a permit of {place.name} is missing: {error!r}")
