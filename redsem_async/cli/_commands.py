"""The operator's commands, which inspect semaphores, set limits and revoke permits."""

import json
import shlex
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from redsem_async import AnySemaphore, SemaphoreError, SemaphoreStatus
from redsem_async._core import config
from redsem_async._core.keys import parse_permit_id
from redsem_async._tools import changed, discovery
from redsem_async._tools.discovery import SemaphoreInfo

from ._options import Number, as_json, flag, ids, most, name, on_target, option
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
    say,
)

T = TypeVar("T")

MOST_NAMED = 10  # names in a message
# A negative number as in "set-limit x -1" is no option, so that the command says what is wrong.
_NEGATIVE = {"ignore_unknown_options": True}

CREATE = flag("--create", help="Allow a name that is not in use yet.")
KEY = option("--key", "Only for this key. Default: all requests.")


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


@click.command
@click.argument("pattern", default="*")
@as_json
@on_target
def ls(target: Target, pattern: str, *, as_json: bool) -> None:
    """List the semaphores in Redis, found by SCAN.

    PATTERN is a glob of names, such as 'tenant:*'.
    """
    from ._render import as_dict, console, list_table

    async def ask() -> list[discovery.ListEntry]:
        async with connected(target) as client:
            if not target.cluster and (await hello(client)).get("mode") == "cluster":
                # It stores only some of them.
                fail(f"{target.display_url}: {CLUSTER_NODE}", FAILED)
            wanted = await discovery.names(client, target.prefix, pattern)
            return await discovery.list_entries(client, target.prefix, wanted)

    rows = run(ask(), target)
    if as_json:
        data = [
            {"name": row.info.name, "error": describe(row.status)}
            | dict.fromkeys(("state", "attention"), "unreadable")
            if isinstance(row.status, SemaphoreError)
            else as_dict(row.info, row.status, whole=False)
            for row in rows
        ]
        click.echo(json.dumps(data, indent=2))
    elif rows:
        shown = console(fitting=True)
        shown.print(list_table(rows, shown.width))
    else:
        say(run(_nothing_found(target, pattern), target))
    errors = [row.status for row in rows if isinstance(row.status, SemaphoreError)]
    for error in errors:
        say(describe(error))
    if errors:
        raise click.exceptions.Exit(FAILED)


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


@click.command
@name
@most(100)
@option("--keys-after", "List the keys after this one, the last of the previous list.")
@ids
@as_json
@on_target
def status(
    target: Target, name: str, most: int, keys_after: str | None, *, ids: bool, as_json: bool
) -> None:
    """Show holders, waiters and keys."""
    from ._render import as_dict, console, details

    async def ask(client: Any, info: SemaphoreInfo) -> tuple[SemaphoreInfo, SemaphoreStatus]:
        _check_key(info.semaphore(client, target.prefix), keys_after)
        return info, await discovery.status_of(client, target.prefix, info, most, keys_after)

    info, current = on(target, name, ask)
    if as_json:
        click.echo(json.dumps(as_dict(info, current, whole=True), indent=2))
    else:
        console(fitting=not ids).print(details(info, current, ids=ids))
        used = [key.key for key in current.keys if key.held or key.waiting or key.back_off]
        if 0 < most == len(used):
            last = shlex.quote(used[-1])
            click.echo(printable(f"more keys than {most}: --keys-after {last} lists the next"))


def _check_key(semaphore: AnySemaphore, key: str | None) -> None:
    """Fail with a usage error if there is a *key*, but requests have none."""
    if key is not None and not semaphore.keyed:
        fail(f"{semaphore.name!r} has no keys", USAGE_ERROR)


# -- changing


