"""Processes of a case, which carry out its orders.

An order is a small frozen dataclass that says what to do and does it, in another process. A
child ends with its parent, whatever ended that, for then its pipe does.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeVar, cast

from benchmarks._files import allow_many_files
from benchmarks._setup import LoopName, runner_of
from benchmarks.contenders import LIBRARIES, Contender, Terms

_PATIENCE = 180.0  # seconds for any one order

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Order(Protocol[T_co]):
    """Something to do in a child. It is pickled, and so is what it returns or raises."""

    async def carry_out(self, here: "Stage") -> T_co: ...


class Stage:
    """A child, as its orders see it.

    Attributes:
        tasks: what orders started and did not wait for.
        notes: what one order leaves for another, by a name of its choice.
    """

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._open: dict[object, Any] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self.notes: dict[str, Any] = {}

    async def contender(self, label: str, terms: Terms) -> Contender:
        """A semaphore, opened when first asked for."""
        return await self.once((label, terms), lambda: LIBRARIES[label].open(terms))

    async def once(self, key: object, make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Something that stays open until the child ends, opened when first asked for."""
        if key not in self._open:
            self._open[key] = await self._stack.enter_async_context(make())
        return cast("T", self._open[key])

    async def close(self) -> None:
        """End all that orders started."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self._stack.aclose()


class ChildLost(Exception):
    """There is no process any more to carry the order out."""


class Child:
    """A process, as the case sees it."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self._process = process
        self._pipe = pipe

    async def ask(self, order: Order[T]) -> T:
        """Have an order carried out; raises what it raises, or TimeoutError after long."""
        if not self._process.is_alive():
            raise ChildLost("the process that had this order before did not finish it")
        self._pipe.send(order)
        try:
            async with asyncio.timeout(_PATIENCE):
                answer = await asyncio.to_thread(self._pipe.recv)
        except TimeoutError:
            # It is in that order still, and can be given no other.
            await self.kill()
            raise
        if isinstance(answer, BaseException):
            raise answer
        return cast("T", answer)

    async def kill(self) -> None:
        """End it as ``kill -9`` does: nothing is released."""
        self._process.kill()
        await asyncio.to_thread(self._process.join)

    async def dismiss(self) -> None:
        """Let it end in good order."""
        if self._process.is_alive():
            self._pipe.send(None)
            await asyncio.to_thread(self._process.join, 5)
        await self.kill()
        self._pipe.close()


@asynccontextmanager
async def child(loop: LoopName) -> AsyncGenerator[Child]:
    """A process for the length of a block."""
    # Spawned, not forked: it shares nothing with us, as another host would not.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_live, args=(theirs, loop), daemon=True)
    await asyncio.to_thread(process.start)
    theirs.close()
    made = Child(process, ours)
    try:
        await asyncio.to_thread(ours.recv)  # it is ready
        yield made
    finally:
        await made.dismiss()


def _live(pipe: Connection, loop: LoopName) -> None:
    # Ctrl-C goes to all processes of a terminal: the parent ends us, when it has tidied up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    allow_many_files()
    with runner_of(loop) as runner:
        runner.run(_obey(pipe))
    sys.stdout.flush()
    os._exit(0)  # libraries' threads need not end first


async def _obey(pipe: Connection) -> None:
    stage = Stage()
    pipe.send(None)
    try:
        while (order := await _next(pipe)) is not None:
            try:
                answer = await order.carry_out(stage)
            except Exception as error:  # noqa: BLE001 - whoever asked decides
                answer = error
            pipe.send(answer)
    finally:
        await stage.close()


async def _next(pipe: Connection) -> Order[object] | None:
    try:
        return cast("Order[object] | None", await asyncio.to_thread(pipe.recv))
    except EOFError:
        return None
