"""The report as Markdown, the data as JSON, and the facts that figures depend on."""

import json
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks._bench import Table
from benchmarks._libraries import LIBRARIES
from benchmarks._servers import Server

ACQUIRE = ("acquire p50, ms", "p99", "p99.9")
INTRODUCTION = (
    "Written by `python -m benchmarks`: medians of all rounds, with their range in brackets. All"
    " rows of a table took turns on one server, in one run; figures of different runs or machines"
    " are not comparable."
)


def as_markdown(facts: Mapping[str, str], tables: Iterable[Table]) -> str:
    """The whole report."""
    parts = ["# Measurements", INTRODUCTION, grid(("", ""), facts.items())]
    return "\n\n".join([*parts, *map(table_as_markdown, tables)]) + "\n"


def table_as_markdown(table: Table) -> str:
    """One case: title, method and table. The columns start with the times of acquiring."""
    columns = list(dict.fromkeys(column for row in table.rows for column in row.figures))
    headings = ["", *ACQUIRE, *columns]
    lines = [
        [
            row.subject,
            *([number(1000 * time) for time in row.acquire] if row.acquire else "–––"),
            *(_with_range(row.figures.get(column, ())) for column in columns),
        ]
        for row in table.rows
    ]
    lines += [[what, why, *[""] * (len(headings) - 2)] for what, why in table.absent.items()]
    title = f"## {table.case}: {table.title} ({table.loop})"
    return "\n\n".join([title, table.how, grid(headings, lines)])


def lines_of(table: Table) -> list[str]:
    """One case for a terminal: its medians, one line per subject."""
    lines = [f"{table.case}: {table.title} ({table.loop})"]
    for row in table.rows:
        medians = {column: statistics.median(values) for column, values in row.figures.items()}
        facts = [f"{column} {number(median)}" for column, median in medians.items()]
        if row.acquire:
            facts.insert(0, f"acquire {' / '.join(number(1000 * t) for t in row.acquire)} ms")
        lines.append(f"  {row.subject}: {', '.join(facts)}")
    return lines + [f"  {what}: {why}" for what, why in table.absent.items()]


def _with_range(values: Sequence[float]) -> str:
    if not values:
        return ""
    median = number(statistics.median(values))
    spread = f" ({number(min(values))}–{number(max(values))})"
    return median + spread * (len(values) > 1)


def number(value: float) -> str:
    """*value* with three digits, or as a whole number from 100 on."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")


def grid(headings: Sequence[str], lines: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    rows = [headings, ["---"] * len(headings), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def as_json(facts: Mapping[str, str], tables: Iterable[Table]) -> str:
    """All figures of all rounds."""
    whole = {"facts": facts, "cases": [asdict(table) for table in tables]}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def facts_about(server: Server) -> dict[str, str]:
    """Facts that the figures depend on."""
    peers = [library.label for library in LIBRARIES.values() if library.module]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load": f"{os.getloadavg()[1]:.1f} processes on average in the 5 minutes before",
        "effort": "quick: rough figures" if "--quick" in sys.argv else "full",
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "server": server.what,
        "machine": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "CPU": f"{_cpu()}, {os.cpu_count()} cores",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": _versions(("redsem-async", "redis", "hiredis", "uvloop")),
        "peers": _versions(peers),
    }


def _versions(packages: Iterable[str]) -> str:
    return ", ".join(f"{package} {_version(package)}" for package in packages)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "from the checkout" if package == "redsem-async" else "not installed"


def _cpu() -> str:
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")
