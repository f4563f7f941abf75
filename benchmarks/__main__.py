"""Run the benchmarks: ``python -m benchmarks [--server embedded|container|URL]``.

Every figure is a ratio inside one run: cases take turns (ours, floor, ours, floor ...) on one
server, and medians are printed with their spread.
"""

import argparse
import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from benchmarks._cases import p1_lone_pair, p2_many_tasks
from benchmarks._report import Row, as_markdown
from benchmarks._servers import server
from redsem_async import FairSemaphore, Semaphore

KINDS = (FairSemaphore, Semaphore)


async def measure(url: str, rounds: int, say: Callable[[str], None]) -> list[Row]:
    """All cases, in turn."""
    rows: list[Row] = []
    for kind in KINDS:
        say(f"P1, {kind.__name__}")
        rows += await p1_lone_pair(url, kind, rounds)
        for tasks in (50, 200, 1000):
            say(f"P2, {kind.__name__}, {tasks} tasks")
            rows += await p2_many_tasks(url, kind, tasks, rounds)
    return rows


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--server", default="embedded", help="embedded, container, or a URL")
    parser.add_argument("--rounds", type=int, default=9, help="times that each case is repeated")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    with server(options.server) as (url, which):
        rows = asyncio.run(measure(url, options.rounds, lambda text: print(f"... {text}")))
    print(f"\nServer: {which}\n\n{as_markdown(rows)}")
    if options.json:
        options.json.write_text(json.dumps([row.as_dict() for row in rows], indent=2))


if __name__ == "__main__":
    main()
