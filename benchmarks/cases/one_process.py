"""P1 to P3: one task, many tasks, and more tasks than permits, in one process."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from benchmarks._baselines import Scripts
from benchmarks._bench import NOT_INSTALLED, Bench, Case
from benchmarks._comparison import (
    PAIRS,
    TO_PEER,
    Bursts,
    Column,
    Comparison,
    Load,
    name_for,
    of_pairs,
    quotients,
    rates,
)
from benchmarks._libraries import IN_PROCESS, OURS, PEERS, REDIS_LOCK, Library
from benchmarks._node import LABEL, NodeUnavailable, node

TO_NODE = "÷ Node"
TWO_CALLS = "two minimal evalsha"
TIME = f"time, × {TWO_CALLS}"
BATCH = 50
BATCHES = f"scripts of {BATCH} ids"
CONTENDED = Load(tasks=50, limit=5, work=0.001)
UNEVEN = "longest wait ÷ median"


@asynccontextmanager
async def _compare(
    bench: Bench, libraries: Iterable[Library], load: Load, setting: str = ""
) -> AsyncGenerator[Comparison]:
    """A comparison of *libraries* and Node; the caller adds a baseline, runs and reports it."""
    async with AsyncExitStack() as stack:
        comparison = await stack.enter_async_context(Comparison(bench, setting))
        await comparison.enter_load(libraries, load)
        try:
            driver = await stack.enter_async_context(node(bench.url))
        except NodeUnavailable as error:
            bench.table.absent[LABEL] = f"{NOT_INSTALLED} ({error})"
        else:
            turn = partial(driver.burst, name_for("node"), load, bench.effort.burst)
            comparison.add(LABEL, turn, peer=True)
        yield comparison


def _report(comparison: Comparison, columns: Mapping[str, Column]) -> None:
    """Report pairs, *columns*, and the ratios of this library to the best peer and to Node."""
    rivals = {TO_PEER: comparison.best_peer(), TO_NODE: LABEL}
    ratios = {
        column: comparison.ours_only(comparison.faster_than(rival))
        for column, rival in rivals.items()
    }
    comparison.report({PAIRS: of_pairs, **columns, **ratios})


async def _one_task(bench: Bench) -> None:
    async with (
        Scripts.at(bench.url) as scripts,
        _compare(bench, (*OURS, *PEERS, REDIS_LOCK), Load(tasks=1, limit=1)) as comparison,
    ):
        comparison.add(TWO_CALLS, partial(scripts.pairs, 1, bench.effort.burst))
        baseline = rates((await comparison.run())[TWO_CALLS])
        # A ratio of times, not of rates: a caller waits for that time.
        _report(comparison, {TIME: lambda _, own: quotients(baseline, rates(own))})


async def _many_tasks(bench: Bench) -> None:
    for tasks in bench.effort.tasks:
        load, setting = Load(tasks=tasks, limit=2 * tasks), f"{tasks:,} tasks"
        async with (
            Scripts.at(bench.url) as scripts,
            _compare(bench, (*OURS, *PEERS), load, setting) as comparison,
        ):
            comparison.add(BATCHES, partial(scripts.pairs, BATCH, bench.effort.burst))
            await comparison.run()
            _report(comparison, {f"÷ {BATCHES}": comparison.faster_than(BATCHES)})


async def _contended(bench: Bench) -> None:
    async with _compare(bench, (*OURS, *PEERS, IN_PROCESS), CONTENDED) as comparison:
        await comparison.run()
        to_baseline = comparison.faster_than(IN_PROCESS.label)
        _report(comparison, {f"÷ {IN_PROCESS.label}": to_baseline, UNEVEN: _unevenness})


def _unevenness(_label: str, bursts: Bursts) -> Sequence[float]:
    return [max(burst.waits) / burst.wait for burst in bursts]


P1 = Case(
    "P1",
    "One task, a free semaphore",
    "One task acquires and releases repeatedly; the limit of a Lock is 1. Baseline: two scripts"
    " that only add a member with an expiry, and remove it, called with redis-py one after the"
    " other.",
    _one_task,
    both_loops=True,
)
P2 = Case(
    "P2",
    "Many tasks in one process, a free semaphore",
    f"Each task acquires and releases repeatedly. Baseline: scripts that only add {BATCH} members"
    " with an expiry, and remove them, called with redis-py one after the other: the cost of a"
    f" perfect batch of {BATCH}.",
    _many_tasks,
    both_loops=True,
)
P3 = Case(
    "P3",
    "50 tasks, limit 5, 1 ms of work",
    "50 tasks, limit 5, and each sleeps 1 ms while it holds a permit. Baseline: asyncio's own"
    " semaphore in the process. Evenness of waiting is the ratio of the longest wait of a round to"
    " its median.",
    _contended,
    both_loops=True,
)
