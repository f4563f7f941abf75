"""Runs a test in simulated time, on a memory backend: exact, and no sleep takes time."""

import random
import secrets
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from tests.worlds.loop import RESOLUTION, SimulatedLoop
from tests.worlds.stand_ins import in_place

Arguments = ParamSpec("Arguments")


class TimedLoop(SimulatedLoop):
    """A loop that goes on to its next timer whenever nothing is ready."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(lambda: self.now)

    def run_to_end(self, main: Coroutine[Any, Any, None]) -> None:
        with in_place(self.time, random.Random(1), secrets):
            task = self.create_task(main)
            while not task.done():
                due = self.next_timer()
                if not self.ready:
                    assert due is not None, "what it waits for never comes"
                    self.now = max(self.now, due + RESOLUTION)
                self.turn()
            self.bury()
        task.result()


def in_simulated_time(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run *main* in an event loop whose sleeps take no time."""
    TimedLoop().run_to_end(main())


def simulated(test: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, None]:
    """Have a test run in simulated time."""

    @wraps(test)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        in_simulated_time(lambda: test(*args, **kwargs))

    return run
