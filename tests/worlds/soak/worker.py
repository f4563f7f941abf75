"""A process of the soak: the actors of the simulation on real clients, and what they saw.

Its options are JSON; it reports each event at once, in a line. A line that it reads says for how
long its actors rest between two attempts, and the end of its input is its own. Times are of the
monotonic clock that trust is counted by, and that all processes of a machine share.
"""

import asyncio
import fcntl
import gc
import itertools
import json
import logging
import os
import random
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from typing import Any, ClassVar

from redis.asyncio import Redis

import redsem_async
from redsem_async import AnySemaphore, Permit, SemaphoreError
from redsem_async._core.clock import now
from tests.scripts.recording import install
from tests.worlds.look import Permit as Held
from tests.worlds.orders import DELETE
from tests.worlds.simulation.actors import Actor
from tests.worlds.simulation.books import Attempt
from tests.worlds.soak.plan import Plan, places

SAMPLE_EVERY = 2.0  # seconds between two reports of its size
USUAL = ("enter", "guard", "guard", "bare", "bare", "try")
ACTIONS = (*USUAL * 8, *("detach", "adopt", "adopt", "look", "limit", "delete"))


def report(event: str, *facts: object) -> None:
    os.write(1, json.dumps([event, *facts]).encode() + b"\n")


class Life:
    """What actors ask of a schedule, its world, the books and a process. Here all is real."""

    actions, timeouts = ACTIONS, (0.0, 0.05, 1.0, 1.0, 5.0)
    heaviest, cancelled, overloads, blocked = 3, 0.1, 0.0, 0.001
    trip, stalled_so_far, woken_busy, name = 0.001, 0.0, True, ""
    # Of all in this process, so that one client adopts what another detached.
    detached: ClassVar = defaultdict[str, list[str]](list)
    outcomes: ClassVar = Counter[str]()
    over = False

    def __init__(self, plan: Plan, seed: str, *, keyed: bool) -> None:
        self.seed, self.keyed, self.rest = seed, keyed, plan.rest
        self.actors, self.pending = itertools.count(), dict[Attempt, None]()
        self.world, self.books = self, defaultdict[str, Life](lambda: self)
        self._since = dict[Attempt, float]()

    @property
    def healed(self) -> bool:
        return self.over

    @property
    def now(self) -> float:
        return now()

    @property
    def work(self) -> float:
        """Now and then for longer than a lease."""
        return 4.5 if random.random() < 0.02 else 0.03

    def note(self, *what: object) -> None:
        """Nobody reads it."""

    def fault(self, kind: str) -> None:
        self.outcomes[kind] += 1

    def unless(self, right: bool, otherwise: str) -> None:
        if not right:
            report("wrong", otherwise)

    # -- attempts

    def granted(self, attempt: Attempt, permit: Permit) -> None:
        self._since[attempt] = now()

    def end(self, attempt: Attempt, permit: Permit) -> None:
        lease = permit._lease
        until = min(now(), lease.trusted_until)
        report("stay", lease.id, Held.trusted(lease, 0), self._since.pop(attempt), until)

    def answered(self, attempt: Attempt) -> None:
        self.fault("nothing")

    def adopt(self, attempt: Attempt, identity: str) -> None:
        self.fault("asked to adopt")

    def judge_end(self, attempt: Attempt, task: "asyncio.Task[None]") -> None:
        del self.pending[attempt]
        error = None if task.cancelled() else task.exception()
        ended = attempt.action if error is None else type(error).__name__
        self.fault("cancelled" if task.cancelled() else ended)
        self.unless(error is None or isinstance(error, SemaphoreError), repr(error))

    async def order(
        self, _: object, semaphore: AnySemaphore, what: str, limit: int | None = None
    ) -> None:
        """Carry it out, and take a limit back a moment later."""
        of: dict[str, str] = {"key": what.rpartition(" ")[2]} if " " in what else {}
        with suppress(SemaphoreError):
            if what == DELETE:
                await semaphore.delete()
            else:
                await semaphore.set_limit(limit, **of)
                await asyncio.sleep(0.05)
                await semaphore.set_limit(None, **of)

    # -- trouble

    def cancel_after(self, turns: int, task: "asyncio.Task[None]") -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self.cancel_after, turns - 1, task)
        else:
            task.cancel()

    def block(self, seconds: float) -> None:
        time.sleep(seconds)
        self.fault("blocked loop")


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


async def sample() -> None:
    while True:
        report("size", size())
        await asyncio.sleep(SAMPLE_EVERY)


async def obey(lives: list[Life]) -> None:
    reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_read_pipe(lambda: protocol, sys.stdin)
    while line := await reader.readline():
        for life in lives:
            life.rest = float(line)
    Life.over = True
    transport.close()


async def main(number: int, plan: dict[str, Any], urls: list[str], seed: int) -> None:
    report("size", size())
    known = Plan(**plan)
    options: dict[str, Any] = {"client_name": f"soak-{number}", "socket_connect_timeout": 2}
    clients: list[Any] = [Redis.from_url(url, **options) for url in urls]
    lives, acting = list[Life](), [asyncio.create_task(sample())]
    for keyed in (False, True):
        lives.append(Life(known, f"{seed} {keyed}", keyed=keyed))
        of_these = [place for place in places(known) if place.keyed is keyed]
        # The first are asked for often.
        semaphores = [
            semaphore
            for k, place in enumerate(of_these)
            for client in clients
            for semaphore in [place.semaphore(client, number)] * (1 + 10 // (1 + k))
        ]
        untyped: Any = lives[-1]
        for _ in range(known.tasks // 2):
            actor = Actor(untyped, untyped, semaphores)
            acting.append(asyncio.create_task(actor.run(sys.maxsize)))
    await obey(lives)
    await asyncio.gather(*acting[1:])
    acting[0].cancel()
    for client in clients:
        await redsem_async.aclose(client)
        await client.aclose()
    while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - this one
        await asyncio.sleep(0.01)
    report("end", Life.outcomes, size())


if __name__ == "__main__":
    install()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)  # the reader may be busy
    logging.getLogger("redsem_async").setLevel(logging.ERROR)  # of outages it warns, and rightly
    asyncio.run(main(**json.loads(sys.argv[1])))
