"""The cases, in their order."""

from benchmarks.cases import p1_lone_pair, p2_many_tasks, p3_contention
from benchmarks.cases._base import Case

CASES = {module.CASE.name: module.CASE for module in (p1_lone_pair, p2_many_tasks, p3_contention)}

__all__ = ["CASES", "Case"]
