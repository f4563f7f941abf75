"""What is logged about permits, once for each semaphore, or once a minute."""

import inspect
import logging
import traceback

from redsem_async._core.clock import now as clock
from redsem_async._hub.remote_semaphore import RemoteSemaphore

logger = logging.getLogger("redsem_async")

LOGGED_EVERY = 60.0  # seconds


def line_outside() -> str | None:
    """The file and line of the code that called into this package."""
    for frame, line in traceback.walk_stack(inspect.currentframe()):
        if not frame.f_globals.get("__name__", "").startswith("redsem_async."):
            return f"{frame.f_code.co_filename}:{line}"
    return None


def log_dropped(remote: RemoteSemaphore, acquired_at: str | None) -> None:
    """A permit was garbage-collected while it was held."""
    now = clock()
    if now - remote.drop_logged_at >= LOGGED_EVERY:
        remote.drop_logged_at = now
        where = f", acquired at {acquired_at}," if acquired_at else ""
        text = (
            "a permit of %r%s was garbage-collected without being released, so it no longer limits"
            " anything: use 'async with', or keep the Permit until its release"
        )
        name, extra = remote.address.name, {"event": "dropped", "acquired_at": acquired_at}
        logger.warning(text, name, where, extra={**extra, "semaphore": name})


def log_cut(remote: RemoteSemaphore, pause: float) -> None:
    """A back-off was to last for longer than the semaphore allows."""
    now = clock()
    if now - remote.cut_logged_at >= LOGGED_EVERY:
        remote.cut_logged_at = now
        name = remote.address.name
        text = "a back-off of %r for %.1f s was shortened to max_back_off"
        logger.warning(text, name, pause, extra={"event": "back-off cut", "semaphore": name})
