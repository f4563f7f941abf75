"""Arguments and options shared by several commands, and the values that they take."""

import asyncio
import contextlib
import functools
import math
import re
from collections.abc import Callable
from typing import Any, cast

import click

from redsem_async._core import config

from ._target import Target, before_the_command, usage_error, valid_url

LOCAL = "redis://localhost:6379"
LONGEST = 100  # characters of a wrong value in a message
COMPLETION_TIMEOUT = 0.5  # seconds to wait for names when a shell completes
_PLAIN = re.compile(r"[\w%+,./:=@-]+\Z")  # characters without meaning to a shell

Command = Callable[..., None]


class Number(click.ParamType[Any]):
    """A number from *low* to *high*, and a whole one without a fraction."""

    def __init__(self, name: str, low: float, high: float = math.inf) -> None:
        """Show *name* in the help. It is ``N`` for a whole number, else its unit."""
        self.name = name
        self._read = int if name == "n" else float
        self._low, self._high = low, high

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> float:
        """The number that *value* says, or a usage error that says what is right."""
        try:
            number = self._read(value)
        except ValueError:
            number = math.nan
        if not self._low <= number <= self._high or number == math.inf:
            whole = "whole number" if self._read is int else "number"
            right = f"from {self._low:g} to {self._high:g}"
            if self._high == math.inf:
                right = f"of at least {self._low:g}"
            self.fail(f"must be a {whole} {right}, not {str(value)[:LONGEST]!r}", param, ctx)
        return number


class Rated(click.ParamType[Any]):
    """The name of a rate, empty without one, and what *make* makes of up to *most* numbers."""

    def __init__(self, name: str, make: Callable[..., Any], most: int = 1) -> None:
        """Show *name* in the help."""
        self.name, self._make, self._most = name, make, most

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> tuple[str, Any]:
        """The name and what was made, or a usage error."""
        rate, _, text = value.rpartition("=")
        parts, number = text.split("/", self._most - 1), Number("number", 0)
        try:
            return rate, self._make(*(number.convert(part, param, ctx) for part in parts))
        except ValueError as error:
            self.fail(str(error).replace(" of a rate", ""), param, ctx)


class Text(click.ParamType[Any]):
    """Any text but the name of an option, before which the value was forgotten."""

    name = "text"

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> str:
        """The text, or a usage error."""
        options = ctx.command.params if ctx else ()
        if any(value in (*option.opts, *option.secondary_opts) for option in options):
            self.fail(f"needs a value, which {value} is not", param, ctx)
        return str(value)


TEXT = Text()


def _text(what: str, ctx: click.Context, text: str | None) -> str | None:
    try:
        return None if text is None else config.text(text, what)
    except ValueError as error:
        usage_error(ctx, str(error))


def _name(ctx: click.Context, _: object, name: str) -> str:
    return cast("str", _text("a name", ctx, name))


def _prefix(ctx: click.Context, param: click.Parameter, prefix: str | None) -> str | None:
    return _text("a prefix", ctx, before_the_command(ctx, param, prefix))


def complete(ctx: click.Context, _: object, incomplete: str) -> list[str]:
    """Names that start with *incomplete*, except those with shell metacharacters.

    Returns none if the server does not reply in time.
    """
    from redsem_async._tools.discovery import names

    from ._target import connected

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


def url_option(
    default: str | None = LOCAL,
    help: str = "redis://, rediss:// (TLS), unix:// or redis+sentinel://HOST,.../SERVICE, with"
    " user:password@ if needed.",
    **more: Any,
) -> Callable[[Command], Command]:
    """``--url``, for a command that uses *default* without it."""
    return option("--url", help, default=default, metavar="URL", callback=valid_url, **more)


def flag(*names: str, help: str, **more: Any) -> Callable[[Command], Command]:
    """An option without a value."""
    return click.option(*names, is_flag=True, help=help, **more)


def option(
    name: str,
    help: str,
    type: click.ParamType[Any] = TEXT,
    default: Any = None,
    **more: Any,
) -> Callable[[Command], Command]:
    """An option with a value. A *default* is shown unless there is none."""
    shown = default is not None
    return click.option(name, help=help, type=type, default=default, show_default=shown, **more)


prefix = option("--prefix", "Prefix of the keys.", default="redsem", callback=_prefix)
cluster = flag(
    "--cluster", help="The URL is a node of a Redis Cluster.", callback=before_the_command
)
as_json = flag(
    "--json", "as_json", help="Print JSON, and all else on stderr.", callback=before_the_command
)
ids = flag("--ids", help="Show the ids and fencing tokens of permits.")
name = click.argument("name", callback=_name, shell_complete=complete)


def most(default: int) -> Callable[[Command], Command]:
    """How many entries a status has, *default* without the option."""
    text = "Maximum number of holders, of waiters, and of keys, to list."
    return option("--most", text, Number("n", 0), default)


def on_target(command: Command) -> Command:
    """Give *command* the options of the server, which it gets as a `Target`."""

    @functools.wraps(command)
    def with_target(*, url: str, prefix: str, cluster: bool, **given: Any) -> None:
        command(Target(url, prefix, cluster), **given)

    return url_option(envvar="REDIS_URL", show_envvar=True)(prefix(cluster(with_target)))
