"""The figures of docs/scaling.md: computed ones must not exceed measured ones."""

import random
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from benchmarks._scaling.capacity import (
    BUSY,
    CONNECTIONS,
    SECOND,
    Costs,
    Line,
    Process,
    largest_fleet,
    load_of,
)
from benchmarks._scaling.cases import free_pair, handed_pair, heartbeat, home_pair, refresh
from benchmarks._scaling.document import tables_in, with_tables
from benchmarks._scaling.figures import MODES, Mode
from benchmarks._scaling.server import Meter
from benchmarks._scaling.simulation import Outcome, Workload, simulate
from benchmarks._scaling.strategies import strategies
from tests.harness.servers import StartServer

pytestmark = pytest.mark.release

DOCUMENT = Path(__file__).parents[2] / "docs" / "scaling.md"
COSTS = Costs(pair=130.0, message=20.0, heartbeat=Line(40.0, 1.2), refresh=Line(30.0, 1.5))
WORKS = 3000

processes = st.builds(
    Process,
    lease=st.floats(0.05, 1000),
    held=st.integers(0, 10_000),
    waiting=st.integers(0, 1000),
    pairs=st.floats(0, 1000),
)


@given(processes)
def test_the_largest_fleet_uses_what_binds_it_and_no_more(process: Process) -> None:
    load = load_of(process, COSTS)
    largest = largest_fleet(load)
    used = largest.processes * load.total
    if largest.bound_by == "connections":
        assert largest.processes == CONNECTIONS and used <= BUSY * SECOND
    else:
        assert used == pytest.approx(BUSY * SECOND)
        assert load.total <= 4 * getattr(load, largest.bound_by)


def outcomes(workload: Workload) -> dict[str, Outcome]:
    rng = random.Random(7)
    return {
        name: simulate(policy, workload, WORKS, rng)
        for name, _, policy in strategies(workload, 10, rng)
    }


@pytest.fixture(scope="module")
def full() -> dict[str, Outcome]:
    """More tasks than permits at any time."""
    return outcomes(Workload(limit=100, tasks=125))


@pytest.fixture(scope="module")
def usual() -> dict[str, Outcome]:
    """A mean demand of 90 % of the permits."""
    return outcomes(Workload(limit=100, tasks=1000, think=1000 / 90 - 1))


def test_no_strategy_uses_more_than_there_is(
    full: dict[str, Outcome], usual: dict[str, Outcome]
) -> None:
    for outcome in (*full.values(), *usual.values()):
        assert 0 < outcome.utilisation <= 1 + 1e-9
        assert 0 <= outcome.idle <= 1 - outcome.utilisation + 1e-9
        assert 0 <= outcome.wait <= outcome.wait_p99
    assert full["one name"].utilisation == pytest.approx(1)
    assert full["one name"].idle == usual["one name"].idle == 0


@pytest.mark.parametrize("mode", MODES)
def test_the_cases_make_the_expected_calls(mode: Mode, embedded: StartServer) -> None:
    url = embedded().url
    with closing(Redis.from_url(url)) as client:
        meter = Meter(client, 0.02)
        single, grouped = (free_pair(url, meter, mode, size) for size in (1, 20))
        sparse = free_pair(url, meter, mode, 1, silence_ms=10_000)
        home = home_pair(url, meter, mode, 2)
        handed = handed_pair(url, meter, mode, 2)
        beat = heartbeat(url, meter, mode, 3)
        renewed = refresh(url, meter, 5)
    assert single.calls == pytest.approx(2) and grouped.calls == pytest.approx(2 / 20)
    assert sparse.calls == pytest.approx(2)
    assert home.calls == pytest.approx(2 / 2)
    assert handed.calls == pytest.approx(3 / 2)
    assert beat.calls == renewed.calls == pytest.approx(1)
    assert grouped.received < single.received
    assert all(min(cost) > 0 for cost in (single, grouped, sparse, home, handed, beat, renewed))


def test_a_table_is_replaced_and_nothing_else() -> None:
    text = "a\n<!-- table: x -->\nold\n<!-- end -->\nb\n<!-- table: y -->\n<!-- end -->\nc\n"
    once = with_tables(text, {"x": "| 1 |", "y": "| 2 |"})
    assert "old" not in once
    for kept in ("a\n<!-- table: x -->\n\n| 1 |\n\n<!-- end -->\nb\n", "| 2 |", "\nc\n"):
        assert kept in once
    assert with_tables(once, {"x": "| 1 |", "y": "| 2 |"}) == once
    with pytest.raises(ValueError, match="the document has tables"):
        with_tables(text, {"x": "| 1 |"})


def test_the_document_has_room_for_every_table() -> None:
    made = [
        "setup",
        "pairs",
        "calls",
        "library",
        "contention",
        "upkeep",
        "fleet",
        "memory",
        "names",
    ]
    assert sorted(tables_in(DOCUMENT.read_text(encoding="utf-8"))) == sorted([*made, "split"])
