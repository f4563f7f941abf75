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
    line_through,
    load_of,
    most_a_second,
    refresh_calls,
)
from benchmarks._scaling.cases import free_pair, handed_pair, heartbeat, home_pair, refresh
from benchmarks._scaling.document import number, rough, tables_in, with_tables
from benchmarks._scaling.figures import MODES, Case, Cost, Figures, Memory, Mode
from benchmarks._scaling.server import Meter
from benchmarks._scaling.simulation import Outcome, Workload, simulate
from benchmarks._scaling.slots import by_rank, equal, slots_of, worth
from benchmarks._scaling.strategies import strategies
from benchmarks._scaling.tables import costs_of, fleet, upkeep
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


# -- arithmetic


@given(processes, st.floats(1, 100))
def test_a_longer_lease_never_makes_the_fleet_smaller(process: Process, longer: float) -> None:
    """Refreshes and heartbeats are less frequent."""
    later = process._replace(lease=process.lease * longer)
    short, long = (largest_fleet(load_of(one, COSTS)) for one in (process, later))
    assert long.processes >= short.processes


@given(processes, st.integers(0, 1000), st.integers(0, 100), st.floats(0, 100))
def test_more_load_never_costs_less(
    process: Process, held: int, waiting: int, pairs: float
) -> None:
    """With more holders, waiters or pairs."""
    more = process._replace(
        held=process.held + held, waiting=process.waiting + waiting, pairs=process.pairs + pairs
    )
    assert load_of(more, COSTS).total >= load_of(process, COSTS).total


@given(processes)
def test_the_largest_fleet_uses_what_binds_it_and_no_more(process: Process) -> None:
    """Either the share of the core or the connections."""
    load = load_of(process, COSTS)
    largest = largest_fleet(load)
    used = largest.processes * load.total
    if largest.bound_by == "connections":
        assert largest.processes == CONNECTIONS and used <= BUSY * SECOND
    else:
        assert used == pytest.approx(BUSY * SECOND)
        assert load.total <= 4 * getattr(load, largest.bound_by)


@given(st.integers(1, 100_000))
def test_no_refresh_call_has_more_permits_than_the_library_sends(held: int) -> None:
    """And a process makes no more calls than it has permits."""
    assert 1250 * refresh_calls(held) >= held >= min(held, refresh_calls(held))


@given(st.floats(0.1, 1000), st.floats(0.1, 100_000))
def test_a_line_through_noise_has_no_negative_part(small: float, large: float) -> None:
    """Costs are never negative."""
    line = line_through((1, small), (100, large))
    assert line.fixed >= 0 and line.each >= 0
    if small <= large <= 100 * small:
        assert line.at(100) == pytest.approx(large)


def test_a_core_carries_what_its_seconds_have_room_for() -> None:
    """A share of a million microseconds per second."""
    assert most_a_second(10, 0.7) == pytest.approx(70_000)


# -- many names


@pytest.mark.parametrize("shards", [3, 48])
def test_many_names_nearly_use_all_shards(shards: int) -> None:
    """Few names leave shards idle, and one busy name limits the others."""
    few, many = (slots_of(count, random.Random(1)) for count in (10, 10_000))
    assert worth(many, equal(10_000), shards) <= shards
    assert worth(few, equal(10), shards) < worth(many, equal(10_000), shards)
    assert worth(many, by_rank(10_000), shards) < worth(many, equal(10_000), shards)
    assert worth(many, equal(10_000), shards) > 0.8 * shards
    assert worth(few[:1], equal(1), shards) == 1


# -- one limit in parts


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
    """Used and idle permits are shares of one limit."""
    for outcome in (*full.values(), *usual.values()):
        assert 0 < outcome.utilisation <= 1 + 1e-9
        assert 0 <= outcome.idle <= 1 - outcome.utilisation + 1e-9
        assert 0 <= outcome.wait <= outcome.wait_p99


def test_one_name_leaves_no_permit_idle_while_tasks_wait(
    full: dict[str, Outcome], usual: dict[str, Outcome]
) -> None:
    """It is the reference for all other strategies."""
    assert full["one name"].utilisation == pytest.approx(1)
    assert full["one name"].idle == usual["one name"].idle == 0


