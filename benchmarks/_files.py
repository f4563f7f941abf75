"""A connection is a file, and a process may have few of those open."""

import contextlib
import sys

ENOUGH = 16_384


def allow_many_files() -> None:
    """Let this process have as many files open as it may, up to `ENOUGH`."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
