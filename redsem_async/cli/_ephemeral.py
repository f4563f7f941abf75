"""The Redis that a command uses: the user's, or one that lives as long as the command."""

import contextlib
from collections.abc import Generator

from redsem_async.testing import embedded_redis

from ._target import display_url


@contextlib.contextmanager
def server_for(url: str | None) -> Generator[tuple[str, str]]:
    """The address of a server, and what to call it: without the password.

    Raises:
        ServerNotFound, ServerDidNotStart: there is no server of our own.
    """
    if url is not None:
        yield url, display_url(url)
        return
    with embedded_redis() as running:
        version = ".".join(map(str, running.version))
        yield running.url, f"{running.flavour.capitalize()} {version}, embedded, at {running.url}"


def first_error(error: Exception) -> Exception:
    """Tasks fail together when their cause is one; the first tells it."""
    match error:
        case ExceptionGroup(exceptions=[one, *_]):
            return first_error(one)
        case _:
            return error
