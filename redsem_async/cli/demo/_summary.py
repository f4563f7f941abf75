"""The summary: tables for people, a dict for JSON."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ._record import Kill, Record, Round


def print_summary(record: Record, faults: list[str], console: Console) -> None:
    """Print a table of both rounds, the facts of the killed worker, and the verdict."""
    console.print()
    console.print(_rounds(record))
    console.print()
    if record.guarded.kill is not None:
        console.print(_kill(record, record.guarded.kill))
        console.print()
    for fault in faults:
        console.print(f"[bold red]✗[/] {escape(fault)}")
    if not faults:
        console.print(f"[bold green]✓[/] {_what_it_did(record)}")


def _what_it_did(record: Record) -> str:
    asked, wasted = record.bare.most_asked, len(record.bare.refusals)
    return (
        f"Without a semaphore, {asked} requests at once were asked of an upstream that accepts"
        f" {record.plan.limit}, and {wasted} were sent in vain. With it, at most"
        f" {record.guarded.most_asked} were, none in vain. A killed worker cost"
        f" {len(record.bare.unanswered)} requests without it, and"
        f" {len(record.guarded.unanswered)} with it."
    )


def _rounds(record: Record) -> Table:
    limit = record.plan.limit
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column()
    table.add_column("no semaphore", justify="right")
    table.add_column(f"FairSemaphore, limit {limit}", justify="right")
    rounds = (record.bare, record.guarded)
    table.add_row("most asked at once", *(_asked(round_, limit) for round_ in rounds))
    table.add_row("sent in vain (429)", *(_refusals(round_) for round_ in rounds))
    table.add_row("answered", *(_answered(round_) for round_ in rounds))
    table.add_row("lost with a killed worker", *(_lost(round_) for round_ in rounds))
    table.add_row("seconds", *(f"{round_.seconds:.1f}" for round_ in rounds))
    return table


def _asked(round_: Round, limit: int) -> str:
    asked = round_.most_asked
    return f"[bold {'red' if asked > limit else 'green'}]{asked}[/]"


def _answered(round_: Round) -> str:
    return f"{len(round_.answers)} of {len(round_.requests)}"


def _lost(round_: Round) -> str:
    return "none killed" if round_.kill is None else str(len(round_.kill.lost))


def _refusals(round_: Round) -> str:
    count = len(round_.refusals)
    return f"[bold red]{count}[/]" if count else "[bold green]none[/]"


def _kill(record: Record, kill: Kill) -> Table:
    unavailable = "until the end" if kill.unavailable is None else f"for {kill.unavailable:.2f} s"
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_row("killed", f"{kill.worker}, pid {kill.pid}, return code {kill.returncode}")
    table.add_row(
        "held", f"{kill.held} of {record.plan.limit} permits when it died, according to status()"
    )
    table.add_row(
        "unavailable",
        f"those permits, {unavailable} (lease {record.plan.lease:g} s); meanwhile"
        f" other workers got {record.answered_meanwhile} requests answered",
    )
    table.add_row("lost", f"{_numbers(kill.lost)}: requests that it had started")
    if kill.passed_on:
        numbers = _numbers(kill.passed_on)
        table.add_row("reassigned", f"{numbers}: requests that it had not started")
    return table


def _numbers(requests: Iterable[int]) -> str:
    return " ".join(f"#{number}" for number in requests) or "none"


def as_dict(record: Record, faults: list[str], chart: Path | None) -> dict[str, Any]:
    """The summary for ``--json``."""
    kill = record.guarded.kill
    return {
        "ok": not faults,
        "faults": faults,
        "server": record.server,
        "limit": record.plan.limit,
        "lease": record.plan.lease,
        "without_semaphore": _round_as_dict(record.bare),
        "with_semaphore": _round_as_dict(record.guarded),
        "killed": None
        if kill is None
        else {
            "worker": kill.worker,
            "pid": kill.pid,
            "returncode": kill.returncode,
            "held": kill.held,
            "unavailable_seconds": kill.unavailable and round(kill.unavailable, 3),
            "answered_meanwhile": record.answered_meanwhile,
            "lost": kill.lost,
            "passed_on": kill.passed_on,
        },
        "chart": None if chart is None else str(chart),
    }


def _round_as_dict(round_: Round) -> dict[str, Any]:
    return {
        "requests": len(round_.requests),
        "answered": len(round_.answers),
        "refused": len(round_.refusals),
        "most_asked": round_.most_asked,
        "most_inside": round_.most_inside,
        "unanswered": round_.unanswered,
        "lost_with_worker": () if round_.kill is None else round_.kill.lost,
        "seconds": round(round_.seconds, 3),
    }
