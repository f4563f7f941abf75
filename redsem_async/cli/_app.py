"""Commands, their options and exit codes. What a command does is elsewhere."""

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from redis.exceptions import RedisError
from rich.console import Console

from redsem_async import SemaphoreError
from redsem_async.testing._embedded import ServerDidNotStart, ServerNotFound

from ._commands import COMMANDS
from ._doctor import doctor
from ._target import FAILED, INTERRUPTED, valid_url
from ._watch import watch

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - as typer calls it
    if wanted:
        typer.echo(
            f"redsem-async {_version_of('redsem-async')}"
            f" (redis-py {_version_of('redis')}, Python {platform.python_version()})"
        )
        raise typer.Exit


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:  # run from a folder that nothing was installed from
        return "of a checkout"


@app.callback()
def redsem_async(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Say which versions these are.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    """Distributed semaphores for asyncio, kept in Redis.

    Exit codes: 0 done; 1 Redis could not be asked or refused, `doctor` found a problem, or `clear`
    was not told yes; 2 wrong use; 3 nobody uses that name; 4 the id to kick holds nothing;
    130 interrupted.
    """


for name, command in COMMANDS.items():
    app.command(name)(command)
app.command()(watch)
app.command()(doctor)


@app.command()
def demo(
    *,
    url: Annotated[
        str | None,
        typer.Option(help="A Redis to use instead of an embedded one.", callback=valid_url),
    ] = None,
    requests: Annotated[
        int, typer.Option(min=60, help="Requests in each of the two rounds.")
    ] = 400,
    limit: Annotated[
        int, typer.Option(min=4, max=20, help="How many the upstream takes at once.")
    ] = 8,
    lease: Annotated[
        float,
        typer.Option(
            min=1.0, max=5.0, help="Seconds until a killed worker's permits are given to others."
        ),
    ] = 2.0,
    output: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Folder for the chart that matplotlib draws, if not a new temporary one.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The summary as JSON; all else goes to stderr.")
    ] = False,
) -> None:
    """Four processes, one upstream with a limit, and a SIGKILL.

    Sends requests to a small local upstream that takes only so many at once: first without a
    semaphore, then with one, and kills a worker on the way. Exits with 0 only if that went as
    promised: the limit held, nobody was refused, and no request was lost but the killed
    worker's own.
    """
    from .demo._chart import chart_of
    from .demo._plan import Plan
    from .demo._run import run
    from .demo._summary import as_dict, print_summary
    from .demo._verdict import faults_of

    if find_spec("httpx") is None:
        raise ModuleNotFoundError(name="httpx")  # its user is another process
    console = Console(stderr=as_json, highlight=False)
    try:
        record = run(Plan(requests=requests, limit=limit, lease=lease), url, console)
        faults = faults_of(record)
        print_summary(record, faults, console)
        chart = chart_of(record, console, output)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except (SemaphoreError, ServerDidNotStart, ServerNotFound) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(FAILED) from None
    if as_json:
        typer.echo(json.dumps(as_dict(record, faults, chart), indent=2))
    if faults:
        raise typer.Exit(1)


@app.command()
def bench(
    *,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="REDIS_URL",
            help="The Redis to measure on; or else an embedded one.",
            callback=valid_url,
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=60.0, help="For each of the five measurements.")
    ] = 2.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="The figures as JSON; all else goes to stderr.")
    ] = False,
) -> None:
    """How fast permits are on your own Redis.

    Measures a round trip, and how long acquiring takes in both modes: for one task and a free
    semaphore, and for many tasks that contend. The semaphores have random names, and are
    deleted afterwards.
    """
    from ._bench import as_dict, measure, print_figures

    console = Console(stderr=as_json, highlight=False)
    try:
        figures = measure(url, seconds, console)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except (SemaphoreError, RedisError, ServerDidNotStart, ServerNotFound) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(FAILED) from None
    if as_json:
        typer.echo(json.dumps(as_dict(figures), indent=2))
    else:
        print_figures(figures, console)
