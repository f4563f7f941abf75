"""Thousands of short schedules, each drawn from a seed, which a failure names."""

import os
from collections import Counter

import pytest

from tests.worlds.simulation.schedule import explain, simulate

CHUNKS = 24
SCHEDULES = 100  # of each chunk

FAULTS = {
    *("acquire sent again", "answer BUSY", "answer READ_ONLY", "backed off", "back-off by hand"),
    *("command of a closed link", "cut", "deafen", "late duplicate", "lose", "order of a delete"),
    *("order of a limit", "refuse", "trouble"),
}


RARE = {  # that a chunk may do without, and all of them together may not
    *("adoption", "answer NO_MEMORY", "answer REFUSED", "answer RETRY_NOW", "closed client"),
    *("detach cancelled", "detach failed", "evict", "flush", "foreign release", "forget", "hang"),
    *("kill", "late adopt", "late back_off", "late delete", "late detach", "late set_limit"),
    *("press", "refuse all", "stall", "stop"),
}


def seeds_of(chunk: int) -> range:
    """The seeds of a chunk, or the one that REDSEM_SEED names."""
    if seed := os.environ.get("REDSEM_SEED"):
        return range(int(seed), int(seed) + (chunk == 0))
    return range(chunk * SCHEDULES, (chunk + 1) * SCHEDULES)


@pytest.mark.timeout(300)  # some seconds of computing, wherever the machine has them to give
@pytest.mark.parametrize(
    "chunk", [pytest.param(n, marks=pytest.mark.release if n > 0 else ()) for n in range(CHUNKS)]
)
def test_every_promise_is_kept_whatever_happens(chunk: int) -> None:
    """Faults come together in ways that nobody thinks of."""
    faults: Counter[str] = Counter()
    for seed in seeds_of(chunk):
        outcome = simulate(seed)
        if outcome.violations:
            raise explain(outcome)
        faults += outcome.faults
    if "REDSEM_SEED" not in os.environ:
        assert not FAULTS - faults.keys()


def test_a_seed_is_the_same_run_each_time() -> None:
    """A failure that cannot be repeated cannot be understood."""
    for seed in range(10):
        first, second = simulate(seed, traced=True), simulate(seed, traced=True)
        assert first.trace
        assert first.trace == second.trace
        assert first.faults == second.faults


@pytest.mark.release
@pytest.mark.timeout(300)
def test_what_is_rare_happens_all_the_same() -> None:
    """What never happened was not tested."""
    missing = set(RARE)
    for seed in range(CHUNKS * SCHEDULES):
        missing -= simulate(seed).faults.keys()
        if not missing:
            return
    raise AssertionError(f"never happened: {missing}")
