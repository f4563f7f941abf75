"""The parameters of a demo, and of each of its processes."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a demo.

    Attributes:
        requests: number of requests in each of the two rounds.
        limit: concurrent requests that the upstream accepts; the limit of the semaphore.
        lease: lease in seconds. It is far longer than a request, so that the requests of a killed
            worker have left the upstream before its permits are granted to others.
        workers: number of worker processes.
        slots: requests assigned to one worker at a time.
    """

    requests: int
    limit: int
    lease: float
    workers: int = 4
    slots: int = 6

    @property
    def kill_after(self) -> int:
        """The number of answered requests in the second round before a worker is killed."""
        return self.requests // 5


@dataclass(frozen=True, slots=True)
class UpstreamSetup:
    """The parameters of the upstream process."""

    limit: int


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The parameters of a worker process; *target* has the fields of a `Target`."""

    label: str
    upstream: str
    target: dict[str, Any]
    semaphore: str
    limit: int
    lease: float
