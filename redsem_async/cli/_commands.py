"""The operator's commands: look at semaphores, change their limits, take permits back."""

import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from redis.exceptions import ResponseError

from redsem_async import AnySemaphore, SemaphoreError, SemaphoreStatus
from redsem_async._core.keys import parse_permit_id

from . import _discovery
from ._discovery import SemaphoreInfo
from ._options import LOCAL, AsJson, IsCluster, Name, Prefix, Url
from ._render import as_dict, console, details, list_table
from ._target import (
    CLUSTER_NODE,
    FAILED,
    NOT_FOUND,
    NOT_HELD,
    USAGE_ERROR,
    Target,
    connected,
    describe,
    fail,
    hello,
    printable,
    run,
)

T = TypeVar("T")

MAX_DIGITS = 1000  # of a number; of so many more Python makes none

MaxEntries = Annotated[int, typer.Option(min=0, help="Holders to list, and waiters.")]


@dataclass(frozen=True, slots=True)
class Named:
    """A semaphore that a command is about, and who asks."""

    info: SemaphoreInfo
    semaphore: AnySemaphore


def on(target: Target, name: str, work: Callable[[Named], Awaitable[T]]) -> T:
    """Do *work* with the semaphore called *name*; exit with UNKNOWN where there is none."""

    async def ask() -> T | None:
        async with connected(target) as client:
            info = await _discovery.find(client, target.prefix, name)
            if info is None:
                return None
            return await work(Named(info, info.semaphore(client, target.prefix)))

    answer = run(ask(), target)
    if answer is None:
        unknown(target, name)
    return answer


def unknown(target: Target, name: str) -> NoReturn:
    """There is no such semaphore: say so, and exit."""
    fail(
        f"nobody uses {name!r} now: {target.display_url} has no key of it under {target.prefix!r}",
        NOT_FOUND,
    )


# -- looking


def ls(
    pattern: Annotated[
        str, typer.Argument(help="Names to list, as Redis matches them: 'tenant:*'.")
    ] = "*",
    *,
    url: Url = LOCAL,
    prefix: Prefix = "redsem",
    cluster: IsCluster = False,
    as_json: AsJson = False,
) -> None:
    """List the semaphores that Redis knows of, found by SCAN."""
    target = Target(url, prefix, cluster)

    async def ask() -> list[_discovery.ListEntry]:
        async with connected(target) as client:
            if not cluster and await _is_cluster_node(client):
                fail(f"{target.display_url}: {CLUSTER_NODE}", FAILED)  # it knows a part of them
            wanted = await _discovery.names(client, prefix, pattern)
            return await _discovery.list_entries(client, prefix, wanted)

    rows = run(ask(), target)
    if as_json:
        data = [
            as_dict(row.info, row.status, whole=False)
            for row in rows
            if isinstance(row.status, SemaphoreStatus)
        ]
        typer.echo(json.dumps(data, indent=2))
    elif rows:
        console().print(list_table(rows))
    else:
        typer.echo("no semaphore is in use", err=True)
    errors = [row.status for row in rows if isinstance(row.status, SemaphoreError)]
    for error in errors:
        typer.echo(printable(describe(error)), err=True)
    if errors:
        raise typer.Exit(FAILED)


async def _is_cluster_node(client: Any) -> bool:
    try:
        return (await hello(client)).get("mode") == "cluster"
    except ResponseError:
        return False


def status(
    name: Name,
    *,
    max_entries: MaxEntries = 100,
    url: Url = LOCAL,
    prefix: Prefix = "redsem",
    cluster: IsCluster = False,
    as_json: AsJson = False,
) -> None:
    """Who holds it, and who waits."""

    async def ask(named: Named) -> tuple[SemaphoreInfo, SemaphoreStatus]:
        return named.info, await named.semaphore.status(max_entries)

    info, current = on(Target(url, prefix, cluster), name, ask)
    if as_json:
        typer.echo(json.dumps(as_dict(info, current, whole=True), indent=2))
    else:
        console().print(details(info, current))


# -- changing


def _limit(text: str | None) -> int | None:
    if text is None or text == "none":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS:
        fail("a limit is a whole number of at least 0, or none", USAGE_ERROR)
    return int(text)


def set_limit(
    name: Name,
    limit: Annotated[
        str | None, typer.Argument(help="At least 0; 0 pauses, none takes it away.")
    ] = None,
    *,
    clear: Annotated[
        bool, typer.Option("--clear", help="Take the set limit away: the clients' own rule again.")
    ] = False,
    url: Url = LOCAL,
    prefix: Prefix = "redsem",
    cluster: IsCluster = False,
) -> None:
    """Set a limit that wins over every client's own, from now on and until it is cleared.

    Raised, it serves waiters at once; lowered, it takes nobody's permit and lets nobody new in
    until it fits. It is lost when Redis loses its state: set it again then.
    """
    if clear == (limit is not None):
        fail("give a limit, or --clear", USAGE_ERROR)
    _change(Target(url, prefix, cluster), name, _limit(limit))


