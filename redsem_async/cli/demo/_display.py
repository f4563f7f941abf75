"""The terminal output while the demo runs.

Events are printed as lines. In a terminal, a live display below them shows the current state of
all workers, of the upstream and of the semaphore.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from redsem_async import SemaphoreStatus

from ._plan import Plan
from ._record import Round
from ._workers import Worker, Workers

_BLOCKS = " ▁▂▃▄▅▆▇█"
_RATE = 12  # updates per second


class Display:
    """Prints events and the live display.

    Attributes:
        inside: number of requests inside the upstream.
        status: the latest status of the semaphore, in the second round.
    """

    def __init__(self, plan: Plan, console: Console) -> None:
        self.inside = 0
        self.status: SemaphoreStatus | None = None
        self._title = ""
        self._plan = plan
        self._console = console
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

    def end(self, round_: Round, workers: Workers) -> None:
        """Print the result of a round."""
        refused = sum(worker.refused for worker in workers.workers)
        times = f"[red]{refused} refusals (429)[/]" if refused else "[green]no refusals[/]"
        self.log(f"{len(round_.answers)} answered in {round_.seconds:.1f} s, {times}")

    @contextlib.asynccontextmanager
    async def live(self, workers: Workers) -> AsyncGenerator[None]:
        """Show the live display during a block, if this is a terminal."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            mover = asyncio.create_task(self._refresh(live, workers))
            try:
                yield
            finally:
                mover.cancel()

    async def _refresh(self, live: Live, workers: Workers) -> None:
        while True:
            self._past.append(self.inside)
            live.update(self._display(workers), refresh=True)
            await asyncio.sleep(1 / _RATE)

    def _display(self, workers: Workers) -> RenderableType:
        lines = Table.grid(padding=(0, 2))
        lines.add_row("requests inside the upstream", self._bar())
        lines.add_row("last seconds", self._history())
        lines.add_row("semaphore", self._semaphore_text())
        body = Group(self._workers(workers), Text(), lines)
        return Panel(body, title=self._title, title_align="left", expand=False, padding=(1, 2))

    def _workers(self, workers: Workers) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for heading in ("", "pid", "answered", "refused", "waiting"):
            table.add_column(heading, justify="left" if not heading else "right")
        table.add_column("inside" if self.status is None else "holding", min_width=14)
        for worker in workers.workers:
            table.add_row(*_row(worker))
        return table

    def _bar(self) -> Text:
        inside, limit = self.inside, self._plan.limit
        bar = Text("■ " * inside, "green" if inside <= limit else "red")
        bar.append("□ " * (limit - inside), "dim")
        return bar.append(f" {inside} of {limit}")

    def _history(self) -> Text:
        limit = self._plan.limit
        return Text("".join(_BLOCKS[min(8, round(8 * n / limit))] for n in self._past), "cyan")

    def _semaphore_text(self) -> Text:
        status = self.status
        if status is None:
            return Text("none", "dim")
        return Text(f"{status.held} held, {status.available} free, {status.waiting} waiting")


def _row(worker: Worker) -> tuple[RenderableType, ...]:
    gone = worker.state == "gone"
    return (
        Text(worker.label, "strike dim" if gone else "bold"),
        Text(str(worker.child.pid), "dim"),
        str(worker.answered),
        Text(str(worker.refused), "red" if worker.refused else "dim"),
        "" if gone else str(len(worker.queued)),
        Text("gone", "red") if gone else Text("● " * len(worker.started), "green"),
    )
