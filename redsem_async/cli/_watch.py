"""``redsem-async watch``: the status of a semaphore, polled."""

import asyncio
import contextlib
import json
from typing import Annotated, Any, Self

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from redsem_async import SemaphoreStatus
from redsem_async._integrations import discovery
from redsem_async._integrations.discovery import SemaphoreInfo

from ._options import LOCAL, AsJson, IsCluster, MaxEntries, Name, Prefix, Url
from ._render import as_dict, console, details, headline, keys_text
from ._target import (
    REDIS_ERRORS,
    USAGE_ERROR,
    Target,
    connected,
    describe,
    fail,
    no_such_semaphore,
    printable,
)

Sample = tuple[SemaphoreInfo, SemaphoreStatus] | str
"""A semaphore and its status, or an error message."""


def watch(
    name: Name,
    *,
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds between two samples.")
    ] = 1.0,
    count: Annotated[
        int | None, typer.Option(min=1, help="Number of samples. Default: until Ctrl-C.")
    ] = None,
    max_entries: MaxEntries = 20,
    url: Url = LOCAL,
    prefix: Prefix = "redsem",
    cluster: IsCluster = False,
    as_json: AsJson = False,
) -> None:
    """Show holders and waiters, live, until Ctrl-C.

    Without a terminal it prints one line per sample; with --json, one object per line.
    """
    target = Target(url, prefix, cluster)
    output = (
        _JsonOutput() if as_json else _LiveOutput() if console().is_terminal else _LineOutput()
    )
    with contextlib.suppress(KeyboardInterrupt), output:
        try:
            asyncio.run(_poll(target, name, interval, count, max_entries, output))
        except ValueError as error:
            fail(str(error), USAGE_ERROR)


class _LineOutput(contextlib.AbstractContextManager["_LineOutput", None]):
    """One line per sample."""

    def show(self, name: str, sample: Sample) -> None:
        if isinstance(sample, str):
            typer.echo(sample)
            return
        info, status = sample
        keys = f"; keys: {keys_text(status)}" if status.keys else ""
        typer.echo(f"{headline(info, status)}{keys}")

    def __exit__(self, *_: object) -> None:
        return None


class _JsonOutput(_LineOutput):
    """One JSON object per line."""

    def show(self, name: str, sample: Sample) -> None:
        if isinstance(sample, str):
            data: dict[str, Any] = {"name": name, "error": sample}
        else:
            data = as_dict(*sample, whole=True)
        typer.echo(json.dumps(data))


class _LiveOutput(_LineOutput):
    """A live display in a terminal. The last sample stays on the screen."""

    def __init__(self) -> None:
        self._live = Live(console=console(fitting=True), auto_refresh=False)
        self._last: RenderableType = Text()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, name: str, sample: Sample) -> None:
        if isinstance(sample, str):
            shown: RenderableType = Group(self._last, Text(), Text(sample))
        else:
            shown = self._last = details(*sample)
        self._live.update(shown, refresh=True)


async def _poll(
    target: Target,
    name: str,
    interval: float,
    count: int | None,
    max_entries: int,
    output: _LineOutput,
) -> None:
    samples = 0
    while count is None or samples < count:
        try:
            async with connected(target) as client:
                while count is None or samples < count:
                    if samples:
                        await asyncio.sleep(interval)
                    samples += 1
                    output.show(name, await _take_sample(client, target, name, max_entries))
        except REDIS_ERRORS as error:
            # Keep polling: the outage may end.
            samples += 1
            output.show(name, f"{target.display_url}: {printable(describe(error))}")
            if count is None or samples < count:
                await asyncio.sleep(interval)


async def _take_sample(client: Any, target: Target, name: str, max_entries: int) -> Sample:
    info = await discovery.find(client, target.prefix, name)
    if info is None:
        return printable(no_such_semaphore(name, target.prefix))
    return info, await info.semaphore(client, target.prefix).status(max_entries)
