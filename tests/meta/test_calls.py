"""What an acquire costs in Python: calls, files, and callables that are handed down.

``pytest -rP`` shows the figures.
"""

import ast
import asyncio
import statistics
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import redsem_async
from redsem_async import FairSemaphore, Permit
from tests.harness.clients import Connect
from tests.harness.source import tree_of
from tests.harness.wait import all_free, soon, until
from tests.meta.budgets import BUDGETS

PACKAGE = Path(redsem_async.__file__).parent
PRIVATE = ("_core", "_protocol", "_redis", "_hub", "_observers")
ROUNDS = 20

CALLABLES = 3


async def nothing() -> None:
    """There is nothing to prepare."""


async def counted(
    work: Callable[[], Awaitable[object]],
    prepare: Callable[[], Awaitable[object]] = nothing,
) -> tuple[float, int]:
    """Calls of this package's functions in a round of *work*, and in how many files they are.

    What *prepare* calls before each round does not count, and neither does what comes in few
    rounds, such as a timer that falls into one.
    """
    calls: list[str] = []
    rounds: list[int] = []
    files = Counter[str]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(PACKAGE)):
            calls.append(path)

    await prepare()
    await work()
    await asyncio.sleep(0.05)
    for _ in range(ROUNDS):
        await prepare()
        sys.setprofile(note)
        try:
            await work()
        finally:
            sys.setprofile(None)
        rounds.append(len(calls))
        files.update(set(calls))
        calls.clear()
    return statistics.median(rounds), sum(count > ROUNDS / 2 for count in files.values())


def keeps_to_its_budget(what: str, found: tuple[float, int]) -> None:
    print(f"{what}: {found[0]:.0f} calls in {found[1]} files")
    budget = BUDGETS["calls"][what]
    assert found[0] <= budget["calls"]
    assert found[1] <= budget["files"]


async def test_a_free_pair(connect: Connect, server_url: str, name: str) -> None:
    semaphore = FairSemaphore(connect(server_url), name, 1)

    async def pair() -> None:
        async with semaphore:
            pass

    await pair()
    keeps_to_its_budget("a free pair", await counted(pair))
    await all_free(semaphore)


async def test_a_hand_over(connect: Connect, server_url: str, name: str) -> None:
    """From the release in one process to the block in another: the calls of both."""
    one, other = (FairSemaphore(connect(server_url), name, 1) for _ in range(2))
    permits = [await one.acquire()]
    waiters: list[asyncio.Task[Permit]] = []

    async def queue_up() -> None:
        waiters.append(asyncio.create_task(other.acquire()))
        waits = other._bound().remote.waiting
        await until(lambda: bool(waits), "it waits")

    async def hand_over() -> None:
        nonlocal one, other
        await permits.pop().release()
        permits.append(await soon(waiters.pop()))
        one, other = other, one

    found = await counted(hand_over, queue_up)
    keeps_to_its_budget("a hand-over", found)
    await permits.pop().release()


def test_callables_that_are_handed_down() -> None:
    """A function that a lower layer is given, in order to call upwards, hides who calls whom."""
    found: list[str] = []
    for path in sorted(path for folder in PRIVATE for path in (PACKAGE / folder).rglob("*.py")):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                found += [
                    f"{path.relative_to(PACKAGE)}: {argument.arg}"
                    for argument in (*node.args.args, *node.args.kwonlyargs)
                    if argument.annotation and "Callable" in ast.unparse(argument.annotation)
                    if argument.arg != "observer"  # a user's function, and not a layer's
                ]
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
                text = ast.unparse(node.annotation)
                set_later = isinstance(node.value, ast.Constant)
                if text.startswith("Callable") and set_later:
                    found.append(f"{path.relative_to(PACKAGE)}: {node.target.attr}")
    print(*found, f"{len(found)} callables", sep="\n")
    assert len(found) <= CALLABLES
