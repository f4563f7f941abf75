"""A measure of fairness."""

from collections.abc import Sequence


def jain(results: Sequence[float]) -> float:
    """Jain's index of *shares*: 1 if all are equal, 1/n if one of n has everything."""
    squares = sum(result * result for result in results)
    return sum(results) ** 2 / (len(results) * squares) if squares else 1.0
