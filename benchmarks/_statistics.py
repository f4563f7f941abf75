"""Measures of fairness."""

from collections.abc import Sequence


def jain(results: Sequence[float]) -> float:
    """How even *shares* are: 1 when all are the same, 1/n when one has everything."""
    squares = sum(result * result for result in results)
    return sum(results) ** 2 / (len(results) * squares) if squares else 1.0
