"""What a case is."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from benchmarks._results import Table
from benchmarks._setup import Setup


@dataclass(frozen=True, slots=True)
class Case:
    """Something to measure.

    Attributes:
        name: such as ``P1``.
        title: what it measures.
        measure: does it.
        both_loops: whether the event loop matters enough to measure it on both.
    """

    name: str
    title: str
    measure: Callable[[Setup], Coroutine[Any, Any, Table]]
    both_loops: bool = False
