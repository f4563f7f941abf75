"""Orders for many at a time: to hold, and to wait."""

import asyncio
import time
from dataclasses import dataclass

from benchmarks._children import Stage
from benchmarks._gauge import Broken
from benchmarks.contenders import Contender, Terms
from redsem_async import Permit

LONG = 3600.0  # seconds; a lease that is not refreshed while anything is measured


@dataclass(frozen=True, slots=True)
class Open:
    """Be ready: connected, and with all scripts loaded."""

    label: str
    terms: Terms

    async def carry_out(self, here: Stage) -> None:
        contender = await here.contender(self.label, self.terms)
        await contender.held()


@dataclass(frozen=True, slots=True)
class Hold:
    """Take *count* permits, and keep them; returns how long each took, in seconds."""

    label: str
    terms: Terms
    count: int

    async def carry_out(self, here: Stage) -> list[float]:
        contender = await here.contender(self.label, self.terms)
        waits: list[float] = []
        all_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        permits = here.notes.setdefault("permits", [])

        async def hold() -> None:
            start = time.perf_counter()
            async with contender.permit() as permit:
                waits.append(time.perf_counter() - start)
                permits.append(permit)
                if len(waits) == self.count:
                    all_in.set_result(None)
                await asyncio.Event().wait()

        def ended(task: asyncio.Task[None]) -> None:
            if not all_in.done() and not task.cancelled() and (error := task.exception()):
                all_in.set_exception(error)

        for _ in range(self.count):
            task = asyncio.create_task(hold())
            task.add_done_callback(ended)
            here.tasks.append(task)
        await all_in
        return waits


@dataclass(frozen=True, slots=True)
class CountLost:
    """Say how many of the permits that are held here were lost."""

    async def carry_out(self, here: Stage) -> int:
        permits = here.notes.get("permits", [])
        return sum(isinstance(permit, Permit) and permit.lost for permit in permits)


@dataclass(frozen=True, slots=True)
class Wait:
    """Have *count* tasks wait for a permit that they do not get."""

    label: str
    terms: Terms
    count: int

    async def carry_out(self, here: Stage) -> None:
        contender = await here.contender(self.label, self.terms)
        here.tasks += [asyncio.create_task(_wait(contender)) for _ in range(self.count)]


@dataclass(frozen=True, slots=True)
class CheckInPlace:
    """Raise `Broken` unless all that were told to wait still do."""

    async def carry_out(self, here: Stage) -> None:
        for task in here.tasks:
            if task.done():
                raise Broken("one that should wait does not") from task.exception()


async def _wait(contender: Contender) -> None:
    async with contender.permit():
        await asyncio.Event().wait()
