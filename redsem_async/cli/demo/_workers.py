"""The workers, seen from the demo: who has which request, and what became of it."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ._ipc import Child, Event
from ._record import Answer, Round


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What a worker left: requests that it had started, and others that it had not."""

    lost: tuple[int, ...]
    passed_on: tuple[int, ...]


@dataclass(eq=False, slots=True)
class Worker:
    """A worker process and what it is at.

    Attributes:
        label: also its process's, in ``status()``.
        child: the process.
        queued: requests that it has and has not started.
        started: requests that it has started, and that were not answered yet.
        answered: how many were, in this round.
        refused: how often it was refused, in this round.
        state: ``starting``, ``ready`` or ``gone``.
        left: what it left, once it is gone.
    """

    label: str
    child: Child
    queued: set[int] = field(default_factory=set[int])
    started: set[int] = field(default_factory=set[int])
    answered: int = 0
    refused: int = 0
    state: str = "starting"
    unfinished: Unfinished | None = None

    @property
    def load(self) -> int:
        """How many requests it has on its hands."""
        return len(self.queued) + len(self.started)


class Workers:
    """Hands requests to workers and keeps the books.

    All requests are in one list. A worker gets the next one when it is done with another, and
    what a dead worker had not started goes back to the head of the list.
    """

    def __init__(self, workers: Iterable[Worker], slots: int) -> None:
        self.workers = list(workers)
        self.answers: list[Answer] = []
        self._slots = slots
        self._kind = ""
        self._requests = range(0)
        self._began = 0.0
        self._failures: dict[int, str] = {}
        self._pending: deque[int] = deque()
        self._changed = asyncio.Event()

    @property
    def finished_or_dead(self) -> bool:
        """Whether nothing is left to do, or nobody to do it."""
        done = not self._pending and not any(worker.load for worker in self.workers)
        return done or all(worker.state == "gone" for worker in self.workers)

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until *true*, which may change with whatever a worker says."""
        while not true():
            self._changed.clear()
            await self._changed.wait()

    async def ready(self) -> None:
        """Wait until all workers have started."""
        await self.until(lambda: all(worker.state != "starting" for worker in self.workers))

    def begin(self, kind: str, requests: range) -> None:
        """Open a round: hand out *requests*, as many as the workers take at once."""
        self._kind, self._requests, self._began = kind, requests, time.monotonic()
        self.answers, self._failures = [], {}
        for worker in self.workers:
            worker.answered = worker.refused = 0
        self._pending.extend(requests)
        self._dispatch()

    async def finished(self) -> Round:
        """Wait until nobody has anything left to do; what the upstream saw is still to add."""
        await self.until(lambda: self.finished_or_dead)
        ended, answers = time.monotonic(), tuple(self.answers)
        return Round(self._requests, self._began, ended, answers, self._failures, visits=())

    async def follow(self, worker: Worker) -> None:
        """Keep the books of one worker until it ends."""
        async for event in worker.child.events():
            self._apply(worker, event)
            self._dispatch()
            self._changed.set()
        self._worker_gone(worker)
        self._dispatch()
        self._changed.set()

    def _apply(self, worker: Worker, event: Event) -> None:
        number = event.number
        match event.kind:
            case "ready":
                worker.state = "ready"
            case "started":
                worker.queued.discard(number)
                worker.started.add(number)
            case "refused":
                worker.refused += 1
            case "answered":
                worker.started.discard(number)
                worker.answered += 1
                self.answers.append(Answer(number, worker.label, event.at))
            case "leaving":
                pass
            case _:
                worker.started.discard(number)
                worker.queued.discard(number)
                self._failures[number] = event.detail

    def _worker_gone(self, worker: Worker) -> None:
        """Close the books of a worker that is gone, and pass on what it had not started."""
        unfinished = Unfinished(tuple(sorted(worker.started)), tuple(sorted(worker.queued)))
        self._failures |= dict.fromkeys(unfinished.lost, f"{worker.label} was gone")
        self._pending.extendleft(reversed(unfinished.passed_on))
        worker.started.clear()
        worker.queued.clear()
        worker.unfinished = unfinished
        worker.state = "gone"

    def _dispatch(self) -> None:
        """Give to whoever has least, until all have enough."""
        while self._pending:
            worker = min(self.workers, key=self._load_of)
            if self._load_of(worker) >= self._slots:
                return
            number = self._pending.popleft()
            worker.queued.add(number)
            worker.child.send(self._kind, number)

    def _load_of(self, worker: Worker) -> float:
        return worker.load if worker.state == "ready" else float("inf")
