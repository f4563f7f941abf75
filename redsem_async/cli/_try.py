"""``redsem-async demo`` and ``redsem-async bench``. Their own modules do the work."""

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import click

from ._options import Number, as_json, cluster, flag, option, prefix, url_option
from ._target import USAGE_ERROR, fail


@click.command
@url_option(None, help="Redis server to use. Default: an embedded one.")
@option("--requests", "Requests in each round: 400, or 2000 with --overload.", Number("n", 60))
@option("--limit", "Capacity of the upstream: 8, or 20 with --overload.", Number("n", 4, 20))
@option(
    "--lease",
    "Time after which a killed worker's permits are free.",
    Number("seconds", 1, 5),
    2.0,
)
@flag("--overload", help="Find the capacity of an upstream that is overloaded.")
@option(
    "--output",
    "Folder for the chart drawn by matplotlib. Default: a temporary folder.",
    metavar="FOLDER",
)
@prefix
@cluster
@as_json
def demo(
    url: str | None,
    requests: int | None,
    limit: int | None,
    lease: float,
    output: str | None,
    prefix: str,
    *,
    overload: bool,
    cluster: bool,
    as_json: bool,
) -> None:
    """Run four processes against an upstream with a concurrency limit. One is killed.

    Worker processes send requests to a small local upstream with a concurrency limit, first
    without a semaphore, then with one. One worker is killed in each round. Exits with 0 only if
    the semaphore kept the limit, the upstream rejected no request, and only requests of the
    killed worker were lost.

    With --overload no worker is killed. The upstream accepts 20 concurrent requests, but 5 for
    five seconds, and the processes start with 64. In the first round each process finds its own
    limit. In the second, all find one together, with a semaphore's back-off. Exits with 0 only if
    that used most of the capacity, no more requests were rejected, and none was lost.
    """
    from rich.console import Console

    from ._ephemeral import errors_end_the_command
    from .demo._chart import chart_of, make_folder
    from .demo._record import Plan
    from .demo._run import run
    from .demo._show import print_summary

    if find_spec("httpx") is None:
        raise ModuleNotFoundError(name="httpx")  # a worker process needs it
    folder = None if output is None else Path(output)
    if folder is not None:
        try:
            make_folder(folder)
        except OSError as error:
            fail(f"--output {output!r}: {error.strerror}", USAGE_ERROR)
    console = Console(stderr=as_json, highlight=False)
    with errors_end_the_command():
        if overload:
            plan = Plan(requests or 2000, limit or 20, lease, slots=16, overload=5.0, most=64)
        else:
            plan = Plan(requests or 400, limit or 8, lease)
        record = run(plan, url, prefix, console, cluster=cluster)
        print_summary(record, console)
        chart = chart_of(record, console, folder)
    if as_json:
        summary = record.as_dict() | {"chart": None if chart is None else str(chart)}
        click.echo(json.dumps(summary, indent=2))
    if record.faults():
        raise click.exceptions.Exit(1)


@click.command
@url_option(
    None,
    help="Redis server to measure. Default: an embedded one.",
    envvar="REDIS_URL",
    show_envvar=True,
)
@option("--seconds", "Duration of each of the five measurements.", Number("seconds", 0.1, 60), 2.0)
@prefix
@cluster
@as_json
def bench(url: str | None, seconds: float, prefix: str, *, cluster: bool, as_json: bool) -> None:
    """Measure how fast permits are acquired on your own Redis.

    Measures a round trip, and how long acquiring takes with both classes, with one task and a
    free semaphore, and with many contending tasks. The semaphores have random names and are
    deleted afterwards.
    """
    from rich.console import Console

    from ._bench import measure, print_figures
    from ._ephemeral import errors_end_the_command

    console = Console(stderr=as_json, highlight=False)
    with errors_end_the_command():
        figures = measure(url, prefix, seconds, console, cluster=cluster)
    if as_json:
        click.echo(json.dumps(asdict(figures), indent=2))
    else:
        print_figures(figures, console)
