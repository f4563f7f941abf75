"""What takes part in a round: the upstream, and worker processes that share its requests."""

import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._record import Event, Kill

_EXIT_TIMEOUT = 2.0  # seconds for a worker to end by itself
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"
_TOO_MANY = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 9\r\n\r\ntoo many\n"


class Upstream:
    """Like a provider with a concurrency cap, it refuses excess requests.

    It does not know the semaphore, so the events that it records are independent of it.

    Attributes:
        inside: the number of requests that are being processed.
    """

    def __init__(self, limit: int, events: list[Event]) -> None:
        """Append to *events*, and process up to *limit* requests at once."""
        self.inside = 0
        self._limit = limit
        self._events = events

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncGenerator[str]:
        """Answer requests during a block, at this URL."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, ``GET /<number>``, one after the other."""
        # The task is cancelled at the end, which Python 3.11 would log.
        over = (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError)
        with contextlib.suppress(*over):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1]
                writer.write(await self._answer(int(path[1:])))
                await writer.drain()
        writer.close()

    async def _answer(self, number: int) -> bytes:
        if self.inside >= self._limit:
            self._record("refused", number)
            return _TOO_MANY
        self.inside += 1
        self._record("entered", number)
        # As in a real service, started work continues when the client is gone.
        await asyncio.sleep(random.uniform(0.05, 0.12))
        self.inside -= 1
        self._record("left", number)
        return _OK

    def _record(self, kind: str, number: int) -> None:
        self._events.append(Event(kind, number, time.monotonic()))


@dataclass(eq=False, slots=True)
class Worker:
    """A worker process and its requests.

    Attributes:
        label: its label, also in ``status()``.
        process: the process, which runs `_worker`.
        state: ``starting``, ``ready`` or ``gone``.
        queued: requests assigned to it and not started yet.
        started: requests started and not answered yet.
        counts: the number of its events of each kind.
    """

    label: str
    process: asyncio.subprocess.Process
    state: str = "starting"
    queued: set[int] = field(default_factory=set[int])
    started: set[int] = field(default_factory=set[int])
    counts: Counter[str] = field(default_factory=Counter[str])

    @property
    def load(self) -> int:
        """The number of its unfinished requests."""
        return len(self.queued) + len(self.started)

    def write(self, line: object) -> None:
        """Write *line* as JSON. Few requests are in flight, so the pipe is never full."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Ask the process to end by closing its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.close()


class Workers:
    """The workers, and the list of requests that they share.

    A worker gets the next request when it has finished another. Requests that a dead worker had
    not started return to the head of the list.

    Attributes:
        all: the workers, in the order of their numbers.
    """

    def __init__(self, slots: int, events: list[Event]) -> None:
        """Append to *events*, and assign up to *slots* requests to a worker at a time."""
        self.all: list[Worker] = []
        self._slots = slots
        self._events = events
        self._pending: deque[int] = deque()
        self._changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self, count: int, setup: Mapping[str, Any]) -> AsyncGenerator[None]:
        """Run *count* workers during a block; all of them have ended after it."""
        # The group outlives the processes, so that its tasks read all events.
        async with asyncio.TaskGroup() as group:
            try:
                for number in range(1, count + 1):
                    worker = await _start(f"worker {number}", setup)
                    self.all.append(worker)
                    group.create_task(self._follow(worker))
                await self.until(lambda: all(worker.state != "starting" for worker in self.all))
                yield
            finally:
                await self._end()

    def assign(self, requests: range) -> None:
        """Have *requests* processed."""
        self._pending.extend(requests)
        self._dispatch()

    @property
    def answered(self) -> int:
        """The number of answered requests."""
        return sum(worker.counts["answered"] for worker in self.all)

    @property
    def finished(self) -> bool:
        """Whether all requests are finished, or all workers are gone."""
        left = [worker for worker in self.all if worker.state != "gone"]
        return not left or not (self._pending or any(worker.load for worker in left))

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until *true*, which is evaluated after each event of a worker."""
        while not true():
            self._changed.clear()
            await self._changed.wait()

    async def kill(self, victim: Worker) -> Kill:
        """Kill a worker with SIGKILL."""
        victim.process.kill()
        returncode = await victim.process.wait()
        at = time.monotonic()
        await self.until(lambda: victim.state == "gone")
        lost, passed_on = tuple(sorted(victim.started)), tuple(sorted(victim.queued))
        return Kill(victim.label, victim.process.pid, returncode, at, lost, passed_on)

    async def _follow(self, worker: Worker) -> None:
        """Process the events of one worker until it ends."""
        assert worker.process.stdout is not None
        async for line in worker.process.stdout:
            self._apply(worker, Event(*json.loads(line)))
            self._dispatch()
            self._changed.set()
        worker.state = "gone"
        self._pending.extendleft(sorted(worker.queued, reverse=True))
        now, reason = time.monotonic(), f"{worker.label} was gone"
        self._events += [Event("failed", number, now, reason) for number in worker.started]
        self._dispatch()
        self._changed.set()

    def _apply(self, worker: Worker, event: Event) -> None:
        worker.counts[event.kind] += 1
        match event.kind:
            case "ready":
                worker.state = "ready"
                return
            case "started":
                worker.queued.discard(event.request)
                worker.started.add(event.request)
            case "answered" | "failed":
                worker.queued.discard(event.request)
                worker.started.discard(event.request)
            case _:  # retrying
                pass
        self._events.append(event)

    def _dispatch(self) -> None:
        """Assign requests to the least loaded worker until all have `slots` requests."""
        while self._pending:
            ready = [worker for worker in self.all if worker.state == "ready"]
            worker = min(ready, key=lambda worker: worker.load, default=None)
            if worker is None or worker.load >= self._slots:
                return
            number = self._pending.popleft()
            worker.queued.add(number)
            worker.write(number)

    async def _end(self) -> None:
        for worker in self.all:
            worker.close()
        try:
            async with asyncio.timeout(_EXIT_TIMEOUT):
                await asyncio.gather(*(worker.process.wait() for worker in self.all))
        except TimeoutError:
            pass
        finally:
            for worker in self.all:
                if worker.process.returncode is None:
                    worker.process.kill()
                    await worker.process.wait()


async def _start(label: str, setup: Mapping[str, Any]) -> Worker:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"{__package__}._worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        # Ctrl-C reaches only the demo, which then stops its workers in order.
        start_new_session=True,
    )
    worker = Worker(label, process)
    # Not as an argument, because the URL may contain a password.
    worker.write({**setup, "label": label})
    return worker
