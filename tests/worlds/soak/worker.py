"""A process of the soak: its tasks acquire and release permits, and it reports what it saw.

Its options are JSON; it reads a command a line, and reports each event at once, in a line. Times
are of the monotonic clock that trust is counted by, and that all processes of a machine share.
"""

import asyncio
import contextlib
import fcntl
import gc
import json
import logging
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from redis.asyncio import Redis

import redsem_async
from redsem_async import AnySemaphore, FairSemaphore, Permit, PermitLost, SemaphoreError
from redsem_async._core.clock import now
from tests.scripts.recording import install
from tests.worlds.look import Permit as Held
from tests.worlds.soak.plan import HIGHEST_LIMIT, KEYS, Place, Plan, places

SEMAPHORES = 100  # that a process keeps; of others it makes new ones
SAMPLE_EVERY = 2.0  # seconds between two reports of its size


@dataclass(slots=True, eq=False)
class Open:
    """A permit that is held, or was until *asked*."""

    place: Place
    permit: Permit
    since: float
    asked: float | None = None

    def ask(self) -> None:
        """From now on it is not trusted any more."""
        self.asked = self.asked or now()


class Process:
    """Everything that happens in one process."""

    def __init__(self, number: int, plan: Plan, urls: list[str], seed: int) -> None:
        self.number = number
        self.plan = plan
        self.places = places(plan)
        self.dice = random.Random(seed)
        named: dict[str, Any] = {"client_name": f"soak-{number}", "socket_connect_timeout": 2}
        self.clients = [Redis.from_url(url, **named) for url in urls]
        self.semaphores: dict[tuple[str, int], AnySemaphore] = {}
        self.open: list[Open] = []
        self.ending = asyncio.Event()
        self.outcomes: Counter[str] = Counter()

    # -- reports

    def report(self, event: str, *facts: object) -> None:
        os.write(1, json.dumps([event, *facts]).encode() + b"\n")

    def got(self, place: Place, permit: Permit) -> Open:
        stay = Open(place, permit, now())
        self.open.append(stay)
        return stay

    def left(self, stay: Open, released: bool | None = None) -> None:
        self.open.remove(stay)
        stay.ask()
        lease, asked = stay.permit._lease, stay.asked
        assert asked is not None
        until = min(asked, lease.trusted_until)
        held = Held.trusted(lease, 0)
        self.report("stay", lease.id, held, stay.since, until, asked, released)

    async def sample(self) -> None:
        while True:
            self.report("size", size())
            await asyncio.sleep(SAMPLE_EVERY)

    # -- doing

    def semaphore(self, place: Place, client: int) -> AnySemaphore:
        key = place.name, client
        if key not in self.semaphores:
            if len(self.semaphores) >= SEMAPHORES:
                del self.semaphores[self.dice.choice(list(self.semaphores))]
            self.semaphores[key] = place.semaphore(self.clients[client], self.number)
        return self.semaphores[key]

    async def run(self) -> None:
        sampling = asyncio.create_task(self.sample())
        async with asyncio.TaskGroup() as group:
            for _ in range(self.plan.tasks):
                group.create_task(self.work())
        sampling.cancel()
        self.semaphores.clear()
        for client in self.clients:
            await redsem_async.aclose(client)
            await client.aclose()
        while len(asyncio.all_tasks()) > 2:  # noqa: ASYNC110 - this one, and who reads commands
            await asyncio.sleep(0.01)
        self.report("end", self.outcomes, size())

    async def work(self) -> None:
        dice = self.dice
        while not self.ending.is_set():
            # The first are asked for by all, the last by hardly anybody; often several times.
            place = self.places[int(dice.random() ** 4 * len(self.places))]
            for _ in range(dice.choice((1, 1, 3, 10))):
                attempt = asyncio.create_task(self.once(place))
                if dice.random() < 0.1:
                    await asyncio.sleep(dice.choice((0.0, 0.001, 0.02)))
                    attempt.cancel()
                await asyncio.wait([attempt])
                self.count(attempt)
            await asyncio.sleep(dice.random() * self.plan.rest)

    def count(self, attempt: "asyncio.Task[str]") -> None:
        if attempt.cancelled():
            self.outcomes["cancelled"] += 1
        elif (error := attempt.exception()) is not None:
            self.outcomes[type(error).__name__] += 1
            if not isinstance(error, SemaphoreError):
                self.report("wrong", f"{error!r}")
        else:
            self.outcomes[attempt.result()] += 1

    async def once(self, place: Place) -> str:
        dice = self.dice
        client = dice.randrange(len(self.clients))
        semaphore, chance = self.semaphore(place, client), dice.random()
        if chance < 0.9:
            return await self.stay(place, semaphore)
        if chance < 0.94:
            return await self.hand_over(place, semaphore, self.semaphore(place, client - 1))
        if chance < 0.97:
            await (semaphore.status() if chance < 0.96 else semaphore.reap())
            return "status or reap"
        if chance < 0.972:
            await semaphore.delete()
            return "delete"
        if chance < 0.98 and self.open:
            known = dice.choice(self.open)
            known.ask()
            there = known.place.semaphore(self.clients[client], self.number)
            await there.release(known.permit.id)
            return "released by its id"
        if place.mutable:
            of: dict[str, Any] = {}
            if isinstance(semaphore, FairSemaphore) and place.keyed and chance < 0.995:
                of = {"key": dice.choice(KEYS)}
            await semaphore.set_limit(dice.choice((None, 0, 1, HIGHEST_LIMIT)), **of)
            await asyncio.sleep(dice.random() * 0.1)
            await semaphore.set_limit(None, **of)
            return "set limit"
        return "nothing"

    async def stay(self, place: Place, semaphore: AnySemaphore) -> str:
        dice, of = self.dice, dict[str, Any]()
        permits = dice.randint(1, semaphore.limit) if place.weighted else 1
        if place.keyed:
            of["key"] = dice.choice((*KEYS, KEYS[0], None))
            of["ahead"] = dice.choice((0.0, 0.0, 1.0))
            permits = permits if of["key"] is None else min(permits, place.key_limit)
        timeout = dice.choice((0, 0.05, 1.0, 1.0, 5.0))
        async with semaphore.acquire(timeout=timeout, permits=permits, **of) as permit:
            stay, released = self.got(place, permit), None
            try:
                # Now and then for longer than a lease.
                longest = 1.5 * place.lease if dice.random() < 0.02 else self.plan.hold
                await asyncio.sleep(dice.random() * longest)
                if dice.random() < 0.5:
                    stay.ask()
                    released = await permit.release()
            finally:
                self.left(stay, released)
        return "stayed"

    async def hand_over(self, place: Place, here: AnySemaphore, there: AnySemaphore) -> str:
        no_key: dict[str, Any] = {"key": None} if isinstance(here, FairSemaphore) else {}
        permit = await here.acquire(timeout=1.0, **no_key)
        stay = self.got(place, permit)
        try:
            identity = await self.detach(place, permit)
        except BaseException:
            stay.ask()  # released by its id meanwhile, perhaps
            with contextlib.suppress(SemaphoreError):
                await permit.release()
            raise
        finally:
            self.left(stay)
        async with there.adopt(identity) as adopted:
            stay = self.got(place, adopted)
            try:
                with contextlib.suppress(PermitLost):
                    await there.adopt(identity)
                    raise AssertionError("a permit was adopted twice")
                await asyncio.sleep(0.01)
            finally:
                self.left(stay)
        return "handed over"

    async def detach(self, place: Place, permit: Permit) -> str:
        """Detach for less than a lease or for more, with little patience perhaps, and again."""
        dice = self.dice
        while True:
            try:
                async with asyncio.timeout(dice.choice((None, None, None, 0.0005, 0.02))):
                    return await permit.detach(dice.choice((0.2, 1.0, 2.0)) * place.lease)
            except (TimeoutError, redsem_async.BackendUnavailable):
                # It is held on, for as long as it says so itself.
                self.outcomes["detach failed"] += 1
                await asyncio.sleep(dice.random() * place.lease)

    # -- commands

    async def obey(self) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: protocol, sys.stdin)
        try:
            while line := await reader.readline():
                match json.loads(line):
                    case ["block", seconds]:
                        time.sleep(seconds)  # noqa: ASYNC251 - that is the fault
                        self.report("blocked")
                    case ["rest", seconds]:
                        self.plan = replace(self.plan, rest=seconds)
                    case _:
                        break
        finally:
            self.ending.set()
            transport.close()


def size() -> dict[str, int]:
    """What may grow. The memory in use is known on Linux alone."""
    gc.collect()  # what is only waiting for that is no leak
    pages = 0
    if os.path.exists("/proc/self/statm"):  # noqa: PTH110
        with open("/proc/self/statm") as statm:  # noqa: PTH123 - often, and in a hurry
            pages = int(statm.read().split()[1])
    return {
        "rss": pages * os.sysconf("SC_PAGESIZE"),
        "tasks": len(asyncio.all_tasks()),
        "fds": len(os.listdir("/dev/fd")),  # noqa: PTH208
        "objects": len(gc.get_objects()),
    }


async def main(options: dict[str, Any]) -> None:
    process = Process(options["number"], Plan(**options["plan"]), options["urls"], options["seed"])
    process.report("size", size())
    obeying = asyncio.create_task(process.obey())
    await process.run()
    await obeying


if __name__ == "__main__":
    install()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)  # the reader may be busy
    logging.getLogger("redsem_async").setLevel(logging.ERROR)  # of outages it warns, and rightly
    asyncio.run(main(json.loads(sys.argv[1])))
