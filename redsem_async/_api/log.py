"""What permits log."""

import logging
import traceback

from .bound import Bound

logger = logging.getLogger("redsem_async")

LOGGED_EVERY = 60.0  # seconds, for each semaphore


def line_outside() -> str | None:
    """The file and line of the code that called into this package."""
    for frame, line in traceback.walk_stack(None):
        if not frame.f_globals.get("__name__", "").startswith("redsem_async."):
            return f"{frame.f_code.co_filename}:{line}"
    return None


def log_cut(bound: Bound, pause: float, now: float) -> None:
    """Warn that a back-off of *pause* seconds was cut."""
    remote = bound.remote
    if now - remote.cut_logged_at >= LOGGED_EVERY:
        remote.cut_logged_at = now
        name = remote.address.name
        text = "a back-off of %r for %.1f s is cut to its max_back_off"
        logger.warning(text, name, pause, extra={"event": "back-off cut", "semaphore": name})
