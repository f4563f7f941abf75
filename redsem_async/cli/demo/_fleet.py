"""The workers, seen from the demo: who has which request, and what became of it."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ._pipes import Child, Event
from ._record import Answer, Round


@dataclass(frozen=True, slots=True)
class Left:
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
    left: Left | None = None

    @property
    def load(self) -> int:
        """How many requests it has on its hands."""
        return len(self.queued) + len(self.started)


class Fleet:
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
        self._todo: deque[int] = deque()
        self._news = asyncio.Event()

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do, or nobody to do it."""
        done = not self._todo and not any(worker.load for worker in self.workers)
        return done or all(worker.state == "gone" for worker in self.workers)

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until *true*, which may change with whatever a worker says."""
        while not true():
            self._news.clear()
            await self._news.wait()

    async def ready(self) -> None:
        """Wait until all workers have started."""
        await self.until(lambda: all(worker.state != "starting" for worker in self.workers))

    def begin(self, kind: str, requests: range) -> None:
        """Open a round: hand out *requests*, as many as the workers take at once."""
        self._kind, self._requests, self._began = kind, requests, time.monotonic()
        self.answers, self._failures = [], {}
        for worker in self.workers:
            worker.answered = worker.refused = 0
        self._todo.extend(requests)
        self._hand_out()

    async def finished(self) -> Round:
        """Wait until nobody has anything left to do; what the upstream saw is still to add."""
        await self.until(lambda: self.idle)
        ended, answers = time.monotonic(), tuple(self.answers)
        return Round(self._requests, self._began, ended, answers, self._failures, visits=())

    async def listen(self, worker: Worker) -> None:
        """Keep the books of one worker until it ends."""
        async for event in worker.child.events():
            self._enter(worker, event)
            self._hand_out()
            self._news.set()
        self._settle(worker)
        self._hand_out()
        self._news.set()

    def _enter(self, worker: Worker, event: Event) -> None:
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

    def _settle(self, worker: Worker) -> None:
        """Close the books of a worker that is gone, and pass on what it had not started."""
        left = Left(tuple(sorted(worker.started)), tuple(sorted(worker.queued)))
        self._failures |= dict.fromkeys(left.lost, f"{worker.label} was gone")
        self._todo.extendleft(reversed(left.passed_on))
        worker.started.clear()
        worker.queued.clear()
        worker.left = left
        worker.state = "gone"

    def _hand_out(self) -> None:
        """Give to whoever has least, until all have enough."""
        while self._todo:
            worker = min(self.workers, key=self._hands_full)
            if self._hands_full(worker) >= self._slots:
                return
            number = self._todo.popleft()
            worker.queued.add(number)
            worker.child.order(self._kind, number)

    def _hands_full(self, worker: Worker) -> float:
        return worker.load if worker.state == "ready" else float("inf")
