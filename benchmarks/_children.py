"""Child processes that run jobs of a case.

A job is an async function of a module: its name and arguments are pickled, sent to a child and run
there. A child ends when its pipe is closed, and thus with its parent, whatever ends the parent.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from benchmarks._bench import LoopName, allow_many_files, runner_of
from benchmarks._libraries import LIBRARIES, OpenSemaphore, Options

JOB_TIMEOUT = 180.0  # seconds

T = TypeVar("T")
P = ParamSpec("P")


class Context:
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


class Child:
    """The parent's handle of a child process."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self._process = process
        self._pipe = pipe

    async def run(
        self,
        job: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """Run a job in the child. Raises the job's error, or TimeoutError."""
        if not self._process.is_alive():
            raise RuntimeError("the process ended during an earlier job")
        self._pipe.send((job, args, options))
        try:
            async with asyncio.timeout(JOB_TIMEOUT):
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
    context = Context()
    pipe.send(None)
    try:
        while received := await _next(pipe):
            job, args, options = received
            try:
                answer = await job(context, *args, **options)
            except Exception as error:  # noqa: BLE001 - the parent decides
                answer = error
            pipe.send(answer)
    finally:
        await context.close()


async def _next(pipe: Connection) -> Any:
    try:
        return await asyncio.to_thread(pipe.recv)
    except EOFError:
        return None
