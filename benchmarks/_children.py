"""Child processes that run jobs of a case.

A job is a small frozen dataclass: it is pickled, sent to a child and run there. A child ends when
its pipe is closed, and thus with its parent, whatever ends the parent.
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

_JOB_TIMEOUT = 180.0  # seconds per job

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Job(Protocol[T_co]):
    """Work for a child. The job, its result and its errors are pickled."""

    async def run(self, context: "JobContext") -> T_co: ...


class JobContext:
    """The state of a child, shared by its jobs.

    Attributes:
        tasks: tasks that jobs started and did not await.
        shared: values that one job stores for another.
    """

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._open: dict[object, Any] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self.shared: dict[str, Any] = {}

    async def semaphore(self, label: str, options: Options) -> OpenSemaphore:
        """A semaphore, opened on first use."""
        return await self.once((label, options), lambda: LIBRARIES[label].open(options))

    async def once(self, key: object, make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """A context, entered on first use and left when the child ends."""
        if key not in self._open:
            self._open[key] = await self._stack.enter_async_context(make())
        return cast("T", self._open[key])

    async def close(self) -> None:
        """Cancel all tasks, and leave all contexts."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self._stack.aclose()


class ChildLost(Exception):
    """The child process has ended."""


class Child:
    """The parent's handle of a child process."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self._process = process
        self._pipe = pipe

    async def run(self, job: Job[T]) -> T:
        """Run a job in the child. Raises the job's error, or TimeoutError."""
        if not self._process.is_alive():
            raise ChildLost("the process ended during an earlier job")
        self._pipe.send(job)
        try:
            async with asyncio.timeout(_JOB_TIMEOUT):
                answer = await asyncio.to_thread(self._pipe.recv)
        except TimeoutError:
            # The child still runs that job, and cannot accept another.
            await self.kill()
            raise
        if isinstance(answer, BaseException):
            raise answer
        return cast("T", answer)

    async def kill(self) -> None:
        """Kill the process with SIGKILL: it releases nothing."""
        self._process.kill()
        await asyncio.to_thread(self._process.join)

    async def stop(self) -> None:
        """End the process after it has cleaned up."""
        if self._process.is_alive():
            self._pipe.send(None)
            await asyncio.to_thread(self._process.join, 5)
        await self.kill()
        self._pipe.close()


@asynccontextmanager
async def child(loop: LoopName) -> AsyncGenerator[Child]:
    """A child process for the length of a block."""
    # Spawned, not forked: it shares no state, like a process on another host.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(theirs, loop), daemon=True)
    await asyncio.to_thread(process.start)
    theirs.close()
    made = Child(process, ours)
    try:
        await asyncio.to_thread(ours.recv)  # the child is ready
        yield made
    finally:
        await made.stop()


def _main(pipe: Connection, loop: LoopName) -> None:
    # Ctrl-C reaches all processes of a terminal. The parent stops its children after cleaning up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    allow_many_files()
    with runner_of(loop) as runner:
        runner.run(_serve(pipe))
    sys.stdout.flush()
    os._exit(0)  # without waiting for threads of libraries


async def _serve(pipe: Connection) -> None:
    context = JobContext()
    pipe.send(None)
    try:
        while (job := await _next(pipe)) is not None:
            try:
                answer = await job.run(context)
            except Exception as error:  # noqa: BLE001 - the parent decides
                answer = error
            pipe.send(answer)
    finally:
        await context.close()


async def _next(pipe: Connection) -> Job[object] | None:
    try:
        return cast("Job[object] | None", await asyncio.to_thread(pipe.recv))
    except EOFError:
        return None
