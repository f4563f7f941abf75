"""What the judge of a simulation notes: who is in line, and orders."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from .world import Process


class InLine(NamedTuple):
    """A request in line, and until when its process counts as alive."""

    since: float
    alive_until: int


@dataclass(eq=False)
class Order:
    """A `set_limit` or a `clear`: it takes effect once, while it is asked for.

    One that was given up may still come late, until its process was answered another.
    """

    by: Process
    limit: int | None
    clears: bool
    asked: float
    given_up: float = math.inf
    hubs: frozenset[str] = frozenset()  # that its process was known by when it was given up
    ended: float = math.inf  # from when on it must have no effect
    done: bool = False


class Around(NamedTuple):
    """What went on around a call.

    Attributes:
        notified: hubs that a message went to, as the server believes.
        reached: hubs that a message is sure to reach.
        late: its link was closed before.
    """

    notified: frozenset[str]
    reached: frozenset[str]
    late: bool
