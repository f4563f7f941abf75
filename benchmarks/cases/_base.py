"""The type of a case."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from benchmarks._results import Table
from benchmarks._setup import Setup


@dataclass(frozen=True, slots=True)
class Case:
    """One benchmark.

    Attributes:
        name: name such as ``P1``.
        title: title for reports.
        measure: runs the benchmark.
        both_loops: whether to measure on both event loops.
    """

    name: str
    title: str
    measure: Callable[[Setup], Coroutine[Any, Any, Table]]
    both_loops: bool = False
