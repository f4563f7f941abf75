"""The faults of a soak: one after the other, at random, each seen to have happened."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from redis.asyncio import Redis
from redis.exceptions import RedisError

from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.proxy import Proxy, say_again
from tests.worlds.soak.fleet import Worker
from tests.worlds.soak.plan import LONGEST_LEASE, Fault, Plan

_SCRIPTS = ("EVAL", "EVALSHA")


class Chaos:
    """Causes faults until its end, and counts those that happened, by kind."""

    def __init__(
        self,
        plan: Plan,
        server: EmbeddedRedis,
        admin: Redis,
        workers: Sequence[Worker],
        proxies: Sequence[Proxy],
        lose_everything: Callable[[Fault], Awaitable[None]],
    ) -> None:
        self.happened: Counter[Fault] = Counter()
        self._plan = plan
        self._server = server
        self._admin = admin
        self._workers = workers
        self._proxies = proxies
        self._lose_everything = lose_everything
        self._dice = random.Random(plan.seed)
        self._tasks: set[asyncio.Task[None]] = set()

    async def go_on(self, ending: asyncio.Event) -> None:
        """Faults, some of them at the same time, until *ending*; all is healed afterwards."""
        rare: tuple[Fault, ...] = ("flushall", "restart")
        often: list[Fault] = [fault for fault in self._plan.faults if fault not in rare]
        phases: list[Fault] = [fault for fault in rare if fault in self._plan.faults]
        began = asyncio.get_running_loop().time()
        lost = 0
        while not ending.is_set():
            passed = (asyncio.get_running_loop().time() - began) / self._plan.seconds
            if phases and passed > 0.25 + lost * 0.15 and (passed < 0.8 or not self.complete):
                # In a phase of its own: what else goes on is seen through first.
                await self._all_done()
                await self._cause(phases[lost % len(phases)])
                lost += 1
            elif often:
                missing: list[Fault] = [fault for fault in often if not self.happened[fault]]
                task = asyncio.create_task(self._cause(self._dice.choice(missing or often)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ending.wait(), self._dice.random() * 2 * self._plan.pause)
        await self._all_done()

    @property
    def complete(self) -> bool:
        return all(self.happened[fault] for fault in self._plan.faults)

    async def _all_done(self) -> None:
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _cause(self, fault: Fault) -> None:
        try:
            if await self._strike(fault):
                self.happened[fault] += 1
        except (RedisError, OSError):
            pass  # the server was just being restarted: it did not happen

    async def _strike(self, fault: Fault) -> bool:
        dice = self._dice
        match fault:
            case "client kill":
                return await self._kill_one()
            case "kill all subscribers":
                return bool(await self._admin.client_kill_filter(_type="pubsub"))
            case "script flush":
                return bool(await self._admin.script_flush())
            case "client pause":
                return bool(await self._admin.client_pause(dice.randint(50, 500)))
            case "short stop":
                return await self._stop(dice.uniform(0.05, 0.4))
            case "long stop":
                return await self._stop(dice.uniform(0.5, 1.5 * LONGEST_LEASE))
            case "kill -9":
                return await self._kill_worker()
            case "blocked loop":
                return await self._block(dice.uniform(0.05, 1.5))
            case "flushall" | "restart":
                await self._lose_everything(fault)
                return True
            case _:
                return await self._on_the_way(fault, dice.choice(self._proxies))

    async def _on_the_way(self, fault: Fault, proxy: Proxy) -> bool:
        dice = self._dice
        there = bool(proxy.open_connections())
        match fault:
            case "dropped connection":
                proxy.drop()
            case "half-open":
                proxy.half_open()
            case "mute server":
                proxy.mute()
            case "refused connections":
                proxy.refusing = True
                proxy.drop()
                await asyncio.sleep(dice.uniform(0.05, 1.0))
                proxy.refusing = False
            case "delay":
                # Changed between connections alone: a stream stays in order.
                proxy.drop()
                proxy.delay = dice.uniform(0.001, 0.02)
                await asyncio.sleep(dice.uniform(0.5, 3.0))
                proxy.drop()
                proxy.delay = 0.0
            case "late duplicate":
                return await self._duplicate(proxy)
            case _:
                return await self._one_reply(fault, proxy)
        return there

    async def _one_reply(self, fault: Fault, proxy: Proxy) -> bool:
        strikes = {
            "cut before it ran": proxy.cut,
            "lost reply": proxy.swallow,
            "late reply": proxy.hold,
        }
        struck = strikes[fault]("EVALSHA")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(struck.struck.wait(), 2.0)
        if fault == "late reply":
            await asyncio.sleep(self._dice.uniform(0.05, 1.0))
        struck.lift()
        if struck in proxy._faults:
            proxy._faults.remove(struck)
        return struck.struck.is_set()

    async def _duplicate(self, proxy: Proxy) -> bool:
        scripts = [sent for sent in proxy.sent[-200:] if sent.operation in _SCRIPTS]
        if not scripts:
            return False
        sent = self._dice.choice(scripts)
        await asyncio.sleep(self._dice.choice((0.0, 0.05, 2.0)))
        await say_again(self._server.port, sent)
        return True

    async def _kill_one(self) -> bool:
        clients = await self._admin.client_list()
        names = {f"soak-{worker.number}" for worker in self._workers}
        theirs = [client["id"] for client in clients if client["name"] in names]
        if not theirs:
            return False
        return bool(await self._admin.client_kill_filter(_id=self._dice.choice(theirs)))

    def _some_worker(self) -> Worker | None:
        there = [worker for worker in self._workers if worker.alive and not worker.stopped]
        return self._dice.choice(there) if there else None

    async def _stop(self, seconds: float) -> bool:
        worker = self._some_worker()
        if worker is None:
            return False
        worker.stop()
        try:
            await asyncio.sleep(seconds)
            return worker.is_stopped()
        finally:
            worker.resume()

    async def _kill_worker(self) -> bool:
        """One of the first half: the others are watched for what grows."""
        mortal = self._workers[: len(self._workers) // 2]
        there = [worker for worker in mortal if worker.alive and not worker.stopped]
        if not there:
            return False
        worker = self._dice.choice(there)
        await worker.kill()
        await asyncio.sleep(self._dice.uniform(0.0, 2.0))
        await worker.start()
        return True

    async def _block(self, seconds: float) -> bool:
        worker = self._some_worker()
        if worker is None:
            return False
        before = worker.blocks
        worker.command("block", seconds)
        await asyncio.sleep(seconds + 0.5)
        return worker.blocks > before


def forget_the_past(proxy: Proxy) -> None:
    """Keep of what passed only the latest: a soak is long."""
    del proxy.sent[:-500]
    proxy.connections[:] = proxy.open_connections()
