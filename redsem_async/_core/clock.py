"""The clock that trust is counted by, in seconds.

It never goes back, and a suspended host does not stop it.
"""

import functools
import time
from collections.abc import Callable

now: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):
    now = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
