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
from benchmarks.libraries import LIBRARIES, OpenSemaphore, Options

_JOB_TIMEOUT = 180.0  # seconds for any one order

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Job(Protocol[T_co]):
    """Something to do in a child. It is pickled, and so is what it returns or raises."""

    async def run(self, context: "JobContext") -> T_co: ...


class JobContext:
    """A child, as its orders see it.

    Attributes:
        tasks: what orders started and did not wait for.
        notes: what one order leaves for another, by a name of its choice.
    """

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._open: dict[object, Any] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self.shared: dict[str, Any] = {}

    async def semaphore(self, label: str, options: Options) -> OpenSemaphore:
        """A semaphore, opened when first asked for."""
        return await self.once((label, options), lambda: LIBRARIES[label].open(options))

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

    async def ask(self, job: Job[T]) -> T:
        """Have an order carried out; raises what it raises, or TimeoutError after long."""
        if not self._process.is_alive():
            raise ChildLost("the process that had this order before did not finish it")
        self._pipe.send(job)
        try:
            async with asyncio.timeout(_JOB_TIMEOUT):
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

    async def stop(self) -> None:
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
    process = context.Process(target=_main, args=(theirs, loop), daemon=True)
    await asyncio.to_thread(process.start)
    theirs.close()
    made = Child(process, ours)
    try:
        await asyncio.to_thread(ours.recv)  # it is ready
        yield made
    finally:
        await made.stop()


def _main(pipe: Connection, loop: LoopName) -> None:
    # Ctrl-C goes to all processes of a terminal: the parent ends us, when it has tidied up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    allow_many_files()
    with runner_of(loop) as runner:
        runner.run(_serve(pipe))
    sys.stdout.flush()
    os._exit(0)  # libraries' threads need not end first


async def _serve(pipe: Connection) -> None:
    context = JobContext()
    pipe.send(None)
    try:
        while (job := await _next(pipe)) is not None:
            try:
                answer = await job.run(context)
            except Exception as error:  # noqa: BLE001 - whoever asked decides
                answer = error
            pipe.send(answer)
    finally:
        await context.close()


async def _next(pipe: Connection) -> Job[object] | None:
    try:
        return cast("Job[object] | None", await asyncio.to_thread(pipe.recv))
    except EOFError:
        return None
