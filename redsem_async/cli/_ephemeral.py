"""The Redis server of `bench` and `demo`: the user's, or an embedded one for this run only."""

import contextlib
from collections.abc import Generator

from redsem_async.testing import embedded_redis

from ._target import display_url


@contextlib.contextmanager
def server_for(url: str | None) -> Generator[tuple[str, str]]:
    """The URL of a server, and a description of it without credentials.

    Without *url*, an embedded server runs for the length of the block.

    Raises:
        ServerNotFound, ServerDidNotStart: no embedded server is available.
    """
    if url is not None:
        yield url, display_url(url)
        return
    with embedded_redis() as running:
        version = ".".join(map(str, running.version))
        yield running.url, f"{running.flavour.capitalize()} {version}, embedded, at {running.url}"


def first_error(error: Exception) -> Exception:
    """The first error of a group: tasks with a common cause fail together."""
    match error:
        case ExceptionGroup(exceptions=[one, *_]):
            return first_error(one)
        case _:
            return error
