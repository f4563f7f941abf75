"""The ``redsem-async`` command. Its dependencies are in the extras ``cli`` and ``demo``."""

import contextlib
import logging
import sys
from typing import Any, cast

_FROM_EXTRAS = frozenset({"httpx", "rich", "typer"})


def main() -> None:
    """Run the command line; the console script ``redsem-async``."""
    # Commands print errors themselves, on one line.
    logging.getLogger("redsem_async").addHandler(logging.NullHandler())
    with contextlib.suppress(AttributeError):  # as stderr does: names may not fit the encoding
        cast("Any", sys.stdout).reconfigure(errors="backslashreplace")
    try:
        from ._app import app

        app(prog_name="redsem-async")
    except ModuleNotFoundError as error:
        if error.name not in _FROM_EXTRAS:
            raise
        extra = "demo" if sys.argv[1:2] == ["demo"] else "cli"
        sys.exit(f"{error.name} is missing: pip install 'redsem-async[{extra}]'")
