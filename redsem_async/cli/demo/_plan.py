"""What the demo is about to do, and what its processes are told of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a demo.

    Attributes:
        requests: in each of the two rounds.
        limit: how many the upstream takes at once, and the semaphore lets through.
        lease: of the semaphore, in seconds. It is far longer than a request takes, so that what
            a killed worker had sent has left the upstream before its places are given away.
        workers: processes.
        slots: requests that one worker has on its hands at once.
    """

    requests: int
    limit: int
    lease: float
    workers: int = 4
    slots: int = 6

    @property
    def kill_after(self) -> int:
        """How many requests of the second round are answered before the worker is killed."""
        return self.requests // 5


@dataclass(frozen=True, slots=True)
class UpstreamSetup:
    """What the upstream is told."""

    limit: int


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker is told."""

    label: str
    upstream: str
    redis: str
    semaphore: str
    limit: int
    lease: float
