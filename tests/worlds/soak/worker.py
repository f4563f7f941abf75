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
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

import redsem_async
from redsem_async import AnySemaphore, FairSemaphore, Permit, PermitLost, SemaphoreError
from redsem_async._core.clock import now
from tests.scripts.recording import install
from tests.worlds.soak.plan import HIGHEST_LIMIT, KEYS, Place, Plan, places

SEMAPHORES = 100  # that a process keeps; of others it makes new ones
TICK = 0.25  # seconds between two reports of how far it has come
SAMPLE_EVERY = 8  # of these, with one about its size


@dataclass(slots=True)
class Open:
    """A permit that is held, or was until *asked*."""

    permit: Permit
    asked: float | None = None

    @property
    def certain_until(self) -> float:
        trusted_until = self.permit._lease.trusted_until
        return trusted_until if self.asked is None else min(self.asked, trusted_until)


class Process:
    """Everything that happens in one process."""

    def __init__(self, number: int, plan: Plan, urls: list[str], seed: int) -> None:
        self.number = number
        self.plan = plan
        self.places = places(plan)
        self.dice = random.Random(seed)
        self.clients = [
            Redis.from_url(url, client_name=f"soak-{number}", socket_connect_timeout=2)
            for url in urls
        ]
        self.semaphores: dict[tuple[str, int], AnySemaphore] = {}
        self.open: dict[str, Open] = {}
        self.stays = 0
        self.ending = asyncio.Event()
        self.outcomes: dict[str, int] = {}

    # -- reports

    def report(self, event: str, *facts: object) -> None:
        line = json.dumps([event, *facts]) + "\n"
        os.write(1, line.encode())

    def got(self, place: Place, permit: Permit, key: str | None = None) -> str:
        """Report a stay, and return its name."""
        since, lease = now(), permit._lease
        self.stays += 1
        stay = f"{lease.id}/{self.stays}"
        self.open[stay] = Open(permit)
        facts = (lease.id, place.name, lease.token, lease.permits, key, lease.slots)
        self.report("got", stay, *facts, since, lease.trusted_until)
        return stay

    def left(self, stay: str, released: bool | None = None) -> None:
        known = self.open.pop(stay)
        asked = known.asked or now()
        until = min(asked, known.certain_until)
        self.report("left", stay, until, asked, released)

    async def tick(self) -> None:
        """Report how far it has come: nothing from before that will follow."""
        count = 0
        while True:
            trusted = (stay.certain_until for stay in self.open.values())
            self.report("reported", min((now(), *trusted)))
            if count % SAMPLE_EVERY == 0:
                self.report("size", size())
            count += 1
            await asyncio.sleep(TICK)

    # -- doing

    def semaphore(self, place: Place, client: int) -> AnySemaphore:
        key = place.name, client
        found = self.semaphores.get(key)
        if found is None:
            if len(self.semaphores) >= SEMAPHORES:
                del self.semaphores[self.dice.choice(list(self.semaphores))]
            found = place.semaphore(self.clients[client], self.number)
            self.semaphores[key] = found
        return found

    async def run(self) -> None:
        ticking = asyncio.create_task(self.tick())
        async with asyncio.TaskGroup() as group:
            for _ in range(self.plan.tasks):
                group.create_task(self.work())
        ticking.cancel()
        self.semaphores.clear()
        for client in self.clients:
            await redsem_async.aclose(client)
            await client.aclose()
        while len(asyncio.all_tasks()) > 2:  # noqa: ASYNC110 - this one, and who reads commands
            await asyncio.sleep(0.01)
        self.report("reported", now())
        self.report("outcomes", self.outcomes)
        self.report("rest", size())

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
            outcome = "cancelled"
        elif (error := attempt.exception()) is not None:
            outcome = type(error).__name__
            if not isinstance(error, SemaphoreError):
                self.report("wrong", f"{error!r}")
        else:
            outcome = attempt.result()
        self.count_one(outcome)

    def count_one(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    async def once(self, place: Place) -> str:
        dice = self.dice
        client = dice.randrange(len(self.clients))
        semaphore = self.semaphore(place, client)
        chance = dice.random()
        if chance < 0.9:
            return await self.stay(place, semaphore)
        if chance < 0.94:
            return await self.hand_over(place, semaphore, self.semaphore(place, client - 1))
        if chance < 0.96:
            await semaphore.status()
            return "status"
        if chance < 0.97:
            await semaphore.reap()
            return "reap"
        if chance < 0.972:
            await semaphore.delete()
            return "delete"
        if chance < 0.98 and self.open:
            known = dice.choice(list(self.open.values()))
            known.asked = known.asked or now()
            await (
                place_of(self.places, known.permit)
                .semaphore(self.clients[client], self.number)
                .release(known.permit.id)
            )
            return "released by its id"
        if place.keyed and place.mutable and chance < 0.995:
            assert isinstance(semaphore, FairSemaphore)
            key = dice.choice(KEYS)
            await semaphore.set_limit(dice.choice((None, 0, 1, place.key_ceiling)), key=key)
            await asyncio.sleep(dice.random() * 0.05)
            await semaphore.set_limit(None, key=key)
            return "set limit of a key"
        if place.mutable:
            limit = dice.choice((None, None, 0, 1, HIGHEST_LIMIT))
            await semaphore.set_limit(limit)
            if limit == 0:
                await asyncio.sleep(0.1)
                await semaphore.set_limit(None)
            return "set limit"
        return "nothing"

    async def stay(self, place: Place, semaphore: AnySemaphore) -> str:
        dice = self.dice
        permits = dice.randint(1, semaphore.limit) if place.weighted else 1
        timeout = dice.choice((0, 0.05, 1.0, 1.0, 5.0))
        key: str | None = None
        if isinstance(semaphore, FairSemaphore) and place.keyed:
            key = dice.choice((*KEYS, KEYS[0], None))
            permits = permits if key is None else min(permits, place.key_limit)
            ahead = dice.choice((0.0, 0.0, 0.0, 1.0))
            of = semaphore.acquire(timeout=timeout, permits=permits, key=key, ahead=ahead)
        else:
            of = semaphore.acquire(timeout=timeout, permits=permits)
        async with of as permit:
            stay, released = self.got(place, permit, key), None
            try:
                # Now and then for longer than a lease.
                longest = 1.5 * place.lease if dice.random() < 0.02 else self.plan.hold
                await asyncio.sleep(dice.random() * longest)
                if dice.random() < 0.5:
                    self.open[stay].asked = self.open[stay].asked or now()
                    released = await permit.release()
            finally:
                self.left(stay, released)
        return "stayed"

    async def hand_over(self, place: Place, here: AnySemaphore, there: AnySemaphore) -> str:
        no_key: dict[str, Any] = {"key": None} if isinstance(here, FairSemaphore) else {}
        permit = await here.acquire(timeout=1.0, **no_key)
        stay = self.got(place, permit)
        try:
            identity = await self.detach(place, stay, permit)
        except BaseException:
            known = self.open[stay]
            known.asked = known.asked or now()  # released by its id meanwhile, perhaps
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

    async def detach(self, place: Place, stay: str, permit: Permit) -> str:
        """Detach for less than a lease or for more, with little patience perhaps, and again."""
        dice = self.dice
        while True:
            self.report("doubts", stay, now())
            try:
                async with asyncio.timeout(dice.choice((None, None, None, 0.0005, 0.02))):
                    return await permit.detach(dice.choice((0.2, 1.0, 2.0)) * place.lease)
            except (TimeoutError, redsem_async.BackendUnavailable):
                # It is held on, for as long as it says so itself.
                self.count_one("detach failed")
                await asyncio.sleep(dice.random() * place.lease)

    # -- commands

    async def obey(self) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: protocol, sys.stdin
        )
        try:
            while line := await reader.readline():
                match json.loads(line):
                    case ["block", seconds]:
                        time.sleep(seconds)  # noqa: ASYNC251 - that is the fault
                        self.report("blocked")
                    case ["rest", seconds]:
                        self.plan = Plan(**{**vars(self.plan), "rest": seconds})
                    case _:
                        break
        finally:
            self.ending.set()
            transport.close()


def place_of(known: list[Place], permit: Permit) -> Place:
    return known[int(permit.name.removeprefix("place-"))]


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
