"""What a soak is to do: how long, how many, which faults; and the semaphores that it uses."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from redsem_async import AnySemaphore, FairSemaphore, Semaphore
from redsem_async._core.config import Clock
from redsem_async._core.keys import Mode, with_slots

PREFIX = "redsem:soak"
HIGHEST_LIMIT = 8
KEYS = ("acme", "ü: %41;", "globex")
_MODES: tuple[Mode, ...] = (
    *("zset", "fair", "zset", "fair+keys"),
    *("zset", "fair", "zset", "fair+share"),
)
LONGEST_LEASE = 3.0

Fault = Literal[
    "client kill",
    "kill all subscribers",
    "script flush",
    "client pause",
    "short stop",
    "long stop",
    "kill -9",
    "blocked loop",
    "dropped connection",
    "cut before it ran",
    "lost reply",
    "late reply",
    "half-open",
    "mute server",
    "delay",
    "refused connections",
    "late duplicate",
    "flushall",
    "restart",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)

ON_THE_WAY = FAULTS[FAULTS.index("dropped connection") : FAULTS.index("flushall")]


@dataclass(frozen=True)
class Plan:
    """A soak, from which everything but timing follows."""

    seconds: float = 120.0
    processes: int = 8
    tasks: int = 12  # of each process
    names: int = 2000
    seed: int = 0
    faults: Sequence[Fault] = FAULTS
    pause: float = 0.5  # seconds between two faults, about
    rest: float = 0.02  # seconds that a task does nothing between two stays, at most
    hold: float = 0.03  # seconds for which a permit is held, as a rule, at most
    operations: int | None = None  # enough: ends when so many were checked


@dataclass(frozen=True)
class Place:
    """A semaphore, as all processes know it."""

    name: str
    mode: Mode
    limit: int
    lease: float
    weighted: bool
    mixed: bool  # every other process declares a limit higher by one
    mutable: bool  # its limit is set now and then
    clock: Clock
    key_limit: int  # of each key, where requests have any

    @property
    def keyed(self) -> bool:
        return "+keys" in self.mode or "+share" in self.mode

    @property
    def slotted(self) -> bool:
        return self.mode.endswith("+slots")

    @property
    def key_ceiling(self) -> int:
        """The same for one key."""
        return self.key_limit + self.mutable

    @property
    def ceiling(self) -> int:
        """The most that may be held at a time, whatever limit is in force."""
        most = self.limit + self.mixed  # no limit that is set makes more slots
        return HIGHEST_LIMIT if self.mutable and not self.slotted else most

    def declared(self, process: int) -> int:
        return self.limit + (self.mixed and process % 2)

    def semaphore(self, client: Any, process: int) -> AnySemaphore:
        limit = self.declared(process)
        own: dict[str, Any] = {"slots": range(limit)} if self.slotted else {"limit": limit}
        if self.keyed:
            own |= {"key_limit": self.key_limit, "share": "+share" in self.mode}
        kind = Semaphore if self.mode.startswith("zset") else FairSemaphore
        return kind(
            client,
            self.name,
            **own,
            lease=self.lease,
            prefix=PREFIX,
            clock=self.clock,
        )


def places(plan: Plan) -> list[Place]:
    """The semaphores, the busiest first: half of them without a line, a quarter with keys.

    A third of them has slots.
    """
    dice = random.Random(plan.seed)
    known = [
        Place(
            name=f"place-{number}",
            mode=_MODES[number % len(_MODES)],
            limit=dice.choice((1, 1, 2, 3, 5, HIGHEST_LIMIT - 1)),
            lease=dice.choice((0.5, 1.0, 2.0, LONGEST_LEASE)),
            weighted=dice.random() < 0.3,
            mixed=dice.random() < 0.1,
            mutable=dice.random() < (0.5 if "+" in _MODES[number % len(_MODES)] else 0.1),
            clock="local" if dice.random() < 0.05 else "server",
            key_limit=dice.choice((1, 1, 2, 3)),
        )
        for number in range(plan.names)
    ]
    return [
        replace(place, mode=with_slots(place.mode)) if number % 3 == 2 else place
        for number, place in enumerate(known)
    ]
