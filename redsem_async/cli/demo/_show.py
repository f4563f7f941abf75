"""What the demo prints: events and a live display while it runs, and a summary at the end."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from redsem_async import FairSemaphore, SemaphoreError, SemaphoreStatus

from ._parts import Upstream, Worker
from ._record import Kill, Record, Round

_BLOCKS = " ▁▂▃▄▅▆▇█"
_RATE = 12  # updates per second


class Display:
    """Prints events as lines, and in a terminal a live display of a round below them."""

    def __init__(self, limit: int, console: Console) -> None:
        self._limit = limit
        self._console = console
        self._title = ""
        self._began = time.monotonic()
        self._past: deque[int] = deque(maxlen=48)

    def log(self, line: str) -> None:
        """Print an event."""
        seconds = time.monotonic() - self._began
        self._console.print(f"[dim]{seconds:5.1f} s[/]  {line}")

    def begin(self, title: str) -> None:
        """Print the start of a round."""
        self._title = title
        self.log(f"[bold]{title}[/]")

    def end(self, round_: Round) -> None:
        """Print the result of a round."""
        refused, answered = round_.refused, len(round_.of_kind("answered"))
        times = f"[red]{refused} refusals (429)[/]" if refused else "[green]no refusals[/]"
        self.log(f"{answered} answered in {round_.seconds:.1f} s, {times}")

    async def show(
        self, workers: Sequence[Worker], upstream: Upstream, semaphore: FairSemaphore | None
    ) -> None:
        """Show the current state, if this is a terminal, until this is cancelled."""
        if not self._console.is_terminal:
            return
        status = None
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                if semaphore is not None:
                    with contextlib.suppress(SemaphoreError):
                        status = await semaphore.status()
                self._past.append(upstream.inside)
                live.update(self._panel(workers, upstream.inside, status), refresh=True)
                await asyncio.sleep(1 / _RATE)

    def _panel(
        self, workers: Sequence[Worker], inside: int, status: SemaphoreStatus | None
    ) -> Panel:
        limit = self._limit
        bar = Text("■ " * inside, "green" if inside <= limit else "red")
        bar.append("□ " * (limit - inside), "dim").append(f" {inside} of {limit}")
        past = "".join(_BLOCKS[min(8, round(8 * n / limit))] for n in self._past)
        permits = "[dim]none"
        if status is not None:
            permits = f"{status.held} held, {status.available} free, {status.waiting} waiting"
        lines = Table.grid(padding=(0, 2))
        lines.add_row("requests inside the upstream", bar)
        lines.add_row("last seconds", Text(past, "cyan"))
        lines.add_row("semaphore", permits)

        table = _table("", right=("pid", "answered", "refused", "waiting"))
        table.add_column("inside" if status is None else "holding", min_width=14)
        for worker in workers:
            gone, refused = worker.gone.is_set(), worker.counts["retrying"]
            table.add_row(
                Text(worker.label, "strike dim" if gone else "bold"),
                Text(str(worker.process.pid), "dim"),
                str(worker.counts["answered"]),
                Text(str(refused), "red" if refused else "dim"),
                "" if gone else str(len(worker.queued)),
                Text("gone", "red") if gone else Text("● " * len(worker.started), "green"),
            )
        body = Group(table, Text(), lines)
        return Panel(body, title=self._title, title_align="left", expand=False, padding=(1, 2))


def _table(left: str, right: Sequence[str]) -> Table:
    table = Table(left, box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in right:
        table.add_column(heading, justify="right")
    return table


def print_summary(record: Record, console: Console) -> None:
    """Print a table of both rounds, the facts of the killed worker, and the verdict."""
    limit, (bare, guarded) = record.plan.limit, record.rounds
    table = _table("", right=("no semaphore", f"FairSemaphore, limit {limit}"))
    facts = (
        "most asked at once",
        "sent in vain (429)",
        "answered",
        "lost with a killed worker",
        "seconds",
    )
    for row in zip(facts, _facts(bare, limit), _facts(guarded, limit), strict=True):
        table.add_row(*row)
    console.print()
    console.print(table)
    console.print()
    if guarded.kill is not None:
        console.print(_kill(record, guarded.kill))
        console.print()
    faults = record.faults()
    for fault in faults:
        console.print(f"[bold red]✗[/] {escape(fault)}")
    if not faults:
        console.print(
            f"[bold green]✓[/] Without a semaphore, {bare.most_asked} requests at once were asked"
            f" of an upstream that accepts {limit}, and {bare.refused} were sent in vain. With it,"
            f" at most {guarded.most_asked} were, none in vain. A killed worker cost"
            f" {len(bare.unanswered)} requests without it, and {len(guarded.unanswered)} with it."
        )


def _facts(round_: Round, limit: int) -> tuple[str, ...]:
    asked, refused = round_.most_asked, round_.refused
    return (
        f"[bold {'red' if asked > limit else 'green'}]{asked}[/]",
        f"[bold red]{refused}[/]" if refused else "[bold green]none[/]",
        f"{len(round_.of_kind('answered'))} of {len(round_.requests)}",
        "none killed" if round_.kill is None else str(len(round_.kill.lost)),
        f"{round_.seconds:.1f}",
    )


def _kill(record: Record, kill: Kill) -> Table:
    lost, passed_on = (
        " ".join(f"#{number}" for number in requests) or "none"
        for requests in (kill.lost, kill.passed_on)
    )
    until = "until the end" if kill.unavailable is None else f"for {kill.unavailable:.2f} s"
    permits = f"{kill.held} of {record.plan.limit} permits when it died, according to status()"
    meanwhile = f"meanwhile other workers got {record.answered_meanwhile} requests answered"
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_row("killed", f"{kill.worker}, pid {kill.pid}, return code {kill.returncode}")
    table.add_row("held", permits)
    table.add_row(
        "unavailable", f"those permits, {until} (lease {record.plan.lease:g} s); {meanwhile}"
    )
    table.add_row("lost", f"{lost}: requests that it had started")
    if kill.passed_on:
        table.add_row("reassigned", f"{passed_on}: requests that it had not started")
    return table
