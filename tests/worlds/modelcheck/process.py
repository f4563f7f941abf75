"""The processes of a path, and their jobs."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from redsem_async import (
    AnySemaphore,
    BackendUnavailable,
    FairSemaphore,
    Permit,
    PermitLost,
    Semaphore,
)
from tests.worlds.loop import running
from tests.worlds.orders import BACK_OFF, DELETE, LIMIT, Orders, of_key
from tests.worlds.process import Process
from tests.worlds.world import Violation

from .scenario import Party, Script

if TYPE_CHECKING:
    from .path import Path

NAME = "jobs"
AT_END = "at the end"


def id_of(permit: Permit) -> str:
    """The id of its lease, also once it is lost."""
    return permit._lease.id


class Job:
    """A task of a process. Its script is ordinary code, and waits where the search decides."""

    def __init__(self, process: "Member", script: Script) -> None:
        self.process = process
        self.name: str = getattr(script, "__name__", "job")
        self.task: asyncio.Task[None] | None = None
        self.waits_for: str | None = "to begin"
        self.cancelled = False
        self.acquiring = 0  # permits that it waits for
        self._script = script
        self._going: asyncio.Future[str] | None = None

    @property
    def semaphore(self) -> AnySemaphore:
        return self.process.semaphore

    @property
    def world(self) -> "Path":
        return self.process.path

    # -- for scripts

    async def pause(self, before: str) -> None:
        self.waits_for = before
        self._going = self.process.loop.create_future()
        await self._going

    async def receive_id(self) -> str:
        self.waits_for = "an id"
        self._going = self.process.loop.create_future()
        return await self._going

    async def acquire(
        self, *, timeout: float | None = None, permits: int = 1, **of_a_line: Any
    ) -> Permit:
        """Acquire; the permit counts as this process's from now on."""
        self.acquiring = permits
        acquire: Callable[..., Awaitable[Permit]] = self.semaphore.acquire
        if isinstance(self.semaphore, FairSemaphore):
            _ = of_a_line.setdefault("key", None)
        try:
            permit = await acquire(timeout=timeout, permits=permits, **of_a_line)
        finally:
            self.acquiring = 0
        if permit.permits != permits:
            raise Violation(f"{self.process.name} got {permit.permits} permits, not {permits}")
        self.process.permits.append(permit)
        return permit

    async def release(self, permit: Permit) -> None:
        try:
            await permit.release()
        finally:
            self.process.permits.remove(permit)

    async def detach(self, permit: Permit, expires_in: float) -> str:
        """Detach. Where that fails, the permit is this process's as before."""
        identity = await permit.detach(expires_in)
        self.process.permits.remove(permit)
        expiry_us = self.world.server_us + round(1e6 * expires_in)
        self.world.detached[identity] = math.ceil(expiry_us / 1000)
        return identity

    async def adopt(self, identity: str) -> Permit:
        """Adopt; where that says that the permit is lost, the server does not hold it."""
        world = self.world
        try:
            permit = await self.semaphore.adopt(identity)
        except PermitLost:
            if world.holds(identity):
                raise Violation(f"{self.process.name} adopts what is held, as lost") from None
            raise
        self.process.permits.append(permit)
        return permit

    async def set_limit(self, limit: int | None, key: str | None = None) -> None:
        """Set a limit, of all or of a key."""
        what = LIMIT if key is None else of_key(key)
        await self.orders.carry_out(self.process, self.semaphore, what, limit)

    async def revoke(self, identity: str) -> None:
        await self.semaphore.release(identity)

    def back_off(self, permit: Permit, seconds: float) -> None:
        self.orders.ordered(self.process, BACK_OFF)
        permit.back_off(seconds)

    async def delete(self) -> None:
        await self.orders.carry_out(self.process, self.semaphore, DELETE)

    @property
    def orders(self) -> Orders:
        return self.world.orders[NAME]

    # -- for the search

    @property
    def in_call(self) -> bool:
        return self.task is not None and not self.task.done() and self.waits_for is None

    @property
    def over(self) -> bool:
        return self.task is not None and self.task.done()

    @property
    def may_go(self) -> bool:
        if self.waits_for == "an id":
            return bool(self.world.ids)
        if self.waits_for == AT_END:
            return self.world.ending
        return self.waits_for is not None

    def go(self) -> str:
        what, self.waits_for = self.waits_for, None
        text = self.world.ids.popleft() if what == "an id" else ""
        if self._going is None:
            self.task = self.process.loop.create_task(self._run())
        else:
            self._going.set_result(text)
        return text

    def cancel(self) -> None:
        assert self.task is not None
        self.cancelled = True
        with running(self.process.loop):
            self.task.cancel()

    async def _run(self) -> None:
        try:
            await self._script(self)
        except asyncio.CancelledError:
            if not self.cancelled:
                raise Violation(f"{self.process.name} was cancelled by nobody") from None
        except BackendUnavailable:
            if self.world.calm:
                raise


class Member(Process):
    """A process with its jobs."""

    def __init__(self, path: "Path", party: Party) -> None:
        super().__init__(path)
        self.path = path
        self.party = party
        self.permits: list[Permit] = []
        self.semaphore = self._make_semaphore()
        self.jobs = [Job(self, script) for script in party.scripts]
        self.cancellable = [k for k in party.cancels if k < len(self.jobs)]

    def _make_semaphore(self) -> AnySemaphore:
        party, mode = self.party, self.path.scenario.mode
        options: dict[str, Any] = {"lease": party.lease}
        options |= {"slots": range(party.limit)} if "+slots" in mode else {"limit": party.limit}
        if "zset" in mode:
            return Semaphore(self.backend, NAME, **options)
        if "+keys" in mode or "+share" in mode:
            options["key_limit"] = party.key_limit
        if "+share" in mode:
            weights = dict(party.weights)
            options |= {"share": True, "patience": party.patience}
            options["weight"] = partial(_weight_of, weights)
        return FairSemaphore(self.backend, NAME, **options)

    @property
    def quiet(self) -> bool:
        """Whether nothing is on its way to or from it."""
        link = self.link
        return not self.dialling and not (link and (link.going or link.coming))

    @property
    def dialling(self) -> bool:
        return any(not dialled.done() for dialled in self.dials)

    def noted(self, *what: object) -> None:
        self.seen = number_of((self.seen, self.path.now, repr(what)))


_numbers: dict[object, int] = {}


def number_of(thing: object) -> int:
    return _numbers.setdefault(thing, len(_numbers) + 1)


def _weight_of(weights: Mapping[str, float], key: str) -> float:
    return weights.get(key, 1.0)
