"""Shared by P1, P2 and P3: all libraries and Node take turns in one process."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from benchmarks._comparison import NOT_INSTALLED, Comparison, name_for
from benchmarks._measure import Load, all_waits, fastest, rates, ratio
from benchmarks._node import LABEL, NodeUnavailable, node
from benchmarks._results import Absent, Acquire, Aim, Row
from benchmarks._setup import Setup
from benchmarks.libraries import ALL_OURS, PEERS, Library

PAIRS = "pairs/s"
TO_PEER = "÷ best Python peer"
TO_NODE = "÷ Node"


@asynccontextmanager
async def compare(
    setup: Setup, libraries: Iterable[Library], load: Load, *, with_node: bool = True
) -> AsyncGenerator[Comparison]:
    """A comparison of *libraries* and Node under *load*; the caller adds baselines and runs it."""
    async with AsyncExitStack() as stack:
        comparison = await stack.enter_async_context(Comparison(setup))
        await comparison.enter_all(libraries, load)
        if with_node:
            try:
                driver = await stack.enter_async_context(node(setup.url))
            except NodeUnavailable as error:
                comparison.absent.append(Absent(LABEL, f"{NOT_INSTALLED} ({error})"))
            else:
                turn = partial(driver.burst, name_for("node"), load, setup.effort.burst)
                comparison.add(LABEL, turn)
        yield comparison


def rows_of(
    comparison: Comparison,
    setting: str,
    baselines: Mapping[str, str],
    aims: Mapping[str, Sequence[Aim]],
) -> list[Row]:
    """One row each: the rate, and its ratio to each baseline, the best peer and Node.

    Args:
        comparison: a completed comparison.
        setting: setting of the rows.
        baselines: label of each baseline, with the name of the ratio to it.
        aims: aims by label.
    """
    bursts = comparison.bursts
    best = fastest(bursts, [library.label for library in PEERS])
    peers = {TO_PEER: best, TO_NODE: LABEL if LABEL in bursts else None}
    rows: list[Row] = []
    for label, own in bursts.items():
        figures = [rates(PAIRS, own)]
        if label not in baselines:
            figures += [ratio(name, own, bursts[baseline]) for baseline, name in baselines.items()]
        if label in {library.label for library in ALL_OURS}:
            figures += [ratio(to, own, bursts[peer]) for to, peer in peers.items() if peer]
        present = {figure.name for figure in figures}
        rows.append(
            Row(
                label=label,
                setting=setting,
                acquire=Acquire.of(all_waits(own)),
                figures=tuple(figures),
                aims=tuple(aim for aim in aims.get(label, ()) if aim.figure in present),
            )
        )
    return rows