@click.command(context_settings=_NEGATIVE)
@name
@click.argument("limit", required=False, type=Number("n", 0))
@flag("--unset", help="Remove the set limit. The declared limits apply again.")
@KEY
@CREATE
@on_target
def set_limit(
    target: Target, name: str, limit: int | None, key: str | None, *, unset: bool, create: bool
) -> None:
    """Set a limit that overrides all declared limits until it is removed. 0 pauses.

    A higher limit serves waiters at once. A lower limit revokes no permit. New permits are
    granted once fewer than the limit are held. Redis stores the set limit. If Redis loses its
    data, set it again.

    With --key, the limit of one key is set.
    """
    if unset == (limit is not None):
        fail("give either a limit or --unset", USAGE_ERROR)

    def change(semaphore: AnySemaphore) -> Awaitable[None]:
        _check_key(semaphore, key)
        return semaphore.set_limit(limit, key=key)

    before, after = _change(target, name, change, create=create, keyed=key is not None)
    done = changed.limit_set(limit, before, after)
    if key is not None:
        done = changed.key_limit_set(key, limit)
    _say(name, before, done, stays=limit is not None)


@click.command
@name
@CREATE
@on_target
def pause(target: Target, name: str, *, create: bool) -> None:
    """Set a limit of 0, so that no permits are granted until `resume`.

    Current holders keep their permits, and waiters stay queued. A pause is not a safety lock,
    because it is lost if Redis loses its data.
    """
    before, after = _change(target, name, lambda sem: sem.pause(), create=create)
    _say(name, before, changed.paused(before, after), stays=True)


@click.command
@name
@on_target
def resume(target: Target, name: str) -> None:
    """End a pause. The limit from before the pause applies again."""
    before, after = _change(target, name, lambda sem: sem.resume())
    _say(name, before, changed.resumed(before, after))


@click.command(context_settings=_NEGATIVE)
@name
@click.argument("seconds", type=Number("seconds", 0, config.LONGEST_BACK_OFF))
@KEY
@CREATE
@on_target
def back_off(target: Target, name: str, seconds: float, key: str | None, *, create: bool) -> None:
    """Grant no permits for some seconds, then more and more, up to the limit. 0 ends it.

    Unlike a pause, a back-off ends by itself. Current holders keep their permits, and waiters
    stay queued.
    """

    def change(semaphore: AnySemaphore) -> Awaitable[None]:
        _check_key(semaphore, key)
        return semaphore.back_off(seconds, key=key)

    before, _ = _change(target, name, change, create=create, keyed=key is not None)
    _say(name, before, changed.backed_off(seconds, key))


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
    click.echo(printable(f"{name}: {done}"))
    if stays and before.mode is None:
        say("not in use yet: the limit applies from the first use until it is removed")


@click.command
@name
@click.argument("permit_id", metavar="ID")
@on_target
def revoke(target: Target, name: str, permit_id: str) -> None:
    """Revoke a permit, and grant it to the next waiter. status --ids shows the ids.

    The holder is notified in the same step. A holder that is cut off from Redis gets no
    notification and continues until its lease ends.

    Exits with 4 if the id holds no permit (any more).
    """
    if parse_permit_id(permit_id) is None:
        fail("not a permit id: status --ids shows them", USAGE_ERROR)

    revoked = on(target, name, lambda c, info: info.semaphore(c, target.prefix).release(permit_id))
    if not revoked:
        fail(f"{name!r} has no permit with that id: nothing was changed", NOT_HELD)
    click.echo(f"{printable(name)}: {changed.REVOKED}")


@click.command
@name
@flag("--yes", "-y", help="Do not ask for confirmation.")
@on_target
def delete(target: Target, name: str, *, yes: bool) -> None:
    """Delete a semaphore with its holders, its queue and its set limit."""
    current = on(target, name, lambda c, info: info.semaphore(c, target.prefix).status(0))
    if not yes:
        if sys.stdin is None:
            fail("delete asks for confirmation, but there is no input: use --yes", USAGE_ERROR)
        _confirm(f"Delete {printable(name)} ({current.held} held, {current.waiting} waiting)?")
    on(target, name, lambda c, info: info.semaphore(c, target.prefix).delete())
    click.echo(f"{printable(name)} was {changed.DELETED}")


def _confirm(question: str) -> None:
    """Exit, unless the answer on stdin is yes."""
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort as abort:
        click.echo(err=True)
        if isinstance(abort.__context__, KeyboardInterrupt):  # not the end of the input
            interrupted()
    fail("not deleted", FAILED)
