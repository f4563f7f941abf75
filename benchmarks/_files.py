"""Raises the limit of open files, because every connection is a file."""

import contextlib
import sys

ENOUGH = 16_384


def allow_many_files() -> None:
    """Raise the soft limit of open files to the hard limit, at most to `ENOUGH`."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
