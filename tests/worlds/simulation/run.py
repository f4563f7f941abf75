"""Running a seed: the package's clock, randomness and ids come from it."""

import asyncio
import gc
import itertools
import random

from tests.worlds.stand_ins import in_place
from tests.worlds.world import Violation

from .schedule import Outcome, Schedule

COLLECT = 25  # schedules between two collections of garbage

_count = itertools.count(1)


class _Secrets:
    """Ids that come from the seed."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def token_hex(self, count: int) -> str:
        return f"{self._source.getrandbits(8 * count):0{2 * count}x}"


def _now() -> float:
    return asyncio.get_running_loop().time()


def simulate(seed: int, *, traced: bool = False) -> Outcome:
    """Run the schedule of *seed*: the same each time."""
    collecting = gc.isenabled()
    gc.disable()  # what is collected when would depend on what ran before
    if next(_count) % COLLECT == 0:
        gc.collect()
    try:
        schedule = Schedule(seed, traced=traced)
        chance, ids = random.Random(seed + 1), _Secrets(random.Random(seed + 2))
        with in_place(_now, chance, ids):
            return schedule.run()
    finally:
        if collecting:
            gc.enable()


def explain(outcome: Outcome, last: int = 60) -> Violation:
    """What to raise for a run that broke a promise: how, and how to see it again."""
    again = simulate(outcome.seed, traced=True)
    lines = (again.trace or [])[-last:]
    same = [] if again.violations == outcome.violations else ["(another run differed!)"]
    seed = f"REDSEM_SEED={outcome.seed} repeats it"
    return Violation("\n".join([*outcome.violations, *lines, *same, seed]))
