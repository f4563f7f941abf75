"""Arguments and options shared by several commands."""

import asyncio
import contextlib
import re
from functools import partial
from typing import Annotated, Any

import typer

from redsem_async._core import config
from redsem_async._tools.discovery import names

from ._target import Target, before_the_command, connected, usage_error, valid_url

LOCAL = "redis://localhost:6379"
COMPLETION_TIMEOUT = 0.5  # seconds to wait for names when a shell completes
flag = partial(typer.Option, metavar="")  # an option without a value
_PLAIN = re.compile(r"[\w%+,./:=@-]+\Z")  # characters without meaning to a shell


def _name(ctx: typer.Context, name: str) -> str:
    return _text(ctx, name, "a name")


def valid_prefix(ctx: typer.Context, prefix: str | None) -> str | None:
    """Return *prefix*. An invalid one is a usage error."""
    prefix = before_the_command(ctx, "prefix", prefix)
    return None if prefix is None else _text(ctx, prefix, "a prefix")


def _cluster(ctx: typer.Context, cluster: bool) -> bool:  # noqa: FBT001 - as typer calls it
    return before_the_command(ctx, "cluster", cluster)


def _as_json(ctx: typer.Context, as_json: bool) -> bool:  # noqa: FBT001 - as typer calls it
    """Whether ``--json`` was given, before the command or after it."""
    return before_the_command(ctx, "as_json", as_json)


def _text(ctx: typer.Context, text: str, what: str) -> str:
    try:
        return config.text(text, what)
    except ValueError as error:
        usage_error(ctx, str(error))


def complete(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names that start with *incomplete*, except those with shell metacharacters.

    Returns none if the server does not reply in time.
    """
    given: dict[str, Any] = ctx.params
    url: str = given.get("url") or LOCAL
    target = Target(url, given.get("prefix") or "redsem", bool(given.get("cluster")))

    async def ask() -> list[str]:
        async with asyncio.timeout(COMPLETION_TIMEOUT):
            async with connected(target, connect_timeout=COMPLETION_TIMEOUT) as client:
                return await names(client, target.prefix)

    # An error message in the middle of a command line is worse than no completion.
    with contextlib.suppress(Exception):
        known = asyncio.run(ask())
        return [name for name in known if name.startswith(incomplete) and _PLAIN.match(name)]
    return []


Url = Annotated[
    str,
    typer.Option(
        envvar="REDIS_URL",
        help="redis://, rediss:// (TLS), unix:// or redis+sentinel://HOST,.../SERVICE, with"
        " user:password@ if needed.",
        show_envvar=True,
        show_default=LOCAL,
        callback=valid_url,
    ),
]
Prefix = Annotated[str, typer.Option(help="Prefix of the keys.", callback=valid_prefix)]
IsCluster = Annotated[
    bool, flag("--cluster", help="The URL is a node of a Redis Cluster.", callback=_cluster)
]
AsJson = Annotated[
    bool, flag("--json", help="Print JSON, and all else on stderr.", callback=_as_json)
]
Ids = Annotated[bool, flag("--ids", help="Show the ids and fencing tokens of permits.")]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the semaphore.", callback=_name, autocompletion=complete
    ),
]
MaxEntries = Annotated[
    int,
    typer.Option(
        "--most", min=0, help="Maximum number of holders, of waiters, and of keys, to list."
    ),
]
