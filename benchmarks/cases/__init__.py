"""All cases, in order."""

from benchmarks.cases import (
    p1_lone_pair,
    p2_many_tasks,
    p3_contention,
    p4_handoff,
    p5_idle_waiters,
    p7_idle_holders,
    p8_memory,
    p9_processes,
    p10_distance,
    p12_recall,
    p13_keys,
)
from benchmarks.cases._base import Case

CASES: dict[str, Case] = {
    module.CASE.name: module.CASE
    for module in (
        p1_lone_pair,
        p2_many_tasks,
        p3_contention,
        p4_handoff,
        p5_idle_waiters,
        p7_idle_holders,
        p8_memory,
        p9_processes,
        p10_distance,
        p12_recall,
        p13_keys,
    )
}

__all__ = ["CASES", "Case"]
