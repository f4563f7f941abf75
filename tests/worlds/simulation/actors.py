"""What the simulated processes do: every way to acquire a permit and to give it back."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

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
from redsem_async._hub.model import LeaseState
from tests.worlds.orders import BACK_OFF, DELETE, LIMIT, of_key
from tests.worlds.process import Process

from .books import RENEWED, Attempt

if TYPE_CHECKING:
    from .schedule import Schedule

KEYS = ("a", "b", "c")
PAUSES = (0.0, 0.1, 1.0, 5.0)  # seconds of a back-off
SETTLED = 0.3  # of the permits with a cost
OTHER_CALLS = "foreign", "limit", "delete", "look", "back_off", "close"
LIMITS = (None, None, 0, 1, 2, 3, 5)


class Actor:
    """One worker of a process: attempts, one after another, each in a task of its own."""

    def __init__(self, run: "Schedule", process: Process, semaphores: list[AnySemaphore]) -> None:
        self._run, self._world = run, run.world
        self._number = next(run.actors)
        self._process = process
        self._semaphores = semaphores
        self._random = random.Random(f"actor {self._number} of {run.world.seed}")

    async def run(self, attempts: int) -> None:
        run, draw = self._run, self._random
        for _ in range(attempts):
            await asyncio.sleep(draw.random() * run.rest)
            if run.over:
                return
            action, semaphore = draw.choice(run.actions), draw.choice(self._semaphores)
            if action not in OTHER_CALLS:
                await self._attempt(action, semaphore)
            elif not self._world.healed:
                with suppress(SemaphoreError):
                    await self._doing(action)(semaphore)

    def _doing(self, action: str) -> Callable[..., Coroutine[Any, Any, None]]:
        found: Callable[..., Coroutine[Any, Any, None]] = getattr(self, f"do_{action}")
        return found

    async def _attempt(self, action: str, semaphore: AnySemaphore) -> None:
        draw, run, process = self._random, self._run, self._process
        permits, key, ahead = 1, None, 0.0
        if run.heaviest > 1 and draw.random() < 0.3 and action != "enter":
            permits = draw.randint(1, min(run.heaviest, max(1, semaphore.limit)))
        timeout = 0.0 if action == "try" else draw.choice(run.timeouts)
        if run.keyed and action != "enter":
            key = draw.choice((None, *KEYS, *KEYS, KEYS[0]))
            ahead = 0.0 if action == "try" else draw.choice((0.0, 0.0, 0.0, 0.001, 30.0))
            limit = None if key is None else semaphore._terms.declared_limit(key)
            permits = permits if limit is None else min(permits, limit)
        asked = process, semaphore, action, permits, timeout, key, ahead
        attempt = Attempt(*asked, self._world.now, process.stalled_so_far)
        books = self._world.books[semaphore.name]
        books.pending[attempt] = None
        self._world.note(process.name, action, semaphore.name, permits, timeout)
        task = attempt.task = asyncio.create_task(self._doing(action)(attempt))
        if draw.random() < run.cancelled:
            attempt.cancelled = True
            self._cancel_some_time(task)
        await asyncio.wait([task])
        self._world.note(process.name, action, "ended", task.cancelled() or task.exception())
        books.judge_end(attempt, task)

    def _cancel_some_time(self, task: "asyncio.Task[None]") -> None:
        """Cancel *task* at some await: after some turns of the loop, or some time."""
        process, draw = self._process, self._random
        for _ in range(draw.choice((1, 1, 1, 2))):
            if draw.random() < 0.6:
                process.cancel_after(draw.randrange(1, 14), task)
            else:
                delay = draw.expovariate(1) * draw.choice((0.002, 0.02, 0.5))
                asyncio.get_running_loop().call_later(delay, process.cancel_after, 0, task)

    # -- ways to hold a permit

    async def do_enter(self, attempt: Attempt) -> None:
        semaphore = attempt.semaphore
        attempt.timeout = semaphore.timeout
        keyed = semaphore.keyed  # which a bare block refuses
        async with semaphore.acquire(key=None) if keyed else semaphore as permit:
            await self._body(attempt, permit)

    async def do_guard(self, attempt: Attempt) -> None:
        async with self._acquired(attempt) as permit:
            await self._body(attempt, permit)

    async def do_bare(self, attempt: Attempt) -> None:
        await self._keep(attempt, await self._acquired(attempt))

    async def do_try(self, attempt: Attempt) -> None:
        of: dict[str, Any] = (
            {"key": attempt.key} if isinstance(attempt.semaphore, FairSemaphore) else {}
        )
        try_acquire: Callable[..., Awaitable[Permit | None]] = attempt.semaphore.try_acquire
        permit = await try_acquire(permits=attempt.permits, **of)
        if permit is None:
            self._world.books[attempt.semaphore.name].answered(attempt)
        else:
            await self._keep(attempt, permit)

    async def do_drop(self, attempt: Attempt) -> None:
        permit, books = await self._acquired(attempt), self._world.books[attempt.semaphore.name]
        books.granted(attempt, permit)
        try:
            await self._work()
        finally:
            books.end(attempt, permit)
            del permit

    async def do_detach(self, attempt: Attempt) -> None:
        permit = await self._acquired(attempt)
        self._world.books[permit.name].granted(attempt, permit)
        try:
            if self._random.random() < 0.1:
                self._run.detached[permit.name].append(permit.id)  # too early: it is taken away
                attempt.risked = True
            for _ in range(self._random.choice((1, 1, 2, 3))):
                await self._work()
                given_up = attempt.ended < float("inf") or self._world.healed
                if given_up or await self._try_to_detach(attempt, permit):
                    return
        finally:
            await self._part(attempt, permit)

    async def _try_to_detach(self, attempt: Attempt, permit: Permit) -> bool:
        """Detach, perhaps twice at a time, with much patience or little. Returns whether it is."""
        draw, world = self._random, self._world
        tries: list[Coroutine[Any, Any, str | None]] = []
        if draw.random() < 0.3:
            tries.append(permit.refresh())  # is answered when the detach is on its way
        for _ in range(draw.choice((1, 1, 1, 2))):
            share = draw.choice((draw.uniform(0.1, 1), draw.uniform(1, 2)))
            expires = max(0.05, share * attempt.semaphore.lease)
            attempt.risked |= expires < clock_margin(expires) + 4 * RENEWED * world.trip
            tries.append(permit.detach(expires))
        trips = draw.choice((None, None, 1, 4, 100))
        most = None if trips is None else draw.expovariate(1) * trips * world.trip
        results: list[str | BaseException | None] = []
        try:
            async with asyncio.timeout(most):
                results = await asyncio.gather(*tries, return_exceptions=True)
        except TimeoutError:
            world.fault("detach cancelled")
        for result in results:
            if isinstance(result, str):
                self._run.detached[permit.name].append(result)
                return True
            if isinstance(result, SemaphoreError):
                world.fault("detach failed")
            elif result is not None:
                raise result
        return False

    async def do_adopt(self, attempt: Attempt) -> None:
        name, draw = attempt.semaphore.name, self._random
        ids, books = self._run.detached[name], self._world.books[name]
        if not ids:
            books.answered(attempt)
            return
        identity = draw.choice(ids)
        if draw.random() < 0.5:
            ids.remove(identity)  # otherwise it is delivered once more
        books.adopt(attempt, identity)
        permit = await attempt.semaphore.adopt(identity)
        self._world.fault("adoption")
        await self._keep(attempt, permit)

    def _acquired(self, attempt: Attempt) -> Acquisition:
        of: dict[str, Any] = {"timeout": attempt.timeout, "permits": attempt.permits}
        if isinstance(attempt.semaphore, FairSemaphore):
            of |= {"key": attempt.key, "ahead": attempt.ahead}
        return attempt.semaphore.acquire(**of)

    async def _keep(self, attempt: Attempt, permit: Permit) -> None:
        self._world.books[permit.name].granted(attempt, permit)
        try:
            await self._work()
        finally:
            await self._part(attempt, permit)

    async def _work(self) -> None:
        await asyncio.sleep(self._random.random() * self._run.work)

    async def _part(self, attempt: Attempt, permit: Permit) -> None:
        """Give back by hand; as in a block, an error here does not hide why it was left."""
        self._world.books[permit.name].end(attempt, permit)
        with suppress(BackendUnavailable, SemaphoreClosed):
            await permit.release()

    async def _body(self, attempt: Attempt, permit: Permit) -> None:
        draw, run, world = self._random, self._run, self._world
        books = world.books[permit.name]
        books.granted(attempt, permit)
        try:
            for _ in range(draw.randint(1, 3)):
                await asyncio.sleep(draw.random() * run.work / 2)
                went_on = attempt.guarded and permit.lost and not self._process.woken_busy
                world.unless(not went_on, f"the body of {permit.id} went on, having lost it")
                if draw.random() < 0.1:
                    await permit.refresh()
                if draw.random() < run.overloads:
                    books.orders.ordered(self._process, BACK_OFF)
                    permit.back_off(draw.choice(PAUSES), key=attempt.key is not None)
                    world.fault("backed off")
                ended = permit._lease.state is LeaseState.ENDED  # with its client, as is said
                if permit._lease.costs and draw.random() < SETTLED and not ended:
                    permit.settle(draw.choice((0, 0.5, 3)))
                if draw.random() < run.blocked and not world.healed:
                    self._process.block(draw.random() * 2 * attempt.semaphore.lease)
        finally:
            books.end(attempt, permit)

    # -- other calls

    async def do_foreign(self, semaphore: AnySemaphore) -> None:
        holds = self._world.books[semaphore.name].holds
        held = [hold.lease.id for hold in holds if hold.lease]
        if held:
            self._world.fault("foreign release")
            await semaphore.release(self._random.choice(held))

    async def do_limit(self, semaphore: AnySemaphore) -> None:
        draw, what = self._random, LIMIT
        limit = draw.choice(LIMITS)
        if self._run.keyed and draw.random() < 0.7:
            what = of_key(draw.choice(KEYS))
        await self._run.order(self._process, semaphore, what, limit)

    async def do_back_off(self, semaphore: AnySemaphore) -> None:
        """As an operator, for all or for a key; 0 ends it."""
        draw, of = self._random, dict[str, Any]()
        seconds = draw.choice(PAUSES)
        if self._run.keyed and draw.random() < 0.5:
            of["key"] = draw.choice(KEYS)
        await semaphore.back_off(seconds, **of)
        self._world.fault("back-off by hand")

    async def do_delete(self, semaphore: AnySemaphore) -> None:
        await self._run.order(self._process, semaphore, DELETE)

    async def do_look(self, semaphore: AnySemaphore) -> None:
        status = await semaphore.status()
        right = status.held == sum(holder.permits for holder in status.holders)
        self._world.unless(right, f"a status that does not add up: {status}")
        await semaphore.reap()

    async def do_close(self, _: AnySemaphore) -> None:
        self._world.closed.add(self._process)
        self._world.fault("closed client")
        drain = self._random.choice((0.0, 0.1, 1.0))
        await redsem_async.aclose(self._process.backend, drain=drain)
