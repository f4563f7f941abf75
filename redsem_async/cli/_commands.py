"""The operator's commands, which inspect semaphores, set limits and revoke permits."""

import json
import shlex
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer

from redsem_async import AnySemaphore, SemaphoreError, SemaphoreStatus
from redsem_async._core import config
from redsem_async._core.keys import parse_permit_id
from redsem_async._tools import changed, discovery
from redsem_async._tools.discovery import SemaphoreInfo

from ._options import LOCAL, AsJson, Ids, IsCluster, MaxEntries, Name, Prefix, Url, flag
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
    interrupted,
    no_such_semaphore,
    printable,
    run,
)

T = TypeVar("T")

MAX_DIGITS = 1000  # of a limit, because int() refuses longer text
MOST_NAMED = 10  # names in a message
LONGEST_ANSWER = 100  # characters, because the input may be a file without lines

Create = Annotated[bool, flag("--create", help="Allow a name that is not in use yet.")]
Key = Annotated[str | None, typer.Option(help="Only for this key. Default: all requests.")]
KeysAfter = Annotated[
    str | None, typer.Option(help="List the keys after this one, the last of the previous list.")
]


def on(
    target: Target,
    name: str,
    work: Callable[[Any, SemaphoreInfo], Awaitable[T]],
    *,
    create: bool | None = None,
) -> T:
    """Do *work* with the semaphore called *name*, with *create* also before its first use.

    Otherwise exit with `NOT_FOUND` if there is none, and suggest a similar name. *create* is None
    for a command without that option.
    """

    async def ask() -> T:
        async with connected(target) as client:
            info = await discovery.find(client, target.prefix, name)
            if info is None and not create:
                similar = await discovery.similar_name(client, target.prefix, name)
                hint = "" if create is None else " Use --create if the name is not in use yet."
                fail(no_such_semaphore(name, target.prefix, similar) + hint, NOT_FOUND)
            return await work(client, info or SemaphoreInfo(name))

    return run(ask(), target)


# -- inspecting


def ls(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Glob of names, such as 'tenant:*'.")
    ] = "*",
    *,
    url: Url = LOCAL,
    prefix: Prefix = "redsem",
    cluster: IsCluster = False,
    as_json: AsJson = False,
) -> None:
    """List the semaphores in Redis, found by SCAN."""
    target = Target(url, prefix, cluster)

    async def ask() -> list[discovery.ListEntry]:
        async with connected(target) as client:
            if not cluster and (await hello(client)).get("mode") == "cluster":
                # It stores only some of them.
                fail(f"{target.display_url}: {CLUSTER_NODE}", FAILED)
            wanted = await discovery.names(client, prefix, pattern)
            return await discovery.list_entries(client, prefix, wanted)

    rows = run(ask(), target)
    if as_json:
        data = [
            as_dict(row.info, row.status, whole=False)
            for row in rows
            if isinstance(row.status, SemaphoreStatus)
        ]
        typer.echo(json.dumps(data, indent=2))
    elif rows:
        console(fitting=True).print(list_table(rows))
    else:
        typer.echo(printable(run(_nothing_found(target, pattern), target)), err=True)
    errors = [row.status for row in rows if isinstance(row.status, SemaphoreError)]
    for error in errors:
        typer.echo(printable(describe(error)), err=True)
    if errors:
        raise typer.Exit(FAILED)


async def _nothing_found(target: Target, pattern: str) -> str:
    """What to say where no semaphore matches *pattern*."""
    async with connected(target) as client:
        known = await discovery.names(client, target.prefix)
        some = known[: discovery.BATCH]
        used = await discovery.names_in_use(client, target.prefix, some)
    if not used and some == known:
        return f"No semaphores in use (prefix {target.prefix!r})."
    count = len(used) + len(known) - len(some)
    shown = ", ".join(map(repr, used[:MOST_NAMED]))
    more = f" and {count - MOST_NAMED:,} more" if count > MOST_NAMED else ""
    return f"No semaphore matches {pattern!r} (prefix {target.prefix!r}). In use: {shown}{more}."


