"""Commands, their options and exit codes. Other modules do the work."""

import json
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ._commands import COMMANDS
from ._doctor import doctor
from ._ephemeral import errors_end_the_command
from ._options import AsJson, IsCluster, Prefix, flag, valid_prefix
from ._run import run
from ._serve import serve
from ._target import USAGE_ERROR, fail, valid_url
from ._watch import watch

_EPILOG = """
Exit codes: 0 success; 1 Redis is unreachable or returned an error, `doctor` found a problem, or
`delete` was not confirmed; 2 usage error; 3 no semaphore of that name; 4 the id to revoke holds no
permit; 130 interrupted, where `watch` and `serve` exit with 0. `run` has other codes.

Documentation: https://redsem-async.github.io/redsem-async/
"""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    epilog=_EPILOG,
)


def _version(wanted: bool) -> None:  # noqa: FBT001 - as typer calls it
    if wanted:
        typer.echo(
            f"redsem-async {_version_of('redsem-async')}"
            f" (redis-py {_version_of('redis')}, Python {platform.python_version()})"
        )
        raise typer.Exit


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:  # run from a checkout
        return "(not installed)"


@app.callback()
def redsem_async(
    *,
    version: Annotated[
        bool,
        flag("--version", help="Print the versions and exit.", is_eager=True, callback=_version),
    ] = False,
    url: Annotated[
        str | None, typer.Option(help="URL of the server, for every command.", callback=valid_url)
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(help="Prefix of the keys, for every command.", callback=valid_prefix),
    ] = None,
    cluster: Annotated[
        bool | None, flag("--cluster", help="The URL is a node of a cluster, for every command.")
    ] = None,
    as_json: Annotated[
        bool | None, flag("--json", help="Print JSON, for every command that supports it.")
    ] = None,
) -> None:
    """Distributed semaphores for asyncio, backed by Redis."""


for command in (*COMMANDS, run, watch, doctor, serve):
    # A negative number as in "set-limit x -1" is no option, so the command says what is wrong.
    unknown = {"ignore_unknown_options": command.__name__ in {"set_limit", "back_off"}}
    app.command(context_settings=unknown)(command)


@app.command()
def demo(
    *,
    url: Annotated[
        str | None,
        typer.Option(help="Redis server to use. Default: an embedded one.", callback=valid_url),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(min=60, help="Requests in each of two rounds: 400, or 2000 with --overload."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=4, max=20, help="Requests that the upstream accepts: 8, or 20 with --overload."
        ),
    ] = None,
    lease: Annotated[
        float,
        typer.Option(
            min=1.0,
            max=5.0,
            help="Lease in seconds, after which a killed worker's permits are free.",
        ),
    ] = 2.0,
    overload: Annotated[
        bool, flag("--overload", help="Find the capacity of an upstream that is overloaded.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Folder for the chart drawn by matplotlib. Default: a temporary folder.",
        ),
    ] = None,
    prefix: Prefix = "redsem",
    cluster: IsCluster = False,
    as_json: AsJson = False,
) -> None:
    """Run four processes against an upstream with a concurrency limit. One is killed.

    Worker processes send requests to a small local upstream with a concurrency limit, first
    without a semaphore, then with one. One worker is killed in each round. Exits with 0 only if
    the semaphore kept the limit, the upstream rejected no request, and only requests of the
    killed worker were lost.

    With --overload no worker is killed. The upstream accepts 20 concurrent requests, but 5 for
    five seconds, and the processes start with 64. In the first round each process finds a limit
    for itself. In the second, all find one together, by the back-off of a semaphore. Exits with 0
    only if that used the upstream, with fewer rejected requests, and none was lost.
    """
    from .demo._chart import chart_of, make_folder
    from .demo._record import Plan
    from .demo._run import run
    from .demo._show import print_summary

    if find_spec("httpx") is None:
        raise ModuleNotFoundError(name="httpx")  # a worker process needs it
    if output is not None:
        try:
            make_folder(output)
        except OSError as error:
            fail(f"--output {str(output)!r}: {error.strerror}", USAGE_ERROR)
    console = Console(stderr=as_json, highlight=False)
    with errors_end_the_command():
        if overload:
            plan = Plan(requests or 2000, limit or 20, lease, slots=16, overload=5.0, most=64)
        else:
            plan = Plan(requests or 400, limit or 8, lease)
        record = run(plan, url, prefix, console, cluster=cluster)
        print_summary(record, console)
        chart = chart_of(record, console, output)
    if as_json:
        summary = record.as_dict() | {"chart": None if chart is None else str(chart)}
        typer.echo(json.dumps(summary, indent=2))
    if record.faults():
        raise typer.Exit(1)


@app.command()
def bench(
    *,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="REDIS_URL",
            help="Redis server to measure. Default: an embedded one.",
            callback=valid_url,
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=60.0, help="Duration of each of the five measurements.")
    ] = 2.0,
    prefix: Prefix = "redsem",
    cluster: IsCluster = False,
    as_json: AsJson = False,
) -> None:
    """Measure how fast permits are acquired on your own Redis.

    Measures a round trip, and how long acquiring takes with both classes, with one task and a
    free semaphore, and with many contending tasks. The semaphores have random names and are
    deleted afterwards.
    """
    from ._bench import measure, print_figures

    console = Console(stderr=as_json, highlight=False)
    with errors_end_the_command():
        figures = measure(url, prefix, seconds, console, cluster=cluster)
    if as_json:
        typer.echo(json.dumps(asdict(figures), indent=2))
    else:
        print_figures(figures, console)
