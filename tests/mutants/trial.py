"""One mutant before what is meant to catch it: in a copy of the package, beside the tests."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redsem_async

from .mutant import Mutant
from .plugin import FAILED
from .target import command_of, is_test, node_of, tests_command

PACKAGE = Path(redsem_async.__file__).parent
CHECKOUT = Path(__file__).resolve().parents[2]
BESIDE = (".config", "pyproject.toml", "README.md", "LICENSE", "docs", "tests")
MOST = 300.0  # seconds for one mutant: far more than its target takes where nothing is wrong
TESTS_FAILED = 1  # pytest's exit code for that; others say that it could not run them
_VIOLATION = re.compile(r"^at \d|, entry \d+\)$")


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a mutant fared before its target.

    Attributes:
        caught_by: the test that failed, and failed again; or the violation that was found.
        otherwise: what happened where it was not caught.
    """

    target: str
    caught_by: str | None
    seconds: float
    otherwise: str = ""


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


def judge(mutant: Mutant) -> Verdict:
    """Run the target of *mutant* on it, up to the first failure."""
    target, started = mutant.target, time.monotonic()

    def verdict(caught_by: str | None, otherwise: str = "") -> Verdict:
        return Verdict(target, caught_by, time.monotonic() - started, otherwise)

    with copy_with(mutant) as root:
        run = _run(command_of(target), root)
        if not (run.failed or run.violation):
            return verdict(None, run.complaint or "it passed")
        if not is_test(target):
            return verdict(run.violation)
        # Caught is what fails again, by itself: not for want of time, or of luck.
        first = run.failed[0]
        again = _run(tests_command(first), root)
        if not again.failed:
            return verdict(None, f"{first} failed once, and not again")
        return verdict(first)


def unfit(targets: Iterable[str]) -> dict[str, str]:
    """Those of *targets* that fail although nothing is changed, with what was said."""
    tests = [target for target in targets if is_test(target)]
    others = [target for target in targets if not is_test(target)]
    found: dict[str, str] = {}
    with copy_with(None) as root:
        for target in others:
            run = _run(command_of(target), root)
            if run.code != 0:
                found[target] = run.violation or run.complaint
        if not tests:
            return found
        run = _run(tests_command(*map(node_of, tests), "-n2"), root, MOST * len(tests))
        if run.complaint:
            found["tests"] = run.complaint
        for failed in run.failed:
            # On a busy machine a test may fail once.
            if _run(tests_command(failed), root).code != 0:
                found[failed] = "it fails, and fails again"
    return found


@dataclass(frozen=True, slots=True)
class _Run:
    """How a command ended.

    Attributes:
        code: its exit code; None when its time was up.
        failed: the tests that failed, in their order.
        last: the last line that it said.
        violation: the line that says which promise was broken.
    """

    code: int | None
    failed: Sequence[str]
    last: str
    violation: str | None

    @property
    def complaint(self) -> str:
        if self.code is None:
            return "it did not end in time"
        if self.code == 0 or self.failed or self.violation:
            return ""
        return f"it could not be run: {self.last}"


def _run(command: Sequence[str], root: Path, most: float = MOST) -> _Run:
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
        code: int | None = None
        try:
            code = process.wait(most)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # What it started goes with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        lines = [line.strip() for line in output if line.strip()]
    failed: list[str] = []
    if code == TESTS_FAILED and noted.exists():
        failed = list(dict.fromkeys(noted.read_text(encoding="utf-8").splitlines()))
    violation = next((line for line in lines if _VIOLATION.search(line)), None)
    return _Run(code, failed, lines[-1] if lines else "", violation)
