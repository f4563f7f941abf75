"""The report as Markdown, and the data as JSON."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, cast

from benchmarks._results import Figure, Row, Table
from benchmarks._run import Run

_ACQUIRE = ("acquire p50, ms", "p99", "p99.9")
_INTRODUCTION = (
    "Written by `python -m benchmarks`: medians of all rounds, with their range in brackets. All"
    " rows of a table took turns on one server, in one run; figures of different runs or machines"
    " are not comparable."
)


def as_markdown(run: Run) -> str:
    """The whole report."""
    parts = [
        "# Measurements",
        _INTRODUCTION,
        _grid(("", ""), run.facts.items()),
        *(table_as_markdown(table) for table in run.tables),
    ]
    return "\n\n".join(parts) + "\n"


def table_as_markdown(table: Table) -> str:
    """One case: title, method and table. The columns start with the times of acquiring."""
    columns = list(dict.fromkeys(figure.name for row in table.rows for figure in row.figures))
    headings = ["", *_ACQUIRE, *columns]
    lines = [_cells(row, columns) for row in table.rows]
    lines += [[absent.label, absent.why, *[""] * (len(headings) - 2)] for absent in table.absent]
    return "\n\n".join(
        [f"## {table.case}: {table.title} ({table.loop})", table.how, _grid(headings, lines)]
    )


def lines_of(table: Table) -> list[str]:
    """One case for a terminal, one line per subject."""
    lines = [f"{table.case}: {table.title} ({table.loop})"]
    for row in table.rows:
        facts = [f"{figure.name} {number(figure.median)}" for figure in row.figures]
        if row.acquire is not None:
            times = (row.acquire.p50, row.acquire.p99, row.acquire.p999)
            percentiles = " / ".join(number(1000 * seconds) for seconds in times)
            facts.insert(0, f"acquire {percentiles} ms")
        lines.append(f"  {row.subject}: {', '.join(facts)}")
    return lines + [f"  {absent.label}: {absent.why}" for absent in table.absent]


def _cells(row: Row, columns: Sequence[str]) -> list[str]:
    figures = {figure.name: _with_spread(figure) for figure in row.figures}
    cells = [row.subject]
    if row.acquire is None:
        cells += ["–"] * len(_ACQUIRE)
    else:
        times = (row.acquire.p50, row.acquire.p99, row.acquire.p999)
        cells += [number(1000 * seconds) for seconds in times]
    return cells + [figures.get(name, "") for name in columns]


def _with_spread(figure: Figure) -> str:
    if len(figure.values) == 1:
        return number(figure.median)
    return f"{number(figure.median)} ({number(min(figure.values))}–{number(max(figure.values))})"


def number(value: float) -> str:
    """*value* with three digits, or as a whole number from 100 on."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


def _grid(headings: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    heads = list(headings)
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def as_json(run: Run) -> str:
    """All figures of all rounds, and the verdicts."""
    whole = {"facts": run.facts, "cases": [_table_as_dict(table) for table in run.tables]}
    return json.dumps(_rounded(whole), indent=1, ensure_ascii=False) + "\n"


def _rounded(value: Any) -> Any:
    """*value* with all numbers rounded to six digits; the rest is noise."""
    match value:
        case float():
            return float(f"{value:.6g}")
        case dict():
            return {key: _rounded(one) for key, one in cast("dict[str, Any]", value).items()}
        case list() | tuple():
            return [_rounded(one) for one in cast("Sequence[Any]", value)]
        case _:
            return value


def _table_as_dict(table: Table) -> dict[str, Any]:
    return asdict(table) | {"rows": [_row_as_dict(row) for row in table.rows]}


def _row_as_dict(row: Row) -> dict[str, Any]:
    figures = {
        figure.name: {"median": statistics.median(figure.values), "rounds": figure.values}
        for figure in row.figures
    }
    aims = [asdict(aim) | {"met": met} for aim, met in row.verdicts()]
    return asdict(row) | {"figures": figures, "aims": aims}
