"""What is explored in every run of the tests, and more of it with ``REDSEM_MODELCHECK=long``."""

import os
from collections.abc import Iterator

from redsem_async._keys import Mode

from .scenario import Budget, Event, Scenario

LONG = os.environ.get("REDSEM_MODELCHECK") == "long"
LEASES = (3, 3, 3)
MODES: tuple[Mode, Mode] = ("fair", "zset")


def asks(*clients: int) -> tuple[Event, ...]:
    """Each asks, and reads the answer."""
    return tuple((what, c, 0) for c in clients for what in ("begin", "run", "receive"))


def _scenarios() -> Iterator[Scenario]:
    all_alike = ((0, 1), (1, 2), (0, 1))
    for mode in MODES:
        # A hint is lost with the process that it was for: then the heartbeat is what is left.
        fair = mode == "fair"
        third = (1,) if fair or LONG else ()
        alike = all_alike if third else ((0, 1),)
        yield Scenario(
            *("cancellations", mode, ((1,), (1,), (1,)), (2, 2, 2), LEASES),
            Budget(cancels=3),
            twins=all_alike,
        )
        yield Scenario(
            *("two requests each", mode, ((1, 1), (1, 1), ()), (1, 1, 1), LEASES),
            Budget(cancels=3 if LONG else 1),
            twins=((0, 1),),
        )
        yield Scenario(
            *("weights", mode, ((2,), (1,), (1, 1) if LONG else (1,)), (2, 2, 2), LEASES),
            Budget(cancels=1),
        )
        yield Scenario(
            *("mixed limits", mode, ((1,), (1, 1) if LONG else (1,), (1,)), (2, 1, 2), LEASES),
            Budget(cancels=1),
            twins=((0, 2),),
            # A hint that ends at a client with a lower limit is not passed on to a higher one.
            prompt=fair or not LONG,
        )
        yield Scenario(
            *("a connection breaks", mode, ((1,), (1,), (1,)), (2, 2, 2), LEASES),
            Budget(cancels=1, cuts=1, half_open=1),
            twins=all_alike,
            prompt=fair,
        )
        yield Scenario(
            *("connections break", mode, ((1, 1), (1,), ()), (1, 1, 1), LEASES),
            Budget(cancels=1 if fair or LONG else 0, cuts=1, half_open=1, drops=1 if LONG else 0),
            prompt=fair and not LONG,
        )
        yield Scenario(
            *("a process dies", mode, ((1,), (1,), third), (1, 1, 1), LEASES),
            Budget(ticks=(4 if fair else 2) if LONG else 3, kills=1, half_open=1),
            twins=alike,
            prompt=fair,
        )
        yield Scenario(
            *("a process is stopped", mode, ((1,), (1,), third), (1, 1, 1), LEASES),
            Budget(ticks=(4 if fair else 2) if LONG else 3, stops=1),
            twins=alike,
            prompt=fair,
        )
        yield Scenario(
            *("slow trips", mode, ((1,), (1,), ()), (1, 1, 1), LEASES),
            Budget(ticks=4 if LONG else 3, refreshes=1, cancels=1 if LONG else 0),
            twins=((0, 1),),
            prompt=False,
        )
        yield Scenario(
            *("short leases", mode, ((1,), (1,), (1,)), (2, 2, 2), (1, 1, 1)),
            Budget(ticks=2, refreshes=1, kills=1 if LONG else 0),
            tick_ms=500,
            twins=all_alike,
            prompt=fair,
        )


SCENARIOS = list(_scenarios())
