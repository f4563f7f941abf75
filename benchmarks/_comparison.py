"""Compares several libraries and baselines: they take turns on one server."""

import secrets
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Self

from benchmarks._limit_check import Leaked
from benchmarks._measure import Burst, Load, Turn, burst, in_turn
from benchmarks._results import Absent
from benchmarks._setup import Setup
from benchmarks.libraries import Library, OpenSemaphore, Options

NOT_INSTALLED = "not measured: not installed"


def name_for(case: str) -> str:
    """A unique name for a semaphore."""
    return f"bench-{case}-{secrets.token_hex(4)}".lower()


@asynccontextmanager
async def opened(library: Library, options: Options) -> AsyncGenerator[OpenSemaphore]:
    """Open a semaphore for a block; raises `Leaked` if a permit is still held at its end."""
    async with library.open(options) as semaphore:
        try:
            yield semaphore
            if held := await semaphore.held():
                raise Leaked(held)
        finally:
            await semaphore.clear()


def failure_of(label: str, error: Exception) -> Absent:
    """The entry for a library that failed."""
    return Absent(label, f"failed: {type(error).__name__}: {error}")


@contextmanager
def attempt(library: Library, absent: list[Absent]) -> Generator[bool]:
    """Measure a library in a block, if it is installed.

    The failure of a peer is added to *absent*; a failure of this library is raised.
    """
    if not library.installed:
        absent.append(Absent(library.label, NOT_INSTALLED))
    try:
        yield library.installed
    except Exception as error:
        if library.ours:
            raise
        absent.append(failure_of(library.label, _first(error)))


class Comparison:
    """Libraries and baselines that take turns on one server. Closes them after its block.

    Attributes:
        bursts: the measured rounds of each.
        absent: those that were not measured, with the reason.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._turns: dict[str, Turn] = {}
        self._peers: set[str] = set()
        self._closing: dict[str, AsyncExitStack] = {}
        self.bursts: dict[str, list[Burst]] = {}
        self.absent: list[Absent] = []

    def add(self, label: str, turn: Turn) -> None:
        """Add a library or a baseline."""
        self._turns[label] = turn

    async def enter(self, library: Library, options: Options) -> OpenSemaphore | None:
        """Open a semaphore of *library*; ``None`` if the library is absent or fails."""
        label = library.label
        if not library.ours:
            self._peers.add(label)
        if not library.installed:
            self.absent.append(Absent(label, NOT_INSTALLED))
            return None
        stack = self._closing[label] = AsyncExitStack()
        try:
            return await stack.enter_async_context(opened(library, options))
        except Exception as error:  # noqa: BLE001 - a peer's, of whatever kind
            self._failed(label, error)
            return None

    async def enter_all(self, libraries: Iterable[Library], load: Load) -> None:
        """Add those of *libraries* that are installed, to be measured under *load*."""
        for library in libraries:
            name = name_for("comparison")
            options = Options(url=self._setup.url, name=name, limit=load.limit, tasks=load.tasks)
            semaphore = await self.enter(library, options)
            if semaphore is not None:
                turn = partial(burst, semaphore, load, self._setup.effort.burst)
                self.add(library.label, turn)

    async def run(self) -> None:
        """Measure all in turns, and check for leaked permits.

        A failing peer is moved to `absent`. A failure of this library or of a baseline is raised.
        """
        self.bursts = await in_turn(self._turns, self._setup.effort, self._failed)
        await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        failures: dict[str, Exception] = {}
        while self._closing:
            label, stack = self._closing.popitem()
            try:
                await stack.aclose()
            except Exception as error:  # noqa: BLE001 - a peer's, of whatever kind
                failures[label] = error
        for label, failure in failures.items():
            self.bursts.pop(label, None)
            self._failed(label, failure)

    def _failed(self, label: str, error: Exception) -> None:
        error = _first(error)
        if label not in self._peers:
            raise error
        if label not in {absent.label for absent in self.absent}:
            self.absent.append(failure_of(label, error))


def _first(error: Exception) -> Exception:
    """The first error of a group: tasks with a common cause fail together."""
    match error:
        case ExceptionGroup(exceptions=[first, *_]):
            return _first(first)
        case _:
            return error
