"""Counts who is inside: a semaphore that lets in too many is no faster for it."""

from collections.abc import Sequence


class CorrectnessError(Exception):
    """A library did not do what it is measured for."""


class LimitExceeded(CorrectnessError):
    """More were inside than the limit allows."""

    def __init__(self, inside: int, limit: int) -> None:
        super().__init__(f"{inside} were inside at once, limit {limit}")


class Leaked(CorrectnessError):
    """Permits are held although all were released."""

    def __init__(self, held: int, expected: int = 0) -> None:
        super().__init__(f"{held} permits are held where {expected} should be")


class LimitCheck:
    """Counts who is inside, in one process.

    Attributes:
        inside: how many are, now.
    """

    __slots__ = ("inside", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.inside = 0

    def enter(self) -> None:
        """Somebody is inside from now on; raises `TooManyInside`."""
        self.inside += 1
        if self.inside > self.limit:
            raise LimitExceeded(self.inside, self.limit)

    def leave(self) -> None:
        """Somebody is inside no more."""
        self.inside -= 1


def check_spans(spans: Sequence[tuple[float, float]], limit: int) -> None:
    """Raise `TooManyInside` if more than *limit* of these were at one time.

    They are from when until when each holder was inside, by a clock that all processes share.
    Each lies within the time for which its permit was held, so one that ends as another begins
    does not overlap with it.
    """
    changes = [(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans]
    inside = 0
    for _, change in sorted(changes):
        inside += change
        if inside > limit:
            raise LimitExceeded(inside, limit)
