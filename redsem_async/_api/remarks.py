"""What is logged about permits, once for each semaphore, or once a minute."""

import inspect
import logging
import math
import traceback

from redsem_async._core.clock import now as clock
from redsem_async._core.log import facts
from redsem_async._hub.remote_semaphore import RemoteSemaphore

logger = logging.getLogger("redsem_async")

LOGGED_EVERY = 60.0  # seconds


def line_outside() -> str | None:
    """The file and line of the code that called into this package."""
    for frame, line in traceback.walk_stack(inspect.currentframe()):
        if not frame.f_globals.get("__name__", "").startswith("redsem_async."):
            return f"{frame.f_code.co_filename}:{line}"
    return None


def _log(remote: RemoteSemaphore, event: str, text: str, *args: object, **others: object) -> None:
    now, name = clock(), remote.name
    if now - remote.logged_at.get(event, -math.inf) >= LOGGED_EVERY:
        remote.logged_at[event] = now
        logger.warning(text, name, *args, extra=facts(event, semaphore=name, **others))


def log_dropped(remote: RemoteSemaphore, acquired_at: str | None) -> None:
    """A permit was garbage-collected while it was held."""
    where = f", acquired at {acquired_at}," if acquired_at else ""
    text = (
        "a permit of %r%s was garbage-collected without being released, so it no longer limits"
        " anything: use 'async with', or keep the Permit until its release"
    )
    _log(remote, "dropped", text, where, acquired_at=acquired_at)


def log_cut(remote: RemoteSemaphore, pause: float) -> None:
    """A back-off was to last for longer than the semaphore allows."""
    text = "a back-off of %r for %.1f s was shortened to max_back_off"
    _log(remote, "back-off cut", text, pause)
