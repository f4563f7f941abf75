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

    def pop(self) -> Permit:
        """The permit of the block that is left.

        It is the current task's latest, or in a task that entered none the only one of this loop.

        Raises:
            RuntimeError: it is not known which block is meant. Nothing is changed.
        """
        entered, task = self._by_task, asyncio.current_task()
        if task is None or task not in entered:
            task = self._only_task()
        *others, permit = entered.pop(task)
        if others:
            entered[task] = others
        return permit

    def _only_task(self) -> "asyncio.Task[Any]":
        loop = asyncio.get_running_loop()
        known = [ref() for ref in self._by_task.keyrefs()]  # at once: other threads may add theirs
        here = [task for task in known if task is not None and task.get_loop() is loop]
        blocks = sum(len(self._by_task[task]) for task in here)
        if blocks == 1:
            return here[0]
        raise RuntimeError(
            f"this task has not entered the block that it leaves, and {blocks} blocks are open in"
            " other tasks: use 'async with sem.acquire()', which knows its permit in any task"
        )
