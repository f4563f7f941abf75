"""The worker processes: assigns requests to them, and records the outcome of each request."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ._ipc import Child, Event
from ._record import Answer, Round


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The requests of a worker that ended: started ones are lost, others are reassigned."""

    lost: tuple[int, ...]
    passed_on: tuple[int, ...]


@dataclass(eq=False, slots=True)
class Worker:
    """A worker process and its requests.

    Attributes:
        label: its label, also in ``status()``.
        child: the process.
        queued: requests assigned to it and not started yet.
        started: requests started and not answered yet.
        answered: number of answered requests in this round.
        refused: number of refusals in this round.
        state: ``starting``, ``ready`` or ``gone``.
        unfinished: its unfinished requests, once it is gone.
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
        """The number of its unfinished requests."""
        return len(self.queued) + len(self.started)


class Workers:
    """All workers, and the list of requests that they share.

    A worker gets the next request when it has finished another. Requests that a dead worker had
    not started return to the head of the list.
    """

    def __init__(self, workers: Iterable[Worker], slots: int) -> None:
        self.workers = list(workers)
        self.answers: list[Answer] = []
        self._slots = slots
        self._kind = ""
        self._requests = range(0)
        self._began = 0.0
        self._failures: dict[int, str] = {}
        self._asked: list[tuple[float, int]] = []
        self._pending: deque[int] = deque()
        self._changed = asyncio.Event()

    @property
    def finished_or_dead(self) -> bool:
        """Whether all requests are finished, or all workers are gone."""
        done = not self._pending and not any(worker.load for worker in self.workers)
        return done or all(worker.state == "gone" for worker in self.workers)

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until *true*, which is evaluated after each event of a worker."""
        while not true():
            self._changed.clear()
            await self._changed.wait()

    async def ready(self) -> None:
        """Wait until all workers have started."""
        await self.until(lambda: all(worker.state != "starting" for worker in self.workers))

    def begin(self, kind: str, requests: range) -> None:
        """Start a round: assign *requests* to the workers, up to `slots` each."""
        self._kind, self._requests, self._began = kind, requests, time.monotonic()
        self.answers, self._failures, self._asked = [], {}, []
        for worker in self.workers:
            worker.answered = worker.refused = 0
        self._pending.extend(requests)
        self._dispatch()

    async def finished(self) -> Round:
        """Wait for the end of the round. The caller adds the visits that the upstream recorded."""
        await self.until(lambda: self.finished_or_dead)
        ended, answers, asked = time.monotonic(), tuple(self.answers), tuple(self._asked)
        return Round(self._requests, self._began, ended, answers, self._failures, (), asked)

    async def follow(self, worker: Worker) -> None:
        """Process the events of one worker until it ends."""
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
                self._asked.append((event.at, 1))
            case "refused":
                worker.refused += 1
            case "answered":
                self._asked.append((event.at, -1))
                worker.started.discard(number)
                worker.answered += 1
                self.answers.append(Answer(number, worker.label, event.at))
            case "leaving":
                pass
            case _:
                if number in worker.started:
                    self._asked.append((event.at, -1))
                worker.started.discard(number)
                worker.queued.discard(number)
                self._failures[number] = event.detail

    def _worker_gone(self, worker: Worker) -> None:
        """Record the unfinished requests of a worker that ended; reassign those not started."""
        self._asked.append((time.monotonic(), -len(worker.started)))
        unfinished = Unfinished(tuple(sorted(worker.started)), tuple(sorted(worker.queued)))
        self._failures |= dict.fromkeys(unfinished.lost, f"{worker.label} was gone")
        self._pending.extendleft(reversed(unfinished.passed_on))
        worker.started.clear()
        worker.queued.clear()
        worker.unfinished = unfinished
        worker.state = "gone"

    def _dispatch(self) -> None:
        """Assign requests to the least loaded worker until all have `slots` requests."""
        while self._pending:
            worker = min(self.workers, key=self._load_of)
            if self._load_of(worker) >= self._slots:
                return
            number = self._pending.popleft()
            worker.queued.add(number)
            worker.child.send(self._kind, number)

    def _load_of(self, worker: Worker) -> float:
        return worker.load if worker.state == "ready" else float("inf")
