"""What the simulated processes do: every way to acquire a permit and to give it back."""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import redsem_async
from redsem_async import (
    AnySemaphore,
    BackendUnavailable,
    FairSemaphore,
    Permit,
    SemaphoreClosed,
    SemaphoreError,
)
from redsem_async._api.awaitables import Acquisition
from redsem_async._core.lease import clock_margin
from tests.worlds.orders import BACK_OFF, DELETE, LIMIT, of_key
from tests.worlds.process import Process
from tests.worlds.world import Event

from .holdings import RENEWED, Attempt, Hold, Holdings
from .walk import Operation, Walk

KEYS = ("a", "b", "c")
PAUSES = (0.0, 0.1, 1.0, 5.0)  # seconds of a back-off


@dataclass
class Habits:
    """How the tasks of a run behave."""

    rest: float  # seconds between two attempts, at most
    work: float  # seconds that a permit is held, at most
    timeouts: tuple[float | None, ...]
    heaviest: int
    cancelled: float  # probability
    blocked: float
    overloads: float
    actions: tuple[str, ...]


@dataclass
class Common:
    """What the tasks of all processes share."""

    world: Walk
    holdings: Holdings
    habits: Habits
    only: Collection[Event] | None = None  # attempts, where a run is repeated
    begun: list[Operation] = field(default_factory=list[Operation])
    actors: int = 0
    detached: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    keyed: bool = False  # requests may have keys
    over: bool = False

    def detach(self, name: str, identity: str) -> None:
        self.detached.setdefault(name, []).append(identity)

    async def order(
        self, process: Process, semaphore: AnySemaphore, what: str, limit: int | None = None
    ) -> None:
        """Set a limit, of all or of a key, or delete."""
        with suppress(SemaphoreError):
            await self.world.orders[semaphore.name].carry_out(process, semaphore, what, limit)
            self.world.fault(f"order of a {what.partition(' ')[0]}")


