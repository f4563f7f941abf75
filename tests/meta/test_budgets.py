"""Each folder keeps to its lines, and an acquire to its calls: what is never counted grows.

``pytest -rP`` shows the figures. `.config/budgets.toml` has the budgets.
"""

import asyncio
import statistics
import sys
import tomllib
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from redis.asyncio import Redis

import redsem_async
from redsem_async import FairSemaphore, Permit
from tests.harness.wait import soon, until

ROOT = Path(__file__).parents[2]
PACKAGE = Path(redsem_async.__file__).parent
BUDGETS = tomllib.loads((ROOT / ".config" / "budgets.toml").read_text(encoding="utf-8"))
ROUNDS = 20


@pytest.mark.parametrize("folder", BUDGETS["lines"])
def test_a_folder_keeps_to_its_lines(folder: str) -> None:
    """Lines of Python and Lua, in *folder* and below. Those of the package are the installed."""
    place, _, rest = folder.partition("/")
    path = (PACKAGE if place == "redsem_async" else ROOT / place) / rest
    files = path.glob("*.py") if path == PACKAGE else path.rglob("*")
    read = (file.read_bytes() for file in files if file.suffix in (".py", ".lua"))
    found, budget = sum(len(text.splitlines()) for text in read), BUDGETS["lines"][folder]
    print(f"{folder}: {found} of {budget} lines")
    assert found <= budget
    assert found * 1.1 > budget, "the budget is loose: lower it to what was reached, plus 2 %"


def test_every_folder_of_the_package_has_a_budget() -> None:
    found = {f"redsem_async/{each.parent.name}" for each in PACKAGE.glob("*/__init__.py")}
    assert found <= BUDGETS["lines"].keys()


async def keeps_to_its_calls(
    what: str, work: Callable[[], Awaitable[object]], prepare: Callable[[], Awaitable[object]]
) -> None:
    """Count calls of the package's functions in a round of *work*, and the files that have them.

    What *prepare* calls before each round does not count, nor what comes in few rounds.
    """
    rounds: list[list[str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            rounds[-1].append(frame.f_code.co_filename)

    for _ in range(ROUNDS):
        await prepare()
        rounds.append([])
        sys.setprofile(note)
        try:
            await work()
        finally:
            sys.setprofile(None)
    calls = statistics.median(map(len, rounds))
    often = Counter(file for each in rounds for file in set(each))
    files = sum(count > ROUNDS / 2 for count in often.values())
    print(f"{what}: {calls:.0f} calls in {files} files")
    budget = BUDGETS["calls"][what]
    assert calls <= budget["calls"]
    assert files <= budget["files"]


async def test_a_free_pair_keeps_to_its_calls(redis: Redis, name: str) -> None:
    semaphore = FairSemaphore(redis, name, 1)

    async def pair() -> None:
        async with semaphore:
            pass

    await pair()
    await keeps_to_its_calls("a free pair", pair, lambda: asyncio.sleep(0.01))


async def test_a_hand_over_keeps_to_its_calls(redis: Redis, other_redis: Redis, name: str) -> None:
    """From the release in one process to the block in another: the calls of both."""
    one, other = (FairSemaphore(client, name, 1) for client in (redis, other_redis))
    permits, waiters = [await one.acquire()], list[asyncio.Task[Permit]]()

    async def queue_up() -> None:
        waiters.append(asyncio.create_task(other.acquire()))
        waits = other._bound().waiting
        await until(lambda: bool(waits), "it waits")

    async def hand_over() -> None:
        nonlocal one, other
        await permits.pop().release()
        permits.append(await soon(waiters.pop()))
        one, other = other, one

    await queue_up()
    await hand_over()
    await keeps_to_its_calls("a hand-over", hand_over, queue_up)
    await permits.pop().release()
