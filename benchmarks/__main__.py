"""Run the benchmarks: ``python -m benchmarks [CASES…]``; see benchmarks/README.md."""

from dataclasses import replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks._aims import missed
from benchmarks._bench import (
    FULL,
    QUICK,
    Case,
    CorrectnessError,
    Effort,
    LoopName,
    Table,
    allow_many_files,
)
from benchmarks._report import as_json, as_markdown, facts_about, lines_of
from benchmarks._servers import Server, ServerUnavailable, server
from benchmarks._stations import TIMELINE
from benchmarks.cases import CASES
from redsem_async import SemaphoreError

RESULTS = Path(__file__).resolve().parent / "results"  # .gitignore names it
DATA = RESULTS / "results.json"
REPORT = "results.md"

INTERRUPTED = 130  # as shells report a program ended by Ctrl-C

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


class Loops(StrEnum):
    """Event loops to measure on."""

    ASYNCIO = "asyncio"
    UVLOOP = "uvloop"
    BOTH = "both"


@app.command()
def main(
    cases: Annotated[
        list[str] | None, typer.Argument(metavar="[CASES]…", help="Such as P1 P2. Default: all.")
    ] = None,
    *,
    which: Annotated[
        str, typer.Option("--server", help="embedded, container, or a URL.")
    ] = "embedded",
    rounds: Annotated[int | None, typer.Option(min=1, help="Number of rounds.")] = None,
    results: Annotated[
        Path,
        typer.Option(
            file_okay=False, help="Folder for the report; JSON stays in the default folder."
        ),
    ] = RESULTS,
    loop: Annotated[
        Loops, typer.Option(help="Event loop. 'both' affects only the cases that depend on it.")
    ] = Loops.BOTH,
    check: Annotated[
        bool, typer.Option("--check", help="List the aims that were missed; exit with 1 if any.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Rough figures within a few minutes.")
    ] = False,
    stations: Annotated[
        bool, typer.Option("--stations", help="Only the timeline of a hand-off (P4).")
    ] = False,
) -> None:
    """Measure this library, peers and baselines, and write a report.

    Exits with 1 if this library exceeded the limit or leaked a permit.
    """
    chosen = [TIMELINE] if stations else _chosen(cases)
    effort = QUICK if quick else FULL
    effort = replace(effort, rounds=rounds or effort.rounds)
    console = Console(stderr=True, highlight=False)
    allow_many_files()
    try:
        with server(which) as running:
            tables = _measure(_plan(chosen, loop), running, effort, results, console)
    except (ServerUnavailable, SemaphoreError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    except CorrectnessError as error:
        typer.echo(f"FAILED: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    console.print(f"report: {results / REPORT}", soft_wrap=True, markup=False)
    if check:
        lines = missed(tables)
        for line in lines:
            console.print(f"missed: {line}", soft_wrap=True, markup=False)
        raise typer.Exit(bool(lines))


def _chosen(names: list[str] | None) -> list[Case]:
    unknown = [name for name in names or () if name.upper() not in CASES]
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}. Cases: {', '.join(CASES)}")
    return [CASES[name.upper()] for name in names or CASES]


def _plan(cases: list[Case], wanted: Loops) -> list[tuple[Case, LoopName]]:
    """The loop of each case, or both if it depends on the loop and uvloop is installed."""
    loops: list[LoopName] = ["uvloop" if wanted is Loops.UVLOOP else "asyncio"]
    if wanted is Loops.BOTH and find_spec("uvloop"):
        loops.append("uvloop")
    return [(case, loop) for case in cases for loop in (loops if case.both_loops else loops[:1])]


def _measure(
    planned: list[tuple[Case, LoopName]],
    running: Server,
    effort: Effort,
    results: Path,
    console: Console,
) -> list[Table]:
    """Measure case by case, and write report and JSON after each: a failure loses nothing."""
    facts = facts_about(running)
    tables: list[Table] = []
    for folder in (results, DATA.parent):
        folder.mkdir(parents=True, exist_ok=True)
    console.print(f"server: {running.what}", markup=False)
    columns = (
        *(TextColumn("{task.fields[case]:>4}"), BarColumn(), MofNCompleteColumn()),
        *(TimeElapsedColumn(), TextColumn("{task.description}")),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=len(planned), case="")
        for case, loop in planned:

            def show(what: str, case: Case = case, loop: LoopName = loop) -> None:
                text = f"{case.title}: {what} ({loop})"
                progress.update(bar, case=case.name, description=text)

            tables.append(case.run(running.url, loop, effort, show))
            DATA.write_text(as_json(facts, tables), encoding="utf-8")
            (results / REPORT).write_text(as_markdown(facts, tables), encoding="utf-8")
            progress.advance(bar)
            progress.console.print("\n".join(lines_of(tables[-1])), soft_wrap=True, markup=False)
    return tables


if __name__ == "__main__":
    app()
