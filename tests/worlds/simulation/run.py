"""Running a seed: the package's clock, randomness and ids are the world's meanwhile."""

import asyncio
import gc
import itertools
import logging
import random
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager

from redsem_async._core import clock, keys
from redsem_async._hub import introduction

from .schedule import Outcome, Schedule
from .world import Violation, World

COLLECT = 25  # schedules between two collections of garbage

_count = itertools.count(1)


class _Secrets:
    """Ids that come from the seed."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def token_hex(self, count: int) -> str:
        return f"{self._source.getrandbits(8 * count):0{2 * count}x}"


@contextmanager
def virtual(world: World) -> Generator[None]:
    """Put the world's clock, randomness and ids in the place of the real ones."""
    chance = random.Random(world.seed + 1)
    replaced: list[tuple[object, str, object]] = [
        (introduction, "describe", _nobody),
        (keys, "secrets", _Secrets(random.Random(world.seed + 2))),
    ]
    for name, module in list(sys.modules.items()):
        if name.startswith("redsem_async"):
            for key, value in list(vars(module).items()):
                if value is clock.now:
                    replaced.append((module, key, _now))
                elif value is random:
                    replaced.append((module, key, chance))
    saved = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    logger = logging.getLogger("redsem_async")
    level = logger.level
    for owner, name, stand_in in replaced:
        setattr(owner, name, stand_in)
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # permits are dropped on purpose
            yield
    finally:
        for owner, name, original in saved:
            setattr(owner, name, original)
        logger.setLevel(level)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _nobody(**facts: object) -> str:
    return "a simulated process"


def simulate(seed: int, *, traced: bool = False) -> Outcome:
    """Run the schedule of *seed*: the same each time."""
    collecting = gc.isenabled()
    gc.disable()  # what is collected when would depend on what ran before
    if next(_count) % COLLECT == 0:
        gc.collect()
    try:
        schedule = Schedule(seed, traced=traced)
        with virtual(schedule.world):
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
