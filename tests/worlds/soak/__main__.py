"""``python -m tests.worlds.soak --minutes 60 --processes 8``."""

import argparse
import asyncio
import sys
from typing import cast

from rich.console import Console
from rich.table import Table

from tests.worlds.soak.plan import FAULTS, Fault, Plan
from tests.worlds.soak.run import Report, soak

SIZES = (("rss", 1 << 20, 1), ("tasks", 1, 0), ("fds", 1, 0), ("objects", 1, 0))


def main() -> int:
    """Run a soak, and say how it went."""
    default = Plan()
    parser = argparse.ArgumentParser(prog="tests.worlds.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=default.seconds / 60)
    parser.add_argument("--processes", type=int, default=default.processes)
    parser.add_argument("--tasks", type=int, default=default.tasks, help="of each process")
    parser.add_argument("--names", type=int, default=default.names, help="of semaphores")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--pause", type=float, default=default.pause, help="s between faults")
    parser.add_argument("--rest", type=float, default=default.rest, help="s between stays")
    parser.add_argument("--hold", type=float, default=default.hold, help="s, longest as a rule")
    parser.add_argument("--faults", nargs="*", default=None, metavar="FAULT", choices=FAULTS)
    parser.add_argument("--operations", type=int, help="end when so many were checked")
    given = parser.parse_args()
    plan = Plan(
        seconds=60 * given.minutes,
        processes=given.processes,
        tasks=given.tasks,
        names=given.names,
        seed=given.seed,
        faults=FAULTS if given.faults is None else cast("list[Fault]", given.faults),
        pause=given.pause,
        rest=given.rest,
        hold=given.hold,
        operations=given.operations,
    )
    report = asyncio.run(soak(plan))
    show(report)
    return 1 if report.violations or report.never_happened else 0


def show(report: Report) -> None:
    """Print what it came to."""
    console = Console()
    checker = report.checker
    rows = {
        "time": f"{report.seconds:,.0f} s, {report.plan.processes} processes",
        "scripts in the journal": f"{checker.scripts.total():,}",
        "operations checked": f"{checker.operations:,}",
        "checked per second": f"{checker.operations / max(report.checking, 1e-9):,.0f}",
        "grants": f"{checker.grants:,}",
        "stays of clients": f"{report.stays:,}, {checker.history.joined:,} joined",
        "faults caused": f"{report.faults.total():,}",
        "violations": f"{checker.findings.counts.total():,}",
        "semaphores with every permit": f"{report.tried:,} tried",
        "left over": f"{len(report.leftovers):,}",
        "keys left, that expire": f"{report.keys_left:,}, within {report.longest_ttl:,.0f} s",
        "growth": f"{len(report.growth):,}",
    }
    table = Table("soak", "", show_header=False)
    for what, value in rows.items():
        table.add_row(what, value)
    console.print(table)
    console.print(_counts("fault", report.faults))
    console.print(_counts("script", checker.scripts))
    console.print(_counts("outcome", report.outcomes))
    table = Table(
        "process",
        "RSS early",
        "late",
        "tasks early",
        "late",
        "fds early",
        "late",
        "objects",
        "late",
    )
    for number, (early, late) in enumerate(report.sizes):
        facts = [
            f"{size[what] / scale:,.{digits}f}"
            for what, scale, digits in SIZES
            for size in (early, late)
        ]
        table.add_row(str(number), *facts)
    console.print(table)
    table = Table("server", "connections", "keys", "memory MB", "journal behind")
    for part, name in ((0.25, "a quarter"), (0.5, "half"), (1.0, "end")):
        if report.server:
            seen = report.server[int(part * (len(report.server) - 1))]
            memory = f"{seen['memory'] / (1 << 20):.1f}"
            facts = [str(seen["connections"]), str(seen["keys"]), memory, str(seen["behind"])]
            table.add_row(name, *facts)
    console.print(table)
    for fault in report.never_happened:
        console.print(f"never happened: {fault}")
    for trace in checker.traces:
        console.print("what led to a violation:", *trace, sep="\n", markup=False, highlight=False)
    for violation in report.violations[:50]:
        console.print(violation, markup=False, highlight=False)


def _counts(title: str, counts: "dict[Fault, int] | dict[str, int]") -> Table:
    table = Table(title, "count")
    for what, count in sorted(counts.items(), key=lambda item: -item[1]):
        table.add_row(what, f"{count:,}")
    return table


if __name__ == "__main__":
    sys.exit(main())
