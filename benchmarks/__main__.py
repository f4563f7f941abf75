"""Run the benchmarks: ``python -m benchmarks [CASES…]``; see docs/dev/benchmarks.md."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks._files import allow_many_files
from benchmarks._limit_check import CorrectnessError
from benchmarks._report import as_json, as_markdown, lines_of
from benchmarks._run import Run, facts_about, loops_for, plan, tables_of
from benchmarks._servers import Server, ServerUnavailable, server
from benchmarks._setup import Effort
from benchmarks._stations import measure as timeline
from benchmarks.cases import CASES, Case
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
            file_okay=False,
            help="Folder for the report; JSON stays in the default folder.",
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
    chosen = [Case("P4", "Timeline of a hand-off", timeline)] if stations else _chosen(cases)
    effort = (Effort.quick() if quick else Effort()).with_rounds(rounds)
    console = Console(stderr=True, highlight=False)
    allow_many_files()
    try:
        with server(which) as running:
            run = _measure(chosen, running, effort, loop, results, console)
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
        for line in run.missed:
            console.print(f"missed: {line}", soft_wrap=True, markup=False)
        raise typer.Exit(bool(run.missed))


def _chosen(names: list[str] | None) -> list[Case]:
    unknown = [name for name in names or () if name.upper() not in CASES]
    if unknown:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}. Cases: {', '.join(CASES)}")
    return [CASES[name.upper()] for name in names or CASES]


def _measure(
    cases: list[Case],
    running: Server,
    effort: Effort,
    loop: Loops,
    results: Path,
    console: Console,
) -> Run:
    run = Run(facts_about(running), [])
    planned = plan(cases, loops_for(loop))
    console.print(f"server: {running.what}", markup=False)
    columns = (
        *(TextColumn("{task.fields[case]:>4}"), BarColumn(), MofNCompleteColumn()),
        *(TimeElapsedColumn(), TextColumn("{task.description}")),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=len(planned), case="")

        def report(case: Case, what: str) -> None:
            progress.update(bar, case=case.name, description=f"{case.title}: {what}")

        for table in tables_of(planned, running, effort, report):
            run.tables.append(table)
            write(run, results)  # after each case, so that a later failure loses nothing
            progress.advance(bar)
            for line in lines_of(table):
                progress.console.print(line, soft_wrap=True, markup=False)
    return run


def write(run: Run, folder: Path) -> None:
    """Write the report into *folder*, and the JSON to `DATA`."""
    folder.mkdir(parents=True, exist_ok=True)
    DATA.parent.mkdir(parents=True, exist_ok=True)
    DATA.write_text(as_json(run), encoding="utf-8")
    (folder / REPORT).write_text(as_markdown(run), encoding="utf-8")


if __name__ == "__main__":
    app()
