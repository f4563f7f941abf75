"""What the demo prints. Events and a live display while it runs, and a summary at the end."""

import asyncio
import contextlib
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from redsem_async import FairSemaphore, SemaphoreError

from ._parts import Upstream, Worker
from ._record import Kill, Plan, Record, Round, highest

_RATE = 12  # updates per second


class Display:
    """Prints events as lines, and in a terminal a live display of a round below them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def log(self, line: str) -> None:
        """Print an event."""
        seconds = time.monotonic() - self._began
        self._console.print(f"[dim]{seconds:5.1f} s[/]  {line}")

    async def show(
        self, workers: Sequence[Worker], upstream: Upstream, semaphore: FairSemaphore | None
    ) -> None:
        """Show the current state, if this is a terminal, until this is cancelled."""
        if not self._console.is_terminal:
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                use, permits = "inside", "none"
                if semaphore is not None:
                    use = "holding"
                    with contextlib.suppress(SemaphoreError):
                        now = await semaphore.status()
                        permits = f"{now.held} held, {now.available} free, {now.waiting} waiting"
                inside = Text("■ " * upstream.inside, "green")
                inside.append("□ " * (upstream.capacity - upstream.inside), "dim")
                lines = (f"semaphore: {permits}", Text("requests inside the upstream: ") + inside)
                live.update(Group("", _workers(workers, use), "", *lines), refresh=True)
                await asyncio.sleep(1 / _RATE)


def _workers(workers: Sequence[Worker], use: str) -> Table:
    table = _table("pid", "answered", "rejected", "waiting")
    table.add_column(use)
    for worker in workers:
        gone, started = worker.gone.is_set(), Text("●" * len(worker.started), "green")
        table.add_row(
            Text(worker.label, "strike dim" if gone else "bold"),
            str(worker.process.pid),
            str(worker.counts["answered"]),
            str(worker.counts["retrying"]),
            "" if gone else str(len(worker.queued)),
            Text("gone", "red") if gone else started,
        )
    return table


def _table(*right: str) -> Table:
    table = Table("", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in right:
        table.add_column(heading, justify="right")
    return table


def print_summary(record: Record, console: Console) -> None:
    """Print a table of both rounds, the facts of the killed worker, and the verdict."""
    plan = record.plan
    table = _table(*record.titles)
    first = ("capacity used", "peak concurrency")
    if not plan.overload:
        first = ("peak concurrency", "lost with a killed worker")
    facts = (_facts(round_, plan) for round_ in record.rounds)
    for row in zip((*first, "rejected (429)", "answered", "seconds"), *facts, strict=True):
        table.add_row(*row)
    console.print("", table, "", sep="\n")
    if record.guarded.kill is not None:
        console.print(_kill(record, record.guarded.kill), "", sep="\n")
    faults = record.faults()
    for fault in faults:
        console.print(f"[bold red]✗[/] {escape(fault)}")
    if not faults:
        console.print(f"[bold green]✓[/] {_verdict(record)}")


def _verdict(record: Record) -> str:
    plan, limit, (bare, guarded) = record.plan, record.plan.limit, record.rounds
    if plan.overload:
        return (
            f"The upstream accepted {limit} concurrent requests, and a quarter of that for"
            f" {plan.overload:g} s. With a separate limit in each process {bare.used:.0%} of that"
            f" was used, and {bare.refused} requests were rejected. With one limit of {plan.most}"
            f" and a back-off {guarded.used:.0%} was used, and {guarded.refused} were rejected."
        )
    asked, never = (highest(round_.asked()) for round_ in record.rounds)
    return (
        f"Without a semaphore the upstream (limit {limit}) saw {asked} concurrent requests and"
        f" rejected {bare.refused}. With one, it saw at most {never}, and rejected none. A killed"
        f" worker cost {len(bare.unanswered)} requests without it, and {len(guarded.unanswered)}"
        " with it."
    )


def _facts(round_: Round, plan: Plan) -> tuple[str, ...]:
    asked, refused = highest(round_.asked()), round_.refused
    peak = f"[bold {'red' if asked > plan.limit else 'green'}]{asked}[/]"
    killed = "none killed" if round_.kill is None else str(len(round_.kill.lost))
    return (
        *((f"[bold]{round_.used:.0%}[/]", str(asked)) if plan.overload else (peak, killed)),
        f"[bold red]{refused}[/]" if refused else "[bold green]none[/]",
        f"{len(round_.of_kind('answered'))} of {len(round_.requests)}",
        f"{round_.seconds:.1f}",
    )


def _kill(record: Record, kill: Kill) -> Table:
    until = "until the end" if kill.unavailable is None else f"for {kill.unavailable:.2f} s"
    facts = {
        "killed": f"{kill.worker}, pid {kill.pid}, return code {kill.returncode}",
        "held": f"{kill.held} of {record.plan.limit} permits when it died, according to status()",
        "unavailable": f"those permits, {until} (lease {record.plan.lease:g} s); meanwhile other"
        f" workers got {record.answered_meanwhile} requests answered",
        "lost": f"{_numbers(kill.lost)}: requests that it had started",
        "reassigned": f"{_numbers(kill.passed_on)}: requests that it had not started",
    }
    table = Table.grid(padding=(0, 3, 0, 0))
    for row in facts.items():
        table.add_row(*row)
    return table


def _numbers(requests: Sequence[int]) -> str:
    return " ".join(f"#{number}" for number in requests) or "none"
