"""The CPU time and memory of a process."""

import gc
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks._children import JobContext


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a process has used so far.

    Attributes:
        cpu: CPU time in seconds.
        memory: resident memory in bytes.
    """

    cpu: float
    memory: int


@dataclass(frozen=True, slots=True)
class ReportUsage:
    """A job that reports the usage of its process, after a garbage collection if *collect*."""

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
    # Elsewhere only the peak is known, on macOS in bytes.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
