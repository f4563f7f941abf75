"""The clock that trust is counted by."""

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> float:
        """Seconds on a clock that never goes back, and that a suspended host does not stop."""
        return max(time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic())

else:
    now = time.monotonic
