"""What a process uses."""

import gc
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks._children import JobContext


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used so far.

    Attributes:
        cpu: seconds.
        memory: bytes that are resident.
    """

    cpu: float
    memory: int


@dataclass(frozen=True, slots=True)
class ReportUsage:
    """An order: say what you use, of memory what is left when the garbage is gone."""

    collect: bool = False

    async def run(self, context: JobContext) -> Usage:
        if self.collect:
            gc.collect()
        times = os.times()
        return Usage(times.user + times.system, _resident())


def _resident() -> int:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    # Elsewhere only the most that it ever was is known, here in bytes.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
