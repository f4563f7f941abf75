"""The Redis server of `bench` and `demo`, the user's or an embedded one for this run only.

It also has how the server's errors end these commands.
"""

import contextlib
from collections.abc import Generator

from redsem_async.testing import ServerDidNotStart, ServerNotFound, embedded_redis

from ._target import FAILED, REDIS_ERRORS, USAGE_ERROR, Target, describe, fail, interrupted

_EXPECTED = (*REDIS_ERRORS, ServerDidNotStart, ServerNotFound)


@contextlib.contextmanager
def server_for(url: str | None, prefix: str, *, cluster: bool) -> Generator[tuple[Target, str]]:
    """The server, or cluster, at *url*, and a description of it without credentials.

    Without *url*, an embedded server, which is no cluster, runs for the length of the block.

    Raises:
        ServerNotFound, ServerDidNotStart: no embedded server is available.
    """
    if url is not None:
        target = Target(url, prefix, cluster)
        yield target, target.display_url
        return
    if cluster:
        fail("--cluster needs --url, because the embedded server is no cluster", USAGE_ERROR)
    with embedded_redis() as running:
        version = ".".join(map(str, running.version))
        what = f"{running.flavour.capitalize()} {version}, embedded, at {running.url}"
        yield Target(running.url, prefix), what


@contextlib.contextmanager
def errors_end_the_command() -> Generator[None]:
    """Print an error of Redis or of the embedded server on one line, and exit."""
    try:
        yield
    except KeyboardInterrupt:
        interrupted()
    except (*_EXPECTED, ExceptionGroup) as error:
        first = _first(error)
        if not isinstance(first, _EXPECTED):
            raise first from None
        fail(describe(first), FAILED)


def _first(error: Exception) -> Exception:
    """The first error of a group, because tasks with a common cause fail together."""
    match error:
        case ExceptionGroup(exceptions=[one, *_]):
            return _first(one)
        case _:
            return error
