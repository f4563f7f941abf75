"""``redsem-async watch``, the status of a semaphore, polled."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, NamedTuple

import click

from redsem_async import SemaphoreStatus
from redsem_async._tools import discovery
from redsem_async._tools.discovery import SemaphoreInfo
from redsem_async._tools.states import rates_of

from ._options import Number, as_json, ids, most, name, on_target, option
from ._target import (
    FAILED,
    NOT_FOUND,
    REDIS_ERRORS,
    USAGE_ERROR,
    Target,
    connected,
    fail,
    failure,
    no_such_semaphore,
    printable,
)

if TYPE_CHECKING:
    from rich.console import RenderableType


class Failure(NamedTuple):
    """Why there is no status, and the exit code that another command has for it."""

    text: str
    code: int


Sample = tuple[SemaphoreInfo, SemaphoreStatus] | Failure
"""A semaphore and its status, or why there is none."""


@click.command
@name
@option("--interval", "Time between two samples.", Number("seconds", 0.1, 3600), 1.0)
@option("--count", "Number of samples. Default: until Ctrl-C.", Number("n", 1))
@most(20)
@ids
@as_json
@on_target
def watch(
    target: Target,
    name: str,
    interval: float,
    count: int | None,
    most: int,
    *,
    ids: bool,
    as_json: bool,
) -> None:
    """Show holders and waiters, live, until Ctrl-C.

    Without a terminal, prints one line per sample, or with --json one object per line. After an
    error, `watch` reports it in place of a sample and continues. With --count, the exit code is
    that of the last sample.
    """
    with contextlib.suppress(KeyboardInterrupt), _output(name, ids=ids, as_json=as_json) as show:
        try:
            samples = _samples(target, name, interval, most)
            last = asyncio.run(_last(samples, count, show))
        except ValueError as error:
            fail(str(error), USAGE_ERROR)
        if isinstance(last, Failure):
            raise click.exceptions.Exit(last.code)


@contextlib.contextmanager
def _output(name: str, *, ids: bool, as_json: bool) -> Generator[Callable[[Sample], None]]:
    """What shows a sample, either a live display in a terminal, or lines."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from ._render import console, details

    shown = console(fitting=True)
    if as_json:
        yield lambda sample: _print_json(name, sample)
    elif not shown.is_terminal or shown.is_dumb_terminal:  # which cannot go back
        yield _print_line
    else:
        with Live(console=shown, auto_refresh=False) as live:  # the last sample stays
            last: RenderableType = Text()

            def show(sample: Sample) -> None:
                nonlocal last
                if isinstance(sample, Failure):
                    live.update(Group(last, Text(), Text(sample.text)), refresh=True)
                else:
                    last = details(*sample, ids=ids)
                    live.update(last, refresh=True)

            yield show


def _print_line(sample: Sample) -> None:
    from ._render import keys_text, line, rates_text

    if isinstance(sample, Failure):
        click.echo(sample.text)
    else:
        texts = {"Keys": keys_text(sample[1]), "Rates": rates_text(rates_of(*sample))}
        more = (f" {what}: {text}" for what, text in texts.items() if text)
        click.echo(f"{line(*sample)}{''.join(more)}")


def _print_json(name: str, sample: Sample) -> None:
    from ._render import as_dict

    if isinstance(sample, Failure):
        click.echo(json.dumps({"name": name, "error": sample.text}))
    else:
        click.echo(json.dumps(as_dict(*sample, whole=True)))


async def _last(
    samples: AsyncGenerator[Sample], count: int | None, show: Callable[[Sample], None]
) -> Sample | None:
    """Show *count* samples, and return the last."""
    async with contextlib.aclosing(samples):
        async for sample in samples:
            show(sample)
            count = None if count is None else count - 1
            if count == 0:
                return sample
    return None


async def _samples(
    target: Target, name: str, interval: float, most: int
) -> AsyncGenerator[Sample]:
    """Samples without end, because an outage may end."""
    while True:
        try:
            async with connected(target) as client:
                while True:
                    info = await discovery.find(client, target.prefix, name)
                    if info is None:
                        unknown = no_such_semaphore(name, target.prefix)
                        yield Failure(printable(unknown), NOT_FOUND)
                    else:
                        yield info, await discovery.status_of(client, target.prefix, info, most)
                    await asyncio.sleep(interval)
        except REDIS_ERRORS as error:
            yield Failure(printable(failure(target, error)), FAILED)
        await asyncio.sleep(interval)
