"""A case in which several take turns."""

import secrets
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Self

from benchmarks._gauge import Leaked
from benchmarks._measure import Burst, Load, Turn, burst, in_turn
from benchmarks._results import Absent
from benchmarks._setup import Setup
from benchmarks.contenders import Contender, Library, Terms

NOT_INSTALLED = "not measured: not installed"


def name_for(case: str) -> str:
    """A semaphore's name that nothing else uses."""
    return f"bench-{case}-{secrets.token_hex(4)}".lower()


@asynccontextmanager
async def opened(library: Library, terms: Terms) -> AsyncGenerator[Contender]:
    """A semaphore for the length of a block; raises `Leaked` if a permit is held at its end."""
    async with library.open(terms) as contender:
        try:
            yield contender
            if held := await contender.held():
                raise Leaked(held)
        finally:
            await contender.clear()


def failure_of(who: str, error: Exception) -> Absent:
    """Somebody who is not measured, for it did not do what it is measured for."""
    return Absent(who, f"failed: {type(error).__name__}: {error}")


@contextmanager
def attempt(library: Library, absent: list[Absent]) -> Generator[bool]:
    """Measure a library in a block, if it is installed.

    What a peer does wrong is added to *absent*; what we do wrong is raised.
    """
    if not library.installed:
        absent.append(Absent(library.label, NOT_INSTALLED))
    try:
        yield library.installed
    except Exception as error:
        if library.ours:
            raise
        absent.append(failure_of(library.label, _first(error)))


class Contest:
    """Several that take turns, on one server. At the end of its block all is closed.

    Attributes:
        bursts: of each, its rounds.
        absent: who is not among them, and why.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._turns: dict[str, Turn] = {}
        self._peers: set[str] = set()
        self._closing: dict[str, AsyncExitStack] = {}
        self.bursts: dict[str, list[Burst]] = {}
        self.absent: list[Absent] = []

    def add(self, who: str, turn: Turn) -> None:
        """Somebody, or a floor, to whom we are compared."""
        self._turns[who] = turn

    async def enter(self, library: Library, terms: Terms) -> Contender | None:
        """A semaphore of *library*, open until this is closed; ``None`` if that cannot be."""
        who = library.label
        if not library.ours:
            self._peers.add(who)
        if not library.installed:
            self.absent.append(Absent(who, NOT_INSTALLED))
            return None
        stack = self._closing[who] = AsyncExitStack()
        try:
            return await stack.enter_async_context(opened(library, terms))
        except Exception as error:  # noqa: BLE001 - a peer's, of whatever kind
            self._failed(who, error)
            return None

    async def enter_all(self, libraries: Iterable[Library], load: Load) -> None:
        """Those of *libraries* that are installed, each under *load* in its turns."""
        for library in libraries:
            name = name_for("contest")
            terms = Terms(url=self._setup.url, name=name, limit=load.limit, tasks=load.tasks)
            contender = await self.enter(library, terms)
            if contender is not None:
                turn = partial(burst, contender, load, self._setup.effort.burst)
                self.add(library.label, turn)

    async def run(self) -> None:
        """Let all take their turns, and look for leaks.

        A peer that fails is left out, and it is said how. What we do wrong ends the run, and so
        does a floor that fails.
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
            who, stack = self._closing.popitem()
            try:
                await stack.aclose()
            except Exception as error:  # noqa: BLE001 - a peer's, of whatever kind
                failures[who] = error
        for who, failure in failures.items():
            self.bursts.pop(who, None)
            self._failed(who, failure)

    def _failed(self, who: str, error: Exception) -> None:
        error = _first(error)
        if who not in self._peers:
            raise error
        if who not in {absent.who for absent in self.absent}:
            self.absent.append(failure_of(who, error))


def _first(error: Exception) -> Exception:
    """Tasks fail together when their cause is one; the first tells it."""
    match error:
        case ExceptionGroup(exceptions=[first, *_]):
            return _first(first)
        case _:
            return error
