"""The commands in groups, the options of all of them, and the help. Other modules do the work."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import Any

import click
from click.shell_completion import get_completion_class

from . import _commands as act
from ._doctor import doctor
from ._options import flag, option, url_option
from ._run import run
from ._serve import serve
from ._target import INTERRUPTED, USAGE_ERROR, fail, say
from ._try import bench, demo
from ._watch import watch

_EPILOG = """
Exit codes: 0 success; 1 Redis is unreachable or returned an error, doctor found a problem, or
delete was not confirmed; 2 usage error; 3 no semaphore of that name; 4 the id to revoke holds no
permit; 130 interrupted, where watch and serve exit with 0. run has other codes.

Documentation: https://redsem-async.github.io/redsem-async/
"""

GROUPS = {
    "Look": (act.ls, act.status, watch, serve, doctor),
    "Act": (act.set_limit, act.pause, act.resume, act.back_off, act.revoke, act.delete),
    "Run": (run,),
    "Try": (demo, bench),
}


class Commands(click.Group):
    """The commands by what they are for, and errors of usage on one line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A list for each group, in the order of `GROUPS`."""
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(str(c.name), c.get_short_help_str(99)) for c in commands])

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command, and exit with its code."""
        try:
            sys.exit(super().main(*arguments, **options | {"standalone_mode": False}))
        except click.exceptions.NoArgsIsHelpError as without:
            without.show()
            sys.exit(USAGE_ERROR)
        except click.UsageError as error:
            say(_sentence(error))
            sys.exit(USAGE_ERROR)
        except click.Abort:
            say("interrupted")
            sys.exit(INTERRUPTED)


def _sentence(error: click.UsageError) -> str:
    """What was wrong, and where to find what is right."""
    path = error.ctx.command_path if error.ctx else "redsem-async"
    if isinstance(error, click.NoSuchOption) and error.option_name == "--json":
        return f"{path.split()[-1]} prints no JSON"
    if isinstance(error, click.MissingParameter) or not isinstance(error, click.BadParameter):
        text = error.format_message().rstrip(".")
        return f"{text[0].lower()}{text[1:]} ({path} -h lists what there is)"
    param = error.param
    is_option = isinstance(param, click.Option)
    which = param.opts[0] if param and is_option else param.human_readable_name if param else path
    return f"{which} {error.message}"


def _version(ctx: click.Context, _: object, wanted: bool) -> None:  # noqa: FBT001 - as click calls
    if wanted:
        click.echo(
            f"redsem-async {_version_of('redsem-async')}"
            f" (redis-py {_version_of('redis')}, Python {platform.python_version()})"
        )
        ctx.exit()


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:  # run from a checkout
        return "(not installed)"


_STARTUP = {  # the file that each shell reads, and how it gets the completion
    "bash": (".bashrc", 'eval "$(_REDSEM_ASYNC_COMPLETE=bash_source redsem-async)"\n'),
    "zsh": (".zshrc", 'eval "$(_REDSEM_ASYNC_COMPLETE=zsh_source redsem-async)"\n'),
    "fish": (
        ".config/fish/completions/redsem-async.fish",
        "_REDSEM_ASYNC_COMPLETE=fish_source redsem-async | source\n",
    ),
}


def _completion(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:  # noqa: FBT001
    if not wanted:
        return
    shell = PurePath(os.environ.get("SHELL", "")).name
    kind = get_completion_class(shell)
    if kind is None or shell not in _STARTUP:
        fail(f"completion is for bash, zsh and fish, and SHELL is {shell!r}", USAGE_ERROR)
    if param.name == "show_completion":
        click.echo(kind(ctx.command, {}, "redsem-async", "_REDSEM_ASYNC_COMPLETE").source())
        ctx.exit()
    name, line = _STARTUP[shell]
    path = Path.home() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or line not in path.read_text():
        with path.open("a") as startup:
            startup.write(line)
    click.echo(f"completion is in {path}, for shells that you start from now on")
    ctx.exit()


_once: dict[str, Any] = {"is_eager": True, "expose_value": False, "callback": _completion}


@click.group(
    "redsem-async",
    cls=Commands,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@flag("--version", help="Print the versions and exit.", **_once | {"callback": _version})
@url_option(None, help="URL of the server, for every command.", expose_value=True)
@option("--prefix", "Prefix of the keys, for every command.")
@flag("--cluster", help="The URL is a node of a cluster, for every command.", default=None)
@flag("--json", "as_json", help="Print JSON, for every command that supports it.", default=None)
@flag("--install-completion", help="Complete commands and names in your shell.", **_once)
@flag("--show-completion", help="Print the completion for your shell.", **_once)
def app(**_: object) -> None:
    """Distributed semaphores for asyncio, backed by Redis."""


for commands in GROUPS.values():
    for command in commands:
        app.add_command(command)
