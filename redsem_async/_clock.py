"""The clock that trust is counted by."""

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> float:
        """Seconds on a clock that never goes back, and that a suspended host does not stop."""
        since_boot, monotonic = time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic()
        return max(monotonic, since_boot)

else:
    now = time.monotonic
