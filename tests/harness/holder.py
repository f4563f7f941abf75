"""A holder whose permit is taken away while its body runs."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from redsem_async import AnySemaphore, Permit
from tests.harness.wait import all_free, soon


async def nothing_is_left(*, cancelling: int = 0) -> None:
    """The task may go on as if nothing had been: no cancellation is counted or on its way."""
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == cancelling
    for _ in range(3):
        await asyncio.sleep(0)


class Holder:
    """Code that holds a permit of *sem*; *elsewhere* is the same semaphore in another process."""

    def __init__(self, sem: AnySemaphore, elsewhere: AnySemaphore) -> None:
        self.sem = sem
        self.elsewhere = elsewhere
        self.entered: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        self.may_end = asyncio.Event()
        self.cancellations = 0
        self.task: asyncio.Task[BaseException | None]

    async def body(self, permit: Permit) -> None:
        """Wait until it is cancelled, or may end."""
        self.entered.set_result(permit)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancellations += 1
            raise

    async def block(self) -> None:
        """What most users write."""
        async with self.sem as permit:
            await self.body(permit)

    async def lose_during(
        self,
        work: Callable[[], Awaitable[object]],
        take: Callable[[Permit], Awaitable[object]] | None = None,
        *,
        cancelling: int = 0,
    ) -> Permit:
        """Run *work* in a task, *take* the permit when its body waits, and raise how it ends.

        Afterwards the semaphore is free, and the task has *cancelling* cancellations to end by.
        """

        async def outcome() -> BaseException | None:
            error: BaseException | None = None
            try:
                await work()
            except BaseException as raised:  # noqa: BLE001 - a cancellation is an outcome too
                error = raised
            await nothing_is_left(cancelling=cancelling)
            return error

        self.task = asyncio.create_task(outcome())
        permit = await soon(self.entered)
        await (take or self.take)(permit)
        error = await soon(self.task)
        await all_free(self.sem)
        if error is not None:
            raise error
        return permit

    async def take(self, *permits: Permit) -> None:
        for permit in permits:
            assert await self.elsewhere.release(permit.id) is True

    async def take_at_once(self, *permits: Permit, until: float = 0.0) -> None:
        """Take them while this loop stands still: all that happens meanwhile, it finds at once.

        Args:
            permits: what to take.
            until: a time of the loop, before which it does not go on.
        """

        async def take() -> None:
            await self.take(*permits)
            await self.elsewhere.status(0)  # the server writes its messages before it answers this

        failed: list[BaseException] = []

        def run() -> None:
            try:
                asyncio.run(take())
            except BaseException as error:  # noqa: BLE001 - raised below
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert not failed, failed
        time.sleep(max(0.0, until - asyncio.get_running_loop().time()))  # noqa: ASYNC251


async def forever(*_: Any) -> None:
    await asyncio.Event().wait()
