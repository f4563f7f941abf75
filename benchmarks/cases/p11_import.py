"""P11: the cost of the import."""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import redsem_async
from benchmarks._results import Aim, Figure, Row, Table
from benchmarks._setup import Setup
from benchmarks.cases._base import Case

OURS = "import redsem_async"
BASELINE = "import redis.asyncio"
TIME = "ms"
RATIO = f"× {BASELINE}"
AIM = Aim(RATIO, 1.25, at_most=True)
HOW = (
    "Each statement in a fresh interpreter, in turns; the bytecode is compiled beforehand."
    " redsem_async imports redis.asyncio too."
)
TIMED = """
import time

start = time.perf_counter()
{statement}
print(time.perf_counter() - start)
"""


async def measure(setup: Setup) -> Table:
    """Measure both in turns."""
    setup.progress("fresh interpreters")
    times = await asyncio.to_thread(_times, setup.effort.imports)
    ratios = tuple(own / other for own, other in zip(times[OURS], times[BASELINE], strict=True))
    figures = {label: Figure(TIME, tuple(1000 * one for one in of)) for label, of in times.items()}
    rows = [
        Row(label=OURS, figures=(figures[OURS], Figure(RATIO, ratios)), aims=(AIM,)),
        Row(label=BASELINE, figures=(figures[BASELINE],)),
    ]
    return Table(case="P11", title=CASE.title, how=HOW, loop=setup.loop, rows=rows)


def _times(rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {OURS: [], BASELINE: []}
    with tempfile.TemporaryDirectory() as bytecode:
        for _ in range(rounds + 1):  # the first round compiles
            for statement, of_one in times.items():
                of_one.append(_time(statement, bytecode))
    return {statement: of_one[1:] for statement, of_one in times.items()}


def _time(statement: str, bytecode: str) -> float:
    """The seconds that a statement takes in a new interpreter."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        # Measure the same package that this process imported.
        "PYTHONPATH": str(Path(redsem_async.__file__).parents[1]),
        # The folder of the package may not be writable.
        "PYTHONPYCACHEPREFIX": bytecode,
    }
    command = (sys.executable, "-P", "-c", TIMED.format(statement=statement))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


CASE = Case("P11", "Import", measure)
