"""The measurements: incorrect libraries fail, and missed aims are reported."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import pytest

from benchmarks._comparison import Comparison
from benchmarks._limit_check import LimitExceeded, check_spans
from benchmarks._measure import Load, burst
from benchmarks._report import as_markdown
from benchmarks._results import Acquire, Aim, Figure, Row, Table
from benchmarks._run import Run
from benchmarks._setup import Effort, Setup
from benchmarks.libraries import IN_PROCESS, Library, Options

pytestmark = pytest.mark.release

TERMS = Options(url="none", name="any", limit=2, tasks=4)
LOAD = Load(tasks=4, limit=2, work=0.001)


class Careless:
    """Grants every permit at once, and reports a fixed number of held ones."""

    def __init__(self, still_held: int) -> None:
        self._still_held = still_held
        self.cleared = False

    def permit(self) -> AbstractAsyncContextManager[object]:
        return nullcontext()

    async def held(self) -> int:
        return self._still_held

    async def clear(self) -> None:
        self.cleared = True


def careless(*, still_held: int = 0, ours: bool = False) -> Library:
    @asynccontextmanager
    async def start(options: Options) -> AsyncGenerator[Careless]:
        yield Careless(still_held)

    return Library(label="careless", open=start, ours=ours)


def setup() -> Setup:
    effort = Effort(rounds=2, burst=0.01)
    return Setup(url="none", loop="asyncio", effort=effort, progress=lambda _: None)


async def test_a_load_on_a_library_without_limit_fails() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await burst(Careless(0), LOAD, 0.05)
    assert caught.group_contains(LimitExceeded)


async def test_a_load_on_a_correct_library_passes() -> None:
    async with IN_PROCESS.open(TERMS) as semaphore:
        done = await burst(semaphore, LOAD, 0.05)
    assert done.pairs == len(done.waits) > 0


def test_spans_of_several_processes_are_counted_together() -> None:
    check_spans([(0.0, 1.0), (1.0, 2.0), (0.5, 1.5)], limit=2)
    with pytest.raises(LimitExceeded):
        check_spans([(0.0, 1.0), (0.9, 2.0), (0.5, 1.5)], limit=2)


async def test_a_failure_of_this_library_ends_the_run() -> None:
    with pytest.raises(LimitExceeded):
        async with Comparison(setup()) as comparison:
            await comparison.enter_all([careless(ours=True)], LOAD)
            await comparison.run()


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (LOAD, "failed: LimitExceeded: 3 permits were in use at once, limit 2"),
        (Load(tasks=1, limit=1), "failed: Leaked: 2 permits are held, expected 0"),
    ],
)
async def test_a_failing_peer_is_left_out_with_a_reason(load: Load, why: str) -> None:
    async with Comparison(setup()) as comparison:
        await comparison.enter_all([careless(still_held=2), IN_PROCESS], load)
        await comparison.run()
    assert set(comparison.bursts) == {IN_PROCESS.label}
    assert len(comparison.bursts[IN_PROCESS.label]) == 2
    [absent] = comparison.absent
    assert absent.label == "careless"
    assert absent.why.startswith(why)


def test_percentiles_are_those_of_all_times() -> None:
    acquire = Acquire.of([*[0.001] * 985, *[0.1] * 14, 2.0])
    assert acquire is not None
    assert acquire.count == 1000
    assert acquire.p50 == pytest.approx(0.001)
    assert acquire.p99 == pytest.approx(0.1)
    assert acquire.p999 > 0.1
    assert acquire.longest == 2.0
    assert len(acquire.percentiles) == 101
    assert list(acquire.percentiles) == sorted(acquire.percentiles)


def table_with(values: tuple[float, ...], aim: Aim) -> Table:
    row = Row(label="ours", figures=(Figure("ratio", values),), aims=(aim,))
    return Table(case="P0", title="any", how="somehow", loop="asyncio", rows=[row])


@pytest.mark.parametrize(
    ("values", "aim", "missed"),
    [
        ((0.5, 0.7, 0.9), Aim("ratio", 0.7), []),
        ((0.5, 0.6, 0.9), Aim("ratio", 0.7), ["P0 (asyncio): ours: ratio ≥ 0.7; it is 0.6"]),
        ((0.5, 0.7, 0.9), Aim("ratio", 0.7, at_most=True), []),
        (
            (0.5, 0.8, 0.9),
            Aim("ratio", 0.7, at_most=True),
            ["P0 (asyncio): ours: ratio ≤ 0.7; it is 0.8"],
        ),
    ],
)
def test_an_aim_is_met_or_missed_by_the_median(
    values: tuple[float, ...], aim: Aim, missed: list[str]
) -> None:
    run = Run({}, [table_with(values, aim)])
    report = as_markdown(run)
    assert "(0.500–0.900)" in report
    assert "≤" not in report, "a reader wants figures, and no aims"
    assert run.missed == missed