def status(
    name: Name,
    *,
    max_entries: MaxEntries = 100,
    keys_after: KeysAfter = None,
    ids: Ids = False,
    url: Url = LOCAL,
    prefix: Prefix = "redsem",
    cluster: IsCluster = False,
    as_json: AsJson = False,
) -> None:
    """Show holders, waiters and keys."""

    async def ask(client: Any, info: SemaphoreInfo) -> tuple[SemaphoreInfo, SemaphoreStatus]:
        semaphore = info.semaphore(client, prefix)
        _check_key(semaphore, keys_after)
        return info, await semaphore.status(max_entries=max_entries, keys_after=keys_after)

    info, current = on(Target(url, prefix, cluster), name, ask)
    if as_json:
        typer.echo(json.dumps(as_dict(info, current, whole=True), indent=2))
    else:
        console(fitting=not ids).print(details(info, current, ids=ids))
        if 0 < max_entries == len(current.keys):
            last = shlex.quote(current.keys[-1].key)
            text = f"more keys than {max_entries}: --keys-after {last} lists the next"
            typer.echo(printable(text))


def _check_key(semaphore: AnySemaphore, key: str | None) -> None:
    """Fail with a usage error if there is a *key*, but requests have none."""
    if key is not None and not semaphore.keyed:
        fail(f"{semaphore.name!r} has no keys", USAGE_ERROR)


# -- changing


def _limit(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS:
        fail("the limit must be a whole number of at least 0", USAGE_ERROR)
    return int(text)


def set_limit(
    name: Name,
    limit: Annotated[str | None, typer.Argument(metavar="LIMIT", help="0 pauses.")] = None,
    *,
    unset: Annotated[
        bool, flag("--unset", help="Remove the set limit. The declared limits apply again.")
    ] = False,
    key: Key = None,
    create: Create = False,
    url: Url = LOCAL,
    prefix: Prefix = "redsem",
    cluster: IsCluster = False,
) -> None:
    """Set a limit that overrides all declared limits until it is removed.

    A higher limit serves waiters at once. A lower limit revokes no permit. New permits are
    granted once fewer than the limit are held. Redis stores the set limit. If Redis loses its
    data, set it again.

    With --key, the limit of one key is set.
    """
    if unset == (limit is not None):
        fail("give either a limit or --unset", USAGE_ERROR)
    wanted = _limit(limit)

    def change(semaphore: AnySemaphore) -> Awaitable[None]:
        _check_key(semaphore, key)
        return semaphore.set_limit(wanted, key=key)

    target = Target(url, prefix, cluster)
    before, after = _change(target, name, change, create=create, keyed=key is not None)
    if key is None:
        _say(name, before, changed.limit_set(wanted, before, after), stays=wanted is not None)
    else:
        done = changed.key_limit_set(printable(key), wanted)
        _say(name, before, done, stays=wanted is not None)


def pause(
    name: Name,
    *,
    create: Create = False,
    url: Url = LOCAL,
    prefix: Prefix = "redsem",
    cluster: IsCluster = False,
) -> None:
    """Set a limit of 0, so that no permits are granted until `resume`.

    Current holders keep their permits, and waiters stay queued. A pause is not a safety lock,
    because it is lost if Redis loses its data.
    """
    target = Target(url, prefix, cluster)
    before, after = _change(target, name, lambda sem: sem.pause(), create=create)
    _say(name, before, changed.paused(before, after), stays=True)


def resume(
    name: Name, *, url: Url = LOCAL, prefix: Prefix = "redsem", cluster: IsCluster = False
) -> None:
    """End a pause. The limit from before the pause applies again."""
    before, after = _change(Target(url, prefix, cluster), name, lambda sem: sem.resume())
    _say(name, before, changed.resumed(before, after))


def back_off(
    name: Name,
    seconds: Annotated[
        str, typer.Argument(metavar="SECONDS", help="At most 86400. 0 ends a back-off.")
    ],
    *,
    key: Key = None,
    create: Create = False,
    url: Url = LOCAL,
    prefix: Prefix = "redsem",
    cluster: IsCluster = False,
) -> None:
    """Grant no permits for some seconds, then more and more, up to the limit.

    Unlike a pause, a back-off ends by itself. Current holders keep their permits, and waiters
    stay queued.
    """
    try:
        wanted = config.duration_of(float(seconds), "seconds", config.LONGEST_BACK_OFF)
    except ValueError:
        fail("seconds must be a number from 0 to 86400", USAGE_ERROR)

    def change(semaphore: AnySemaphore) -> Awaitable[None]:
        _check_key(semaphore, key)
        return semaphore.back_off(wanted, key=key)

    target = Target(url, prefix, cluster)
    before, _ = _change(target, name, change, create=create, keyed=key is not None)
    _say(name, before, changed.backed_off(wanted, None if key is None else printable(key)))


def _change(
    target: Target,
    name: str,
    change: Callable[[AnySemaphore], Awaitable[None]],
    *,
    create: bool | None = None,
    keyed: bool = False,
) -> tuple[SemaphoreInfo, SemaphoreStatus]:
    """Change the limit, with *create* also before the name is first used.

    *keyed* says that the change is one of a key, so that a name that is not in use is taken for
    one with keys.
    """

    async def ask(client: Any, before: SemaphoreInfo) -> tuple[SemaphoreInfo, SemaphoreStatus]:
        semaphore = before.semaphore(client, target.prefix, keyed=keyed)
        await change(semaphore)
        return before, await semaphore.status(0)

    return on(target, name, ask, create=create)


def _say(name: str, before: SemaphoreInfo, done: str, *, stays: bool = False) -> None:
    """Say what was *done*, and whether a limit *stays* for which nobody asks yet."""
    typer.echo(f"{printable(name)}: {done}")
    if stays and before.mode is None:
        text = "not in use yet: the limit applies from the first use until it is removed"
        typer.echo(text, err=True)


def revoke(
    name: Name,
    permit_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the permit, as shown by status --ids.")
    ],
    *,
    url: Url = LOCAL,
    prefix: Prefix = "redsem",
    cluster: IsCluster = False,
) -> None:
    """Revoke a permit, and grant it to the next waiter.

    The holder is notified in the same step. A holder that is cut off from Redis gets no
    notification and continues until its lease ends.

    Exits with 4 if the id holds no permit (any more).
    """
    if parse_permit_id(permit_id) is None:
        fail("not a permit id: status --ids shows them", USAGE_ERROR)

    target = Target(url, prefix, cluster)
    revoked = on(target, name, lambda c, info: info.semaphore(c, prefix).release(permit_id))
    if not revoked:
        fail(f"{name!r} has no permit with that id: nothing was changed", NOT_HELD)
    typer.echo(f"{printable(name)}: {changed.REVOKED}")


