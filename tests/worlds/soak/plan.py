"""What a soak is to do: how long, how many, which faults; and the semaphores that it uses."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redsem_async import AnySemaphore, FairSemaphore, Rate, Semaphore
from redsem_async._core.config import Clock
from redsem_async._core.keys import Mode, mode_with

PREFIX = "redsem:soak"
HIGHEST_LIMIT = 8
LONGEST_LEASE = 3.0
_MODES: tuple[Mode, ...] = ("zset", "fair", "fair+keys", "zset", "fair+rate", "fair+share")
FAULTS = (
    *("client kill", "script flush", "client pause", "stop", "kill -9", "flushall", "restart"),
    *("half-open", "mute server", "refused connections", "late duplicate", "lost reply"),
)


@dataclass(frozen=True)
class Plan:
    """A soak, from which everything but timing follows."""

    seconds: float = 120.0
    processes: int = 8
    tasks: int = 12  # of each process
    names: int = 200
    seed: int = 0
    faults: Sequence[str] = FAULTS
    pause: float = 0.5  # seconds between two faults, about
    rest: float = 0.02  # seconds that a task does nothing between two attempts, at most


class Place(NamedTuple):
    """A semaphore, as all processes know it."""

    name: str
    mode: Mode
    limit: int
    lease: float
    mixed: bool  # every other process declares a limit higher by one
    clock: Clock
    key_limit: int  # of each key, where requests have any

    @property
    def keyed(self) -> bool:
        return "+keys" in self.mode or "+share" in self.mode

    def semaphore(self, client: Any, process: int) -> AnySemaphore:
        limit = self.limit + (self.mixed and process % 2)
        own: dict[str, Any] = {"limit": limit}
        if self.mode.endswith("+slots"):
            own = {"slots": range(limit)}
        if self.keyed:
            own |= {"key_limit": self.key_limit, "share": "+share" in self.mode}
        if "+rate" in self.mode:
            own["rate"] = Rate(20, burst=3)
        own |= {"lease": self.lease, "prefix": PREFIX, "clock": self.clock, "timeout": 5.0}
        kind = Semaphore if self.mode.startswith("zset") else FairSemaphore
        return kind(client, self.name, **own)


def places(plan: Plan) -> list[Place]:
    """The semaphores: a third with keys, and half with slots."""
    dice, known = random.Random(plan.seed), list[Place]()
    for number in range(plan.names):
        mode = _MODES[number % len(_MODES)]
        place = Place(
            name=f"place-{number}",
            mode=mode_with(mode, slots=True) if number % 12 > 5 else mode,
            limit=dice.choice((1, 1, 2, 3, 5, HIGHEST_LIMIT - 1)),
            lease=dice.choice((0.5, 1.0, 2.0, LONGEST_LEASE)),
            mixed=dice.random() < 0.1,
            clock="local" if dice.random() < 0.05 and "+rate" not in mode else "server",
            key_limit=dice.choice((1, 1, 2, 3)),
        )
        known.append(place)
    return known
