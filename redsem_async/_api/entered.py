"""The permits that ``async with semaphore`` has entered."""

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from .permit import Permit


class EnteredPermits:
    """By the task that entered; the exit may come in another task."""

    def __init__(self) -> None:
        self._by_task: WeakKeyDictionary[asyncio.Task[Any], list[Permit]] = WeakKeyDictionary()

    def add(self, permit: Permit) -> None:
        """The current task has entered a block under *permit*."""
        task = asyncio.current_task()
        assert task is not None
        entered = self._by_task
        entered[task] = [*entered.get(task, ()), permit]

    def pop(self) -> Permit | None:
        """The permit of the block that is left: this task's latest, or one of a task that ended.

        None where no block was entered in this loop.
        """
        task, entered = asyncio.current_task(), self._by_task
        permits = entered.pop(task, None) if task is not None else None
        if permits is None:
            loop = asyncio.get_running_loop()
            known = [ref() for ref in entered.keyrefs()]  # at once: other threads may add theirs
            here = [other for other in known if other is not None and other.get_loop() is loop]
            ended = [other for other in here if other.done()] or here
            if not ended:
                return None
            task = ended[-1]
            permits = entered.pop(task)
        permit = permits.pop()
        if permits:
            assert task is not None
            entered[task] = permits
        return permit
