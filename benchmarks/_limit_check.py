"""Checks the limit while measuring: exceeding it must not make a library look fast."""

from collections.abc import Sequence


class CorrectnessError(Exception):
    """A library did not behave as a semaphore."""


class LimitExceeded(CorrectnessError):
    """More permits were in use at once than the limit allows."""

    def __init__(self, inside: int, limit: int) -> None:
        super().__init__(f"{inside} permits were in use at once, limit {limit}")


class Leaked(CorrectnessError):
    """Permits are still held after all were released."""

    def __init__(self, held: int, expected: int = 0) -> None:
        super().__init__(f"{held} permits are held, expected {expected}")


class LimitCheck:
    """Counts the permits in use in one process.

    Attributes:
        inside: the number of permits in use.
    """

    __slots__ = ("inside", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.inside = 0

    def enter(self) -> None:
        """A permit was acquired; raises `LimitExceeded`."""
        self.inside += 1
        if self.inside > self.limit:
            raise LimitExceeded(self.inside, self.limit)

    def leave(self) -> None:
        """A permit is about to be released."""
        self.inside -= 1


def check_spans(spans: Sequence[tuple[float, float]], limit: int) -> None:
    """Raise `LimitExceeded` if more than *limit* spans overlap.

    A span is the start and the end of the use of a permit, by a clock that all processes share.
    It lies within the time for which the permit was held. A span that ends when another begins
    does not overlap with it.
    """
    changes = [(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans]
    inside = 0
    for _, change in sorted(changes):
        inside += change
        if inside > limit:
            raise LimitExceeded(inside, limit)
