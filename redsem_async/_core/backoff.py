"""Delays between attempts, growing and jittered, given a source of randomness."""

from collections.abc import Callable, Iterator

FIRST = 0.01  # seconds


def delays(random: Callable[[], float], *, longest: float = 1.0) -> Iterator[float]:
    """Yield delays in seconds. Each is at most twice the last, and no two processes are in step.

    Half of each delay is random. All random ("full jitter") would now and then retry at once.
    """
    delay = FIRST
    while True:
        yield delay * (0.5 + 0.5 * random())
        delay = min(2 * delay, longest)
