"""The capacity of one shard, measured and computed: ``python -m benchmarks.scaling``.

Prints the tables of docs/scaling.md, or replaces them there with ``--write docs/scaling.md``.
"""

import json
import os
import platform
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from redis.exceptions import RedisError
from rich.console import Console

from benchmarks._scaling.cases import measure
from benchmarks._scaling.document import table, with_tables
from benchmarks._scaling.figures import Case, Contention, Cost, Figures, Fleet, Memory
from benchmarks._scaling.server import server, version_of
from benchmarks._scaling.tables import SEED, tables
from redsem_async.testing._embedded import ServerDidNotStart, ServerNotFound

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(
    *,
    which: Annotated[
        str,
        typer.Option("--server", help="embedded, or the URL of a server without other clients."),
    ] = "embedded",
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 3,
    seconds: Annotated[
        float, typer.Option(min=0.01, help="Duration of each case of a round.")
    ] = 0.5,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", dir_okay=False, help="Write the measured figures to this file."),
    ] = None,
    document: Annotated[
        Path | None,
        typer.Option(
            "--write", exists=True, dir_okay=False, help="Replace the tables in this document."
        ),
    ] = None,
) -> None:
    """Measure the costs of a shard, and compute the number of processes that it can serve."""
    console = Console(stderr=True, highlight=False)
    try:
        figures = _measured(which, rounds, seconds, console)
    except (ServerDidNotStart, ServerNotFound, RedisError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    if json_file is not None:
        json_file.write_text(json.dumps(figures.as_dict(), indent=2) + "\n", encoding="utf-8")
    console.print(f"... simulations, seed {SEED}")
    made = {"setup": _setup(figures, rounds, seconds), **tables(figures)}
    if document is not None:
        text = with_tables(document.read_text(encoding="utf-8"), made)
        document.write_text(text, encoding="utf-8")
    else:
        typer.echo("\n\n".join(f"## {name}\n\n{text}" for name, text in made.items()))


def _measured(which: str, rounds: int, seconds: float, console: Console) -> Figures:
    """Measure all rounds. Each round has a new server if the server is embedded."""
    costs: dict[Case, list[Cost]] = {}
    contention: dict[Fleet, list[Contention]] = {}
    memory: list[Memory] = []
    what = ""
    for number in range(1, rounds + 1):
        with server(which) as url:
            what = version_of(url)
            progress = partial(console.print, f"... {number}:")
            found, fleets, kept = measure(url, seconds, progress)
        memory.append(kept)
        for fleet, together in fleets.items():
            contention.setdefault(fleet, []).append(together)
        for case, cost in found.items():
            costs.setdefault(case, []).append(cost)
    return Figures(what, _machine(), costs, memory, contention)


def _machine() -> str:
    return f"{os.cpu_count()} cores, {platform.system()} on {platform.machine()}"


def _setup(figures: Figures, rounds: int, seconds: float) -> str:
    lines = [
        ["server", f"{figures.server}, on the machine of the client"],
        ["machine", f"{figures.machine}, shared with others"],
        ["client", f"CPython {platform.python_version()}, redis-py {version('redis')}"],
        ["rounds", f"{rounds}, of {seconds:g} s for each case; seed of simulations {SEED}"],
        ["date", date.today().isoformat()],  # noqa: DTZ011 - the reader's own day
    ]
    return table(["", "measured on"], lines, rest="---")


if __name__ == "__main__":
    app()
