"""What the demo prints: events and a live display while it runs, and a summary at the end."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from redsem_async import FairSemaphore, SemaphoreError, SemaphoreStatus

from ._record import Kill, Record, Round
from ._workers import Upstream, Worker

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
        permits = (
            Text("none", "dim")
            if status is None
            else f"{status.held} held, {status.available} free, {status.waiting} waiting"
        )
        lines = Table.grid(padding=(0, 2))
        lines.add_row("requests inside the upstream", bar)
        lines.add_row("last seconds", Text(past, "cyan"))
        lines.add_row("semaphore", permits)

        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for heading in ("", "pid", "answered", "refused", "waiting"):
            table.add_column(heading, justify="left" if not heading else "right")
        table.add_column("inside" if status is None else "holding", min_width=14)
        for worker in workers:
            table.add_row(*_row(worker))
        body = Group(table, Text(), lines)
        return Panel(body, title=self._title, title_align="left", expand=False, padding=(1, 2))


def _row(worker: Worker) -> tuple[RenderableType, ...]:
    gone, refused = worker.state == "gone", worker.counts["retrying"]
    return (
        Text(worker.label, "strike dim" if gone else "bold"),
        Text(str(worker.process.pid), "dim"),
        str(worker.counts["answered"]),
        Text(str(refused), "red" if refused else "dim"),
        "" if gone else str(len(worker.queued)),
        Text("gone", "red") if gone else Text("● " * len(worker.started), "green"),
    )


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
        bare, guarded = record.rounds
        console.print(
            f"[bold green]✓[/] Without a semaphore, {bare.most_asked} requests at once were asked"
            f" of an upstream that accepts {record.plan.limit}, and {bare.refused} were sent in"
            f" vain. With it, at most {guarded.most_asked} were, none in vain. A killed worker"
            f" cost {len(bare.unanswered)} requests without it, and"
            f" {len(guarded.unanswered)} with it."
        )


def _rounds(record: Record) -> Table:
    limit = record.plan.limit
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column()
    table.add_column("no semaphore", justify="right")
    table.add_column(f"FairSemaphore, limit {limit}", justify="right")
    columns = (_FACTS, *(_facts(round_, limit) for round_ in record.rounds))
    for row in zip(*columns, strict=True):
        table.add_row(*row)
    return table


_FACTS = (
    "most asked at once",
    "sent in vain (429)",
    "answered",
    "lost with a killed worker",
    "seconds",
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
        "answered": len(round_.of_kind("answered")),
        "refused": round_.refused,
        "most_asked": round_.most_asked,
        "most_inside": round_.most_inside,
        "unanswered": round_.unanswered,
        "lost_with_worker": () if round_.kill is None else round_.kill.lost,
        "seconds": round(round_.seconds, 3),
    }