@pytest.mark.parametrize("parts", [4, 10])
def test_the_less_busy_of_two_is_no_worse_than_any(
    parts: int, full: dict[str, Outcome], usual: dict[str, Outcome]
) -> None:
    """The power of two choices."""
    any_of_them, of_two = f"{parts} names, any of them", f"{parts} names, the less busy of two"
    assert full[of_two].utilisation >= full[any_of_them].utilisation
    assert usual[of_two].idle <= usual[any_of_them].idle
    assert usual[of_two].wait <= usual[any_of_them].wait


def test_more_parts_leave_more_idle(full: dict[str, Outcome]) -> None:
    """This is the cost of dividing a limit."""
    assert full["10 names, any of them"].idle > full["4 names, any of them"].idle > 0


def test_blocks_save_pairs_in_redis(full: dict[str, Outcome]) -> None:
    """At full load, few pairs in Redis suffice for many pieces of work."""
    assert full["one name"].pairs == pytest.approx(1, rel=0.05)
    assert full["blocks of 1, each for 50 works"].pairs < 0.03
    assert full["blocks of 1, each for 10 works"].idle == 0
    wide, narrow = "blocks of 5, each for 50 works", "blocks of 2, each for 50 works"
    assert full[wide].idle > full[narrow].idle > 0


def test_a_seed_decides_everything() -> None:
    """A repeated run gives the figures of the document."""
    workload = Workload(limit=10, tasks=15)
    assert outcomes(workload) == outcomes(workload)


# -- measuring, and the document


@pytest.mark.parametrize("mode", MODES)
def test_the_cases_make_the_expected_calls(mode: Mode, embedded: StartServer) -> None:
    """They check their replies. A larger batch costs less per id."""
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


def test_tables_are_made_of_medians() -> None:
    """One slow round does not change them."""
    cost = Cost(cpu=100.0, script=50.0, received=500.0, sent=500.0, calls=1.0)
    slow = cost._replace(cpu=900.0)
    cases = [
        *(Case("heartbeat", "fair", size) for size in (1, 100)),
        *(Case("refresh", "fair", size) for size in (1, 1000)),
        *(Case(subject, "fair", 1) for subject in ("home pair", "handed pair")),
    ]
    figures, steady = (
        Figures("a server", "a machine", dict.fromkeys(cases, rounds), [Memory(1, 1, 1, 1)])
        for rounds in ([cost, slow, cost], [cost])
    )
    assert costs_of(figures) == costs_of(steady)
    assert upkeep(figures) == upkeep(steady)
    assert fleet(figures) == fleet(steady)


def test_a_table_is_replaced_and_nothing_else() -> None:
    """The text of the document is unchanged."""
    text = "a\n<!-- table: x -->\nold\n<!-- end -->\nb\n<!-- table: y -->\n<!-- end -->\nc\n"
    once = with_tables(text, {"x": "| 1 |", "y": "| 2 |"})
    assert "old" not in once
    for kept in ("a\n<!-- table: x -->\n\n| 1 |\n\n<!-- end -->\nb\n", "| 2 |", "\nc\n"):
        assert kept in once
    assert with_tables(once, {"x": "| 1 |", "y": "| 2 |"}) == once
    with pytest.raises(ValueError, match="the document has tables"):
        with_tables(text, {"x": "| 1 |"})


def test_the_document_has_room_for_every_table() -> None:
    """A run replaces all tables."""
    made = ["setup", "pairs", "calls", "library", "upkeep", "fleet", "memory", "names", "split"]
    assert sorted(tables_in(DOCUMENT.read_text(encoding="utf-8"))) == sorted(made)


def test_numbers_have_significant_digits_only() -> None:
    """Three for measured values, two for computed ones."""
    assert [number(value) for value in (0, 0.5, 3.14159, 31.4159, 314.159, 31415.9)] == [
        *("0", "0.500", "3.14", "31.4", "314", "31,416"),
    ]
    assert [rough(value) for value in (0.0, 0.314, 3.14, 31.4, 31415.9)] == [
        *("0", "0.31", "3.1", "31", "31,000"),
    ]