def pause(
    name: Name, *, url: Url = LOCAL, prefix: Prefix = "redsem", cluster: IsCluster = False
) -> None:
    """Let nobody new in: a limit of 0. Current holders keep their permits; waiters stay queued.

    The pause is lost when Redis loses its state: it is no safety lock.
    """
    _change(Target(url, prefix, cluster), name, 0)


def resume(
    name: Name, *, url: Url = LOCAL, prefix: Prefix = "redsem", cluster: IsCluster = False
) -> None:
    """End a pause: the clients' own limits rule again."""
    _change(Target(url, prefix, cluster), name, None, only_if_paused=True)


def _change(target: Target, name: str, limit: int | None, *, only_if_paused: bool = False) -> None:
    """Set the limit, also of a name that nobody uses yet."""

    async def ask() -> tuple[SemaphoreInfo | None, SemaphoreStatus | None]:
        async with connected(target) as client:
            info = await _discovery.find(client, target.prefix, name)
            if info is None and limit is None:
                return None, None
            before = info or SemaphoreInfo(name)
            semaphore = before.semaphore(client, target.prefix)
            if not (only_if_paused and before.set_limit != 0):
                await semaphore.set_limit(limit)
            return info, await semaphore.status(0)

    before, after = run(ask(), target)
    if after is None:
        unknown(target, name)
    was = None if before is None else before.set_limit
    if only_if_paused and was != 0:
        rest = "" if was is None else f", and its limit is set to {was}: set-limit changes it"
        typer.echo(f"{printable(name)} was not paused{rest}")
        return
    typer.echo(f"{printable(name)}: {_outcome(limit, was, before, after)}")
    if before is None:
        typer.echo(
            "nobody uses it now: the limit waits for whoever does, until it is cleared", err=True
        )


def _outcome(
    limit: int | None, was: int | None, before: SemaphoreInfo | None, after: SemaphoreStatus
) -> str:
    declared = " or ".join(map(str, before.declared)) if before else ""
    own = f" ({declared})" if declared else ""
    if limit is None:
        return f"its clients' own limit rules again{own}"
    parts = [f"limit {limit}" if limit else "paused"]
    if was is not None and was != limit:
        parts.append(f"{was} was set before")
    if after.held > limit:
        rest = ", and nobody new gets in before that fits" if limit else " still"
        parts.append(f"{after.held} are held{rest}")
    return "; ".join(parts)


def kick(
    name: Name,
    permit_id: Annotated[
        str, typer.Argument(metavar="ID", help="Of the permit, as status shows it.")
    ],
    *,
    url: Url = LOCAL,
    prefix: Prefix = "redsem",
    cluster: IsCluster = False,
) -> None:
    """Take a permit from its holder, and give it to the next.

    The holder is told in the same step. While it is cut off from Redis it does not hear of it, and
    goes on until its lease ends.

    Exits with 4 where that id holds nothing (any more).
    """
    if parse_permit_id(permit_id) is None:
        fail("that is no permit's id: status shows them", USAGE_ERROR)

    async def ask(named: Named) -> bool:
        return await named.semaphore.release(permit_id)

    if not on(Target(url, prefix, cluster), name, ask):
        fail(f"{name!r} has no permit of that id: nothing was changed", NOT_HELD)
    typer.echo(f"{printable(name)}: released")


def clear(
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = LOCAL,
    prefix: Prefix = "redsem",
    cluster: IsCluster = False,
) -> None:
    """Delete a semaphore: holders lose their permits, waiters start again, a set limit goes."""
    target = Target(url, prefix, cluster)

    async def look(named: Named) -> SemaphoreStatus:
        return await named.semaphore.status(0)

    async def delete(named: Named) -> bool:
        await named.semaphore.clear()
        return True

    current = on(target, name, look)
    if not yes:
        if sys.stdin is None:
            fail("there is nobody to ask: give --yes", USAGE_ERROR)
        typer.confirm(
            f"{printable(name)} has {current.held} permits held and {current.waiting} requests"
            " waiting. Delete it?",
            abort=True,
            err=True,
        )
    on(target, name, delete)
    typer.echo(f"{printable(name)} was deleted")


COMMANDS: dict[str, Callable[..., Any]] = {
    "ls": ls,
    "status": status,
    "set-limit": set_limit,
    "pause": pause,
    "resume": resume,
    "kick": kick,
    "clear": clear,
}
