"""What a case is, what it is given, and the table that it fills."""

import asyncio
import contextlib
import statistics
import sys
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks._libraries import Library

LoopName = Literal["asyncio", "uvloop"]
NOT_INSTALLED = "not measured: not installed"
FILES = 16_384  # a connection is a file


class CorrectnessError(Exception):
    """A library did not behave as a semaphore."""


class LimitExceeded(CorrectnessError):
    def __init__(self, inside: int, limit: int) -> None:
        super().__init__(f"{inside} permits were in use at once, limit {limit}")


class Leaked(CorrectnessError):
    def __init__(self, held: int, expected: int = 0) -> None:
        super().__init__(f"{held} permits are held, expected {expected}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Durations in seconds, and sizes.

    Attributes:
        warm_ups: rounds before the measured ones: they open connections, load scripts and give a
            just-in-time compiler time.
        rounds: number of measured rounds.
        burst: duration of a turn.
        window: duration of a measurement of idle processes.
        handoffs: hand-offs per turn.
        tasks: numbers of tasks in one process.
        bulk: number of holders, or waiters, in cases with many.
        peer_bulk: the same for other libraries, because each of theirs needs a connection.
        settle: time to wait until all holders or waiters of a bulk are in place.
    """

    warm_ups: int = 2
    rounds: int = 7
    burst: float = 0.4
    window: float = 20.0
    handoffs: int = 100
    tasks: tuple[int, ...] = (50, 200, 1000)
    bulk: int = 10_000
    peer_bulk: int = 1_000
    settle: float = 3.0

    def bulk_of(self, library: Library) -> int:
        """The bulk for that library: small for polling ones, because they load the server."""
        if library.ours:
            return self.bulk
        return self.peer_bulk // 10 if library.polls else self.peer_bulk


FULL = Effort()
QUICK = Effort(rounds=3, burst=0.15, window=10.0, handoffs=25, peer_bulk=200)


@dataclass(frozen=True, slots=True)
class Row:
    """One library or baseline in one setting.

    Attributes:
        label: its name.
        setting: the setting, if the table has several.
        acquire: p50, p99 and p99.9 of acquiring in seconds, if it was measured.
        figures: all other figures by column, one value for each round.
    """

    label: str
    setting: str
    acquire: tuple[float, float, float] | None
    figures: dict[str, tuple[float, ...]]

    @property
    def subject(self) -> str:
        return f"{self.label}, {self.setting}" if self.setting else self.label


@dataclass(slots=True, kw_only=True)
class Table:
    """The result of a case.

    Attributes:
        case: name of the case, such as ``P1``.
        title: title of the case.
        how: description of the method.
        loop: event loop.
        rows: measured libraries and baselines.
        absent: why others were not measured, by subject.
    """

    case: str
    title: str
    how: str
    loop: str
    rows: list[Row] = field(default_factory=list[Row])
    absent: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a case is given.

    Attributes:
        url: URL of the server.
        loop: event loop of all processes of the case.
        effort: durations and sizes.
        progress: displays what is being measured.
        table: the table to fill.
    """

    url: str
    loop: LoopName
    effort: Effort
    progress: Callable[[str], None]
    table: Table

    def row(
        self,
        label: str,
        setting: str = "",
        *,
        waits: Sequence[float] = (),
        figures: Mapping[str, Sequence[float]],
    ) -> None:
        """Add a row; *waits* are the seconds of all acquires."""
        values = {column: tuple(of_one) for column, of_one in figures.items()}
        self.table.rows.append(Row(label, setting, percentiles(waits), values))

    def installed(self, libraries: Iterable[Library]) -> Generator[Library]:
        """Those of *libraries* that are installed; the others are noted as absent."""
        for library in libraries:
            if library.installed:
                yield library
            else:
                self.table.absent[library.label] = NOT_INSTALLED

    @contextmanager
    def may_fail(self, subject: str, *, peer: bool) -> Generator[None]:
        """Note the failure of a *peer* in a block as its absence; raise any other."""
        try:
            yield
        except Exception as error:
            first = _first(error)
            if not peer:
                raise first from error
            why = f"failed: {type(first).__name__}: {first}"
            self.table.absent.setdefault(subject, why)


def _first(error: Exception) -> Exception:
    """The first error of a group: tasks with a common cause fail together."""
    match error:
        case ExceptionGroup(exceptions=[first, *_]):
            return _first(first)
        case _:
            return error


def percentiles(waits: Sequence[float]) -> tuple[float, float, float] | None:
    """Median, 99th and 99.9th percentile; ``None`` if there are no waits."""
    if not waits:
        return None
    cuts = statistics.quantiles([*waits, *waits[: len(waits) == 1]], n=1000, method="inclusive")
    return cuts[499], cuts[989], cuts[998]


@dataclass(frozen=True, slots=True)
class Case:
    """One benchmark.

    Attributes:
        name: name such as ``P1``.
        title: title for reports.
        how: description of the method for reports.
        measure: runs the benchmark.
        both_loops: whether to measure on both event loops.
    """

    name: str
    title: str
    how: str
    measure: Callable[[Bench], Coroutine[Any, Any, None]]
    both_loops: bool = False

    def run(
        self, url: str, loop: LoopName, effort: Effort, progress: Callable[[str], None]
    ) -> Table:
        """Measure on that loop. Raises failures of this library."""
        table = Table(case=self.name, title=self.title, how=self.how, loop=loop)
        bench = Bench(url=url, loop=loop, effort=effort, progress=progress, table=table)
        with runner_of(loop) as runner:
            runner.run(self.measure(bench))
        return table


def runner_of(loop: LoopName) -> asyncio.Runner:
    """A runner of that event loop; raises ``ModuleNotFoundError`` if it is not installed."""
    if loop == "asyncio":
        return asyncio.Runner()
    import uvloop

    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def allow_many_files() -> None:
    """Raise the soft limit of open files to the hard limit, at most to `FILES`."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
