"""The measurements: incorrect libraries fail, and missed aims are reported."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext

import pytest

from benchmarks._aims import missed
from benchmarks._bench import Bench, Effort, Leaked, LimitExceeded, Row, Table, percentiles
from benchmarks._comparison import Comparison, Load, burst, check_spans
from benchmarks._libraries import IN_PROCESS, Library, OpenSemaphore, Options
from benchmarks._report import as_markdown

pytestmark = pytest.mark.release

TERMS = Options(url="none", name="any", limit=2, tasks=4)
LOAD = Load(tasks=4, limit=2, work=0.001)


def careless(*, still_held: int = 0, ours: bool = False) -> Library:
    """Grants every permit at once, and reports a fixed number of held ones."""

    @asynccontextmanager
    async def start(options: Options) -> AsyncGenerator[OpenSemaphore]:
        async def held() -> int:
            return still_held

        yield OpenSemaphore(nullcontext, held, lambda: asyncio.sleep(0))

    return Library("careless", start, ours=ours)


@pytest.fixture
def bench() -> Bench:
    return Bench(
        url="none",
        loop="asyncio",
        effort=Effort(rounds=2, burst=0.01),
        progress=lambda _: None,
        table=Table(case="P0", title="any", how="somehow", loop="asyncio"),
    )


async def test_a_load_on_a_library_without_limit_fails() -> None:
    async with careless().open(TERMS) as semaphore:
        with pytest.raises(ExceptionGroup) as caught:
            await burst(semaphore, LOAD, 0.05)
    assert caught.group_contains(LimitExceeded)


async def test_a_load_on_a_correct_library_passes() -> None:
    async with IN_PROCESS.open(TERMS) as semaphore:
        done = await burst(semaphore, LOAD, 0.05)
    assert done.pairs == len(done.waits) > 0


def test_spans_of_several_processes_are_counted_together() -> None:
    check_spans([(0.0, 1.0), (1.0, 2.0), (0.5, 1.5)], limit=2)
    with pytest.raises(LimitExceeded):
        check_spans([(0.0, 1.0), (0.9, 2.0), (0.5, 1.5)], limit=2)


@pytest.mark.parametrize(
    ("load", "still_held", "error"),
    [(LOAD, 0, LimitExceeded), (Load(tasks=1, limit=1), 2, Leaked)],
)
async def test_a_failure_of_this_library_ends_the_run(
    bench: Bench, load: Load, still_held: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        async with Comparison(bench) as comparison:
            await comparison.enter_load([careless(still_held=still_held, ours=True)], load)
            await comparison.run()


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (LOAD, "failed: LimitExceeded: 3 permits were in use at once, limit 2"),
        (Load(tasks=1, limit=1), "failed: Leaked: 2 permits are held, expected 0"),
    ],
)
async def test_a_failing_peer_is_left_out_with_a_reason(
    bench: Bench, load: Load, why: str
) -> None:
    async with Comparison(bench, "4 tasks") as comparison:
        await comparison.enter_load([careless(still_held=2), IN_PROCESS], load)
        bursts = await comparison.run()
    assert {label: len(of_one) for label, of_one in bursts.items()} == {IN_PROCESS.label: 2}
    assert bench.table.absent == {"careless, 4 tasks": why}


def test_percentiles_are_those_of_all_times() -> None:
    p50, p99, p999 = percentiles([*[0.001] * 985, *[0.1] * 14, 2.0]) or (0, 0, 0)
    assert p50 == pytest.approx(0.001)
    assert p99 == pytest.approx(0.1)
    assert 0.1 < p999 < 2.0
    assert percentiles([0.5]) == (0.5, 0.5, 0.5)
    assert percentiles([]) is None


@pytest.mark.parametrize(
    ("column", "values", "lines"),
    [
        ("÷ best Python peer", (1.5, 2.0, 9.0), []),
        (
            "÷ best Python peer",
            (1.5, 1.9, 9.0),
            ["P9 (asyncio): Semaphore: ÷ best Python peer ≥ 2; it is 1.9"],
        ),
        ("p99, × FairSemaphore", (1.5, 3.0, 9.0), []),
        (
            "p99, × FairSemaphore",
            (1.5, 3.1, 9.0),
            ["P9 (asyncio): Semaphore: p99, × FairSemaphore ≤ 3; it is 3.1"],
        ),
    ],
)
def test_an_aim_is_met_or_missed_by_the_median(
    column: str, values: tuple[float, ...], lines: list[str]
) -> None:
    row = Row("Semaphore", "", None, {column: values})
    table = Table(case="P9", title="any", how="somehow", loop="asyncio", rows=[row])
    report = as_markdown({}, [table])
    assert "(1.50–9.00)" in report
    assert "≤" not in report, "a reader wants figures, and no aims"
    assert missed([table]) == lines
