"""``redsem-async watch``: how a semaphore stands, again and again."""

import asyncio
import contextlib
import json
from typing import Annotated, Any, Self

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from redsem_async import SemaphoreStatus

from . import _find
from ._find import Found
from ._options import LOCAL, AsJson, IsCluster, Name, Prefix, Url
from ._place import FAILURES, WRONG_USE, Place, connected, fail, printable, sentence
from ._show import console, details, facts, headline

Moment = tuple[Found, SemaphoreStatus] | str
"""How it stands, or why that is not known."""


def watch(
    name: Name,
    *,
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")
    ] = 1.0,
    count: Annotated[
        int | None, typer.Option(min=1, help="End after so many looks, and not by Ctrl-C alone.")
    ] = None,
    most: Annotated[int, typer.Option(min=0, help="Holders to list, and waiters.")] = 20,
    url: Url = LOCAL,
    prefix: Prefix = "redsem",
    cluster: IsCluster = False,
    as_json: AsJson = False,
) -> None:
    """Show who holds it and who waits, live, until Ctrl-C.

    Without a terminal, a line for each look; with --json, an object for each.
    """
    place = Place(url, prefix, cluster)
    watching = _Json() if as_json else _Screen() if console().is_terminal else _Lines()
    with contextlib.suppress(KeyboardInterrupt), watching:
        try:
            asyncio.run(_look_on(place, name, interval, count, most, watching))
        except ValueError as error:
            fail(str(error), WRONG_USE)


class _Lines(contextlib.AbstractContextManager["_Lines", None]):
    """A line for each look."""

    def show(self, name: str, moment: Moment) -> None:
        typer.echo(moment if isinstance(moment, str) else headline(*moment))

    def __exit__(self, *_: object) -> None:
        return None


class _Json(_Lines):
    """An object for each look, on a line of its own."""

    def show(self, name: str, moment: Moment) -> None:
        if isinstance(moment, str):
            told: dict[str, Any] = {"name": name, "error": moment}
        else:
            told = facts(*moment, whole=True)
        typer.echo(json.dumps(told))


class _Screen(_Lines):
    """One picture that changes; the last one stays."""

    def __init__(self) -> None:
        self._live = Live(console=console(fitting=True), auto_refresh=False)
        self._last: RenderableType = Text()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, name: str, moment: Moment) -> None:
        if isinstance(moment, str):
            shown: RenderableType = Group(self._last, Text(), Text(moment))
        else:
            shown = self._last = details(*moment)
        self._live.update(shown, refresh=True)


async def _look_on(
    place: Place, name: str, interval: float, count: int | None, most: int, watching: _Lines
) -> None:
    looks = 0
    while count is None or looks < count:
        try:
            async with connected(place) as client:
                while count is None or looks < count:
                    if looks:
                        await asyncio.sleep(interval)
                    looks += 1
                    watching.show(name, await _look(client, place, name, most))
        except FAILURES as error:
            # An outage ends, and then this goes on.
            looks += 1
            watching.show(name, f"{place.shown}: {printable(sentence(error))}")
            if count is None or looks < count:
                await asyncio.sleep(interval)


async def _look(client: Any, place: Place, name: str, most: int) -> Moment:
    found = await _find.find(client, place.prefix, name)
    if found is None:
        return f"{printable(name)}: nobody uses it now"
    return found, await found.semaphore(client, place.prefix).status(most)
