"""The ``redsem-async`` command, whose needs are in the extras ``cli``, ``demo``, ``dashboard``."""

import logging
import sys

from ._stdout import StdoutFailed, end, tell_errors_apart

_FROM_EXTRAS = frozenset(
    {"click", "httpx", "jinja2", "prometheus_client", "rich", "starlette", "uvicorn"}
)

_EXTRAS = {"demo": "demo", "serve": "dashboard"}  # of commands, with "cli" for the others


def main() -> None:
    """Run the command line, as the console script ``redsem-async`` does."""
    # Commands print errors themselves, on one line.
    logging.getLogger("redsem_async").addHandler(logging.NullHandler())
    tell_errors_apart()
    try:
        from ._app import app

        app(prog_name="redsem-async")
    except StdoutFailed as failed:
        end(failed)
    except ModuleNotFoundError as error:
        if error.name not in _FROM_EXTRAS:
            raise
        extra = _EXTRAS.get(sys.argv[1] if len(sys.argv) > 1 else "", "cli")
        sys.exit(f"redsem-async: {error.name} is missing: pip install 'redsem-async[{extra}]'")
