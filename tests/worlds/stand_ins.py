"""The package's clock, chance and ids, in the hands of a world."""

import gc
import logging
import random
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager

from redsem_async._core import clock, keys
from redsem_async._hub import introduction


class Even:
    """Chance that is always the same, so that a process has no input but what comes to it."""

    @staticmethod
    def random() -> float:
        return 0.5


def _nobody(**_: object) -> str:
    return "a process of a world"


@contextmanager
def in_place(now: Callable[[], float], chance: object, ids: object) -> Generator[None]:
    """Put *now*, *chance* and *ids* in the place of the clock, of `random` and of `secrets`."""
    replaced: list[tuple[object, str, object]] = [
        (introduction, "describe", _nobody),
        (keys, "secrets", ids),
    ]
    for name, module in list(sys.modules.items()):
        if name.startswith("redsem_async"):
            for key, value in list(vars(module).items()):
                if value is clock.now:
                    replaced.append((module, key, now))
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


@contextmanager
def uncollected() -> Generator[None]:
    """Leave garbage alone: what is collected when would depend on what ran before."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