def delete(
    name: Name,
    *,
    yes: Annotated[bool, flag("--yes", "-y", help="Do not ask for confirmation.")] = False,
    url: Url = LOCAL,
    prefix: Prefix = "redsem",
    cluster: IsCluster = False,
) -> None:
    """Delete a semaphore with its holders, its queue and its set limit."""
    target = Target(url, prefix, cluster)
    current = on(target, name, lambda c, info: info.semaphore(c, prefix).status(0))
    if not yes:
        if sys.stdin is None:
            fail("delete asks for confirmation, but there is no input: use --yes", USAGE_ERROR)
        question = f"Delete {printable(name)} ({current.held} held, {current.waiting} waiting)?"
        if not _confirmed(question):
            fail("not deleted", FAILED)
    on(target, name, lambda c, info: info.semaphore(c, prefix).delete())
    typer.echo(f"{printable(name)} was {changed.DELETED}")


def _confirmed(question: str) -> bool:
    """Whether the answer on stdin is yes. Ctrl-C ends the command, as everywhere."""
    try:
        typer.echo(f"{question} [y/N]: ", nl=False, err=True)
        answer = sys.stdin.readline(LONGEST_ANSWER)
    except KeyboardInterrupt:
        typer.echo(err=True)
        interrupted()
    if not answer.endswith("\n"):  # the input has ended
        typer.echo(err=True)
    return answer.strip().lower() in {"y", "yes"}


COMMANDS = (ls, status, set_limit, pause, resume, back_off, revoke, delete)