class Actor:
    """One worker of a process: attempts, one after another, each in a task of its own."""

    def __init__(
        self,
        common: Common,
        process: Process,
        semaphores: list[AnySemaphore],
    ) -> None:
        self._common = common
        self._world = common.world
        self._random = random.Random()
        self._number = common.actors
        common.actors += 1
        self._process = process
        self._semaphores = semaphores

    async def run(self, attempts: int) -> None:
        common, world = self._common, self._world
        for nth in range(attempts):
            attempt = Event("attempt", self._number, nth)
            self._random = random.Random(f"{attempt} of {world.seed}")
            await asyncio.sleep(self._random.random() * common.habits.rest)
            if common.over:
                return
            if common.only is None or attempt in common.only:
                common.begun.append((world.now, attempt))
                await self._one(self._random.choice(common.habits.actions))

    async def _one(self, action: str) -> None:
        random, habits = self._random, self._common.habits
        semaphore = random.choice(self._semaphores)
        if action in _OTHER_CALLS:
            if self._world.healed:
                return
            await _OTHER_CALLS[action](self, semaphore)
            return
        permits = 1
        if habits.heaviest > 1 and random.random() < 0.3 and action != "enter":
            permits = random.randint(1, min(habits.heaviest, max(1, semaphore.limit)))
        timeout = 0.0 if action == "try" else random.choice(habits.timeouts)
        key, ahead, permits = self._draw_key(semaphore, permits, action)
        attempt = Attempt(
            self._process,
            semaphore,
            permits,
            timeout,
            self._world.now,
            self._process.stalled_so_far,
            adopts=action == "adopt",
            detaches=action == "detach",
            guarded=action in ("enter", "guard") and semaphore._terms.cancel_on_loss,
            key=key,
            ahead=ahead,
        )
        self._common.holdings.ask(attempt)
        self._world.note(self._process.name, action, semaphore.name, permits, timeout)
        task = attempt.task = asyncio.create_task(_WAYS[action](self, attempt))
        if random.random() < habits.cancelled:
            attempt.cancelled = True
            self._cancel_some_time(task)
        await asyncio.wait([task])
        self._world.note(self._process.name, action, "ended", task.cancelled() or task.exception())
        self._common.holdings.judge_end(attempt, task)

    def _draw_key(
        self, semaphore: AnySemaphore, permits: int, action: str
    ) -> tuple[str | None, float, int]:
        draw = self._random
        keyed = self._common.keyed and action != "enter"
        if not keyed or not isinstance(semaphore, FairSemaphore):
            return None, 0.0, permits
        key = draw.choice((None, *KEYS, *KEYS, KEYS[0]))
        ahead = 0.0 if action == "try" else draw.choice((0.0, 0.0, 0.0, 0.001, 30.0))
        limit = None if key is None else semaphore._terms.declared_limit(key)
        return key, ahead, permits if limit is None else min(permits, limit)

    def _cancel_some_time(self, task: "asyncio.Task[None]") -> None:
        """Cancel *task* at some await: after some turns of the loop, or some time."""
        process, random = self._process, self._random
        for _ in range(random.choice((1, 1, 1, 2))):
            if random.random() < 0.6:
                process.cancel_after(random.randrange(1, 14), task)
            else:
                delay = random.expovariate(1) * random.choice((0.002, 0.02, 0.5))
                asyncio.get_running_loop().call_later(delay, _cancel, process, task)

    # -- ways to hold a permit

    async def _enter(self, attempt: Attempt) -> None:
        semaphore = attempt.semaphore
        attempt.timeout = semaphore.timeout
        if semaphore.keyed:  # which a bare block refuses
            async with semaphore.acquire(key=None) as permit:
                await self._body(attempt, permit)
            return
        async with semaphore as permit:
            await self._body(attempt, permit)

    async def _guard(self, attempt: Attempt) -> None:
        async with self._acquired(attempt) as permit:
            await self._body(attempt, permit)

    async def _bare(self, attempt: Attempt) -> None:
        await self._keep(attempt, await self._acquired(attempt))

    async def _try(self, attempt: Attempt) -> None:
        semaphore, permits = attempt.semaphore, attempt.permits
        if isinstance(semaphore, FairSemaphore):
            permit = await semaphore.try_acquire(permits=permits, key=attempt.key)
        else:
            permit = await semaphore.try_acquire(permits=permits)
        if permit is None:
            self._common.holdings.answered(attempt)
        else:
            await self._keep(attempt, permit)

    async def _drop(self, attempt: Attempt) -> None:
        permit = await self._acquired(attempt)
        hold = self._common.holdings.granted(attempt, permit)
        try:
            await self._work()
        finally:
            self._common.holdings.end(hold, permit)
            del permit

    async def _detach(self, attempt: Attempt) -> None:
        permit = await self._acquired(attempt)
        hold = self._common.holdings.granted(attempt, permit)
        try:
            if self._random.random() < 0.1:
                self._common.detach(permit.name, permit.id)  # too early: it is taken away
                hold.risked = True
            for _ in range(self._random.choice((1, 1, 2, 3))):
                await self._work()
                given_up = hold.ended < math.inf or self._world.healed
                if given_up or await self._try_to_detach(attempt, hold, permit):
                    return
        finally:
            await self._part(hold, permit)

    async def _try_to_detach(self, attempt: Attempt, hold: Hold, permit: Permit) -> bool:
        """Detach, perhaps twice at a time, with much patience or little. Returns whether it is."""
        random, world = self._random, self._world
        tries: list[Coroutine[Any, Any, str | None]] = []
        if random.random() < 0.3:
            tries.append(permit.refresh())  # is answered when the detach is on its way
        for _ in range(random.choice((1, 1, 1, 2))):
            share = random.choice((random.uniform(0.1, 1), random.uniform(1, 2)))
            expires = max(0.05, share * attempt.semaphore.lease)
            hold.risked |= expires < clock_margin(expires) + 4 * RENEWED * world.trip
            tries.append(permit.detach(expires))
        trips = random.choice((None, None, 1, 4, 100))
        most = None if trips is None else random.expovariate(1) * trips * world.trip
        results: list[str | BaseException | None] = []
        try:
            async with asyncio.timeout(most):
                results = await asyncio.gather(*tries, return_exceptions=True)
        except TimeoutError:
            world.fault("detach cancelled")
        for result in results:
            if isinstance(result, str):
                self._common.detach(permit.name, result)
                return True
            if isinstance(result, SemaphoreError):
                world.fault("detach failed")
            elif result is not None:
                raise result
        return False

    async def _adopt(self, attempt: Attempt) -> None:
        ids = self._common.detached.get(attempt.semaphore.name)
        if not ids:
            self._common.holdings.answered(attempt)
            return
        identity = self._random.choice(ids)
        if self._random.random() < 0.5:
            ids.remove(identity)  # otherwise it is delivered once more
        self._common.holdings.adopt(attempt, identity)
        permit = await attempt.semaphore.adopt(identity)
        self._world.fault("adoption")
        await self._keep(attempt, permit)

    def _acquired(self, attempt: Attempt) -> Acquisition:
        semaphore, timeout, permits = attempt.semaphore, attempt.timeout, attempt.permits
        if isinstance(semaphore, FairSemaphore):
            key, ahead = attempt.key, attempt.ahead
            return semaphore.acquire(timeout=timeout, permits=permits, key=key, ahead=ahead)
        return semaphore.acquire(timeout=timeout, permits=permits)

    async def _keep(self, attempt: Attempt, permit: Permit) -> None:
        hold = self._common.holdings.granted(attempt, permit)
        try:
            await self._work()
        finally:
            await self._part(hold, permit)

    async def _work(self) -> None:
        await asyncio.sleep(self._random.random() * self._common.habits.work)

    async def _part(self, hold: Hold, permit: Permit) -> None:
        """Give back by hand; as in a block, an error here does not hide why it was left."""
        self._common.holdings.end(hold, permit)
        with suppress(BackendUnavailable, SemaphoreClosed):
            await permit.release()

    async def _body(self, attempt: Attempt, permit: Permit) -> None:
        holdings, random, work = self._common.holdings, self._random, self._common.habits.work
        hold = holdings.granted(attempt, permit)
        try:
            for _ in range(random.randint(1, 3)):
                await asyncio.sleep(random.random() * work / 2)
                self._see_that_it_was_cancelled(attempt, permit)
                if random.random() < 0.1:
                    await permit.refresh()
                if random.random() < self._common.habits.overloads:
                    self._world.orders[permit.name].ordered(self._process, BACK_OFF)
                    permit.back_off(random.choice(PAUSES[1:]), key=attempt.key is not None)
                    self._world.fault("backed off")
                if random.random() < self._common.habits.blocked and not self._world.healed:
                    self._process.block(random.random() * 2 * attempt.semaphore.lease)
        finally:
            holdings.end(hold, permit)

    def _see_that_it_was_cancelled(self, attempt: Attempt, permit: Permit) -> None:
        if attempt.guarded and permit.lost and not self._process.woken_busy:
            self._world.violated(f"the body of {permit.id} went on, having lost its permit")

    # -- other calls

    async def _foreign(self, semaphore: AnySemaphore) -> None:
        held = [h for h in self._common.holdings.holds if h.name == semaphore.name]
        if held:
            with suppress(SemaphoreError):
                self._world.fault("foreign release")
                await semaphore.release(self._random.choice(held).id)

    async def _limit(self, semaphore: AnySemaphore) -> None:
        limit = self._random.choice((None, None, 0, 1, 2, 3, 5))
        if self._common.keyed and self._random.random() < 0.7:
            key = of_key(self._random.choice(KEYS))
            await self._common.order(self._process, semaphore, key, limit)
            return
        await self._common.order(self._process, semaphore, LIMIT, limit)

    async def _back_off(self, semaphore: AnySemaphore) -> None:
        """As an operator, for all or for a key; 0 ends it."""
        seconds = self._random.choice(PAUSES)
        of_a_key = self._common.keyed and self._random.random() < 0.5
        with suppress(SemaphoreError):
            if of_a_key and isinstance(semaphore, FairSemaphore):
                await semaphore.back_off(seconds, key=self._random.choice(KEYS))
            else:
                await semaphore.back_off(seconds)
            self._world.fault("back-off by hand")

    async def _delete(self, semaphore: AnySemaphore) -> None:
        await self._common.order(self._process, semaphore, DELETE)

    async def _look(self, semaphore: AnySemaphore) -> None:
        with suppress(SemaphoreError):
            status = await semaphore.status()
            if status.held != sum(holder.permits for holder in status.holders):
                self._world.violated(f"a status that does not add up: {status}")
            await semaphore.reap()

    async def _close(self, semaphore: AnySemaphore) -> None:
        self._common.holdings.closed.add(self._process)
        self._world.fault("closed client")
        drain = self._random.choice((0.0, 0.1, 1.0))
        await redsem_async.aclose(self._process.backend, drain=drain)


def _cancel(process: Process, task: "asyncio.Task[None]") -> None:
    process.cancel_after(0, task)


_WAYS: dict[str, Callable[[Actor, Attempt], Coroutine[Any, Any, None]]] = {
    "enter": Actor._enter,
    "guard": Actor._guard,
    "bare": Actor._bare,
    "try": Actor._try,
    "drop": Actor._drop,
    "detach": Actor._detach,
    "adopt": Actor._adopt,
}
_OTHER_CALLS: dict[str, Callable[[Actor, AnySemaphore], Awaitable[None]]] = {
    "foreign": Actor._foreign,
    "limit": Actor._limit,
    "delete": Actor._delete,
    "look": Actor._look,
    "back off": Actor._back_off,
    "close": Actor._close,
}
