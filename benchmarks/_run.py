"""A run: several cases on one server, and facts about the environment."""

import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks._results import Table
from benchmarks._servers import Server
from benchmarks._setup import Effort, LoopName, Setup, has_uvloop, runner_of
from benchmarks.cases import Case
from benchmarks.libraries import LIBRARIES

_PACKAGES = ("redsem-async", "redis", "hiredis", "uvloop")


@dataclass(frozen=True, slots=True)
class Run:
    """The results of a run.

    Attributes:
        facts: machine, server and versions.
        tables: one table per case and event loop.
    """

    facts: dict[str, str]
    tables: list[Table]

    @property
    def missed(self) -> list[str]:
        """The missed aims, one line each."""
        return [
            f"{table.case} ({table.loop}): {row.subject}: {aim};"
            f" it is {row.figure(aim.figure).median:.3g}"
            for table in self.tables
            for row in table.rows
            for aim, met in row.verdicts()
            if not met
        ]


def plan(cases: Sequence[Case], loops: Sequence[LoopName]) -> list[tuple[Case, LoopName]]:
    """The loop, or loops, of each case: all of them only if the case depends on the loop."""
    return [(case, loop) for case in cases for loop in (loops if case.both_loops else loops[:1])]


def tables_of(
    planned: Sequence[tuple[Case, LoopName]],
    server: Server,
    effort: Effort,
    progress: Callable[[Case, str], None],
) -> Iterator[Table]:
    """Measure case by case. Raises failures of this library."""
    for case, loop in planned:

        def say_here(what: str, case: Case = case, loop: LoopName = loop) -> None:
            progress(case, f"{what} ({loop})")

        setup = Setup(url=server.url, loop=loop, effort=effort, progress=say_here)
        with runner_of(loop) as runner:
            yield runner.run(case.measure(setup))


def loops_for(wanted: str) -> list[LoopName]:
    """The loops for ``asyncio``, ``uvloop`` or ``both``; uvloop only if it is installed."""
    both: list[LoopName] = ["asyncio", "uvloop"] if has_uvloop() else ["asyncio"]
    return both if wanted == "both" else ["uvloop" if wanted == "uvloop" else "asyncio"]


def facts_about(server: Server) -> dict[str, str]:
    """Facts that the figures depend on."""
    versions = [(package, _version(package)) for package in _PACKAGES]
    peers = [
        (library.package, _version(library.package))
        for library in LIBRARIES.values()
        if library.package is not None
    ]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load": f"{os.getloadavg()[1]:.1f} processes on average in the 5 minutes before",
        "effort": "quick: rough figures" if "--quick" in sys.argv else "full",
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "server": server.what,
        "machine": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "CPU": f"{_cpu()}, {os.cpu_count()} cores",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": ", ".join(f"{name} {number}" for name, number in versions),
        "peers": ", ".join(f"{name} {number}" for name, number in peers),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        if package == "redsem-async":
            return "from the checkout"
        return "not installed"


def _cpu() -> str:
    about = Path("/proc/cpuinfo")
    if about.exists():
        for line in about.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
