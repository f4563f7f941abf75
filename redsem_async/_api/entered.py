"""Which permit an ``async with semaphore`` releases when it is left.

``async with`` looks up ``__aexit__`` and then calls ``__aenter__``, with nothing in between. So
every statement gets an exit of its own, and its block knows its permit in whatever task it is
left, as that of a generator may be.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary, ref

from .permit import Permit

Leave = TypeVar("Leave", bound=Callable[..., Any])


class EnteredBlock:
    """One ``async with semaphore``, whose exit the task *looked_up_by* has looked up.

    The statement keeps its exit alive, and with it the block. Code that only checks whether there
    is an exit does not.

    Attributes:
        permit: with which it was entered, until it is left.
    """

    looked_up_by: "asyncio.Task[Any] | None" = None
    permit: Permit | None = None


class EnteredPermits:
    """The permits of one semaphore's blocks, and the block that was *looked_up* last.

    Blocks that are not entered by the statement, but by an exit stack or by calls of
    ``__aenter__``, are known by their tasks.
    """

    def __init__(self) -> None:
        self._by_task: WeakKeyDictionary[asyncio.Task[Any], list[Permit]] = WeakKeyDictionary()
        self.looked_up: ref[EnteredBlock] | None = None

    def take(self) -> EnteredBlock | None:
        """The block that the current task enters. None if it has looked up none."""
        block = None if self.looked_up is None else self.looked_up()
        if block is None or block.looked_up_by is not asyncio.current_task():
            return None
        self.looked_up = block.looked_up_by = None
        return block

    def add(self, permit: Permit, block: EnteredBlock | None) -> None:
        """The current task has entered *block* under *permit*."""
        if block is not None:
            block.permit = permit
        else:
            task = asyncio.current_task()
            assert task is not None
            self._by_task[task] = [*self._by_task.get(task, ()), permit]

    def pop(self, block: EnteredBlock | None) -> Permit:
        """The permit of the *block* that is left.

        If that is not known, it is the current task's latest, or in a task that entered none
        the only one of this loop.

        Raises:
            RuntimeError: it is not known which block is meant. Nothing is changed.
        """
        if block is not None:
            permit, block.permit = block.permit, None
            if permit is not None:
                return permit
            block.looked_up_by = None  # looked up only to be called
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


def exit_of_block(leave: Leave) -> Leave:
    """Decorate ``__aexit__``, so that every ``async with`` has one of its own."""
    return cast("Leave", _ExitOfBlock(leave))


class _ExitOfBlock:
    def __init__(self, leave: Callable[..., Any]) -> None:
        self._leave = leave

    def __get__(self, semaphore: Any, owner: type) -> Callable[..., Any]:
        if semaphore is None:  # as an exit stack looks it up
            return self._leave
        block = EnteredBlock()
        try:
            block.looked_up_by = asyncio.current_task()
        except RuntimeError:  # no loop runs, so nothing is entered
            block.looked_up_by = None
        semaphore._entered.looked_up = ref(block)  # noqa: SLF001 - a part of its class
        return partial(self._leave, semaphore, block=block)
