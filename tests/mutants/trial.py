"""One mutant before one layer: in a copy of the package, beside a copy of the tests."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redsem_async

from .layers import Layer
from .mutant import Mutant
from .plugin import FAILED

PACKAGE = Path(redsem_async.__file__).parent
CHECKOUT = Path(__file__).resolve().parents[2]
BESIDE = ("pyproject.toml", "README.md", "docs", "tests")
_VIOLATION = re.compile(r"^at \d|, entry \d+\)$")
ROUNDS = 3  # tests that may fail once and not again, before a layer is believed


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a layer took a mutant.

    Attributes:
        caught_by: the test that failed, and failed again; or the violation that was found.
        overran: it had not ended when its time was up, which counts as nothing.
        passing: tests that failed once, and not again.
    """

    caught_by: str | None
    seconds: float
    overran: bool = False
    passing: tuple[str, ...] = ()


@contextmanager
def copy_with(mutant: Mutant | None) -> Generator[Path]:
    """A folder with the package and its tests, *mutant* in it."""
    with tempfile.TemporaryDirectory(prefix="redsem-mutant-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        unwanted = shutil.ignore_patterns("__pycache__", "*.png")
        shutil.copytree(PACKAGE, root / PACKAGE.name, ignore=unwanted)
        for item in BESIDE:
            source = CHECKOUT / item
            if source.is_dir():
                shutil.copytree(source, root / item, ignore=unwanted)
            else:
                shutil.copy(source, root / item)
        if mutant is not None:
            mutant.apply(root)
        yield root


def judge(layer: Layer, root: Path) -> Verdict:
    """Run *layer* on what is in *root*, up to its first failure."""
    started = time.monotonic()
    passing: list[str] = []

    def verdict(caught_by: str | None, *, overran: bool = False) -> Verdict:
        return Verdict(caught_by, time.monotonic() - started, overran, tuple(passing))

    while True:
        left = layer.seconds - (time.monotonic() - started)
        run = _run(layer.without(passing), root, left)
        if run is None:
            return verdict(None, overran=True)
        failed, said = run
        if not failed:
            return verdict(None)
        if layer.seeded or said in passing or len(passing) == ROUNDS:
            return verdict(said)
        # Caught is what fails again, by itself: not for want of time, or of luck.
        again = _run(layer.alone(said), root, layer.seconds)
        if again is None or again[0]:
            return verdict(said)
        passing.append(said)


def _run(command: Sequence[str], root: Path, most: float) -> tuple[bool, str] | None:
    """Whether it failed, and what it said; None when its time was up."""
    noted = root / "failed"
    noted.unlink(missing_ok=True)
    environment = os.environ | {
        "PYTHONPATH": str(root),
        "PYTHONSAFEPATH": "1",
        "PYTHONHASHSEED": "0",
        "COLUMNS": "500",
        "PYTHONDONTWRITEBYTECODE": "1",
        FAILED: str(noted),
    }
    with (root / "output").open("w+", encoding="utf-8") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            failed = process.wait(most) != 0
        except subprocess.TimeoutExpired:
            return None
        finally:
            # What it started goes with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        lines = [line.strip() for line in output if line.strip()]
    if failed and noted.exists():
        return True, noted.read_text(encoding="utf-8").splitlines()[0]
    return failed, (_telling(lines) if failed else "")


def _telling(lines: Sequence[str]) -> str:
    """The line of an output that says what is wrong."""
    telling = (line for line in lines if _VIOLATION.search(line))
    return next(telling, lines[-1] if lines else "it ended without a word")
