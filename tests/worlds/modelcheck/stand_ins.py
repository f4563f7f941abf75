"""The package's clock, chance and ids while paths are taken."""

import asyncio
import logging
import random
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Self

from redsem_async._core import clock, keys
from redsem_async._hub import introduction

from .process import Loop
from .world import World


def _nobody(**_: object) -> str:
    return "a process"


class _Even:
    """Chance that is always the same, so that a process has no input but what it is told."""

    @staticmethod
    def random() -> float:
        return 0.5


class _Ids:
    """Ids that say whose they are, and depend on nobody else's."""

    @staticmethod
    def token_hex(count: int) -> str:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        return loop.process.new_hub()


class Clock:
    """The package's clock while paths are taken."""

    def __init__(self) -> None:
        self.world: World | None = None

    def __call__(self) -> float:
        assert self.world is not None
        return self.world.now

    @contextmanager
    def in_place(self) -> Generator[Self]:
        """Put clock, chance and ids in the place of the real ones."""
        replaced: list[tuple[object, str, object]] = [
            (introduction, "describe", _nobody),
            (keys, "secrets", _Ids),
        ]
        for name, module in list(sys.modules.items()):
            if name.startswith("redsem_async"):
                for key, value in list(vars(module).items()):
                    if value is clock.now:
                        replaced.append((module, key, self))
                    elif value is random:
                        replaced.append((module, key, _Even))
        saved = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
        logger = logging.getLogger("redsem_async")
        level = logger.level
        for owner, name, stand_in in replaced:
            setattr(owner, name, stand_in)
        logger.setLevel(logging.CRITICAL)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield self
        finally:
            for owner, name, original in saved:
                setattr(owner, name, original)
            logger.setLevel(level)
