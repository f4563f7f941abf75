"""``python -m tests.mutants`` breaks one promise after another, and a test has to notice each."""

import argparse
import contextlib
import fnmatch
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from .mutant import CHECKOUT, PACKAGE, Mutant, read_mutants

BESIDE = ("pyproject.toml", "README.md", "LICENSE", "docs", "tests")
MOST = 300.0  # seconds for one mutant: far more than its test takes where nothing is wrong
PASSED, FAILED, ENDLESS = 0, 1, -1  # pytest's exit codes; others say that it could not run
_FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+?(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE)


def node_of(test: str) -> str:
    """The id by which pytest knows *test*, in whichever file it is.

    Raises:
        LookupError: there is none, or there are several.
    """
    found = _files_of_tests().get(test.partition("[")[0], [])
    if len(found) != 1:
        raise LookupError(f"{test} is in {len(found)} files")
    return f"{found[0].relative_to(CHECKOUT)}::{test}"


@functools.cache
def _files_of_tests() -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {}
    for file in (CHECKOUT / "tests").rglob("test_*.py"):
        for name in {*re.findall(r"\bdef (test_\w+)\(", file.read_text(encoding="utf-8"))}:
            files.setdefault(name, []).append(file)
    return files


@contextmanager
def copy_with(mutant: Mutant | None) -> Generator[Path]:
    """A folder with the package and its tests, *mutant* in it."""
    with tempfile.TemporaryDirectory(prefix="redsem-mutant-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        for source in (CHECKOUT / item for item in (PACKAGE, *BESIDE)):
            if source.is_dir():
                unwanted = shutil.ignore_patterns("__pycache__", "*.png")
                shutil.copytree(source, root / source.name, ignore=unwanted)
            else:
                shutil.copy(source, root)
        for path, text in mutant.texts().items() if mutant else ():
            (root / path.relative_to(CHECKOUT)).write_text(text, encoding="utf-8")
        yield root


def complaint_of(mutant: Mutant) -> str:
    """Run the tests of *mutant* on it. What is wrong where one does not catch it, or else ''."""
    with copy_with(mutant) as root:
        for test in mutant.tests:
            code, output = run(root, node_of(test), "-x")
            failed = _FAILED_TEST.search(output)
            if code != FAILED or failed is None:
                why = {PASSED: "passed", ENDLESS: "came to no end"}.get(code, output[-2000:])
                return f"{test} {why}"
            # It has to fail again by itself, because a test may fail for want of time.
            if run(root, failed[1])[0] == PASSED:
                return f"{failed[1]} failed once, and not again"
    return ""


def run(root: Path, *arguments: str, most: float = MOST) -> tuple[int, str]:
    """Run pytest in *root*; what it started goes with it."""
    plugins = ("-p", "no:cacheprovider", "-p", "tests.mutants.plugin")
    environment = {"PYTHONPATH": str(root), "PYTHONSAFEPATH": "1", "PYTHONHASHSEED": "0"}
    environment |= {"COLUMNS": "500", "PYTHONDONTWRITEBYTECODE": "1"}
    log, code = root / "output", ENDLESS
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-rfE", *plugins, *arguments],
            cwd=root,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(most)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return code, log.read_text(encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="PROMISE", help="or a pattern")
    parser.add_argument("--list", action="store_true", help="print them, and try none")
    options = parser.parse_args()
    patterns: list[str] = options.only or ["*"]
    chosen = [m for m in read_mutants() if any(fnmatch.fnmatch(m.promise, p) for p in patterns)]
    nodes = sorted({node_of(test) for mutant in chosen for test in mutant.tests})
    if options.list:
        for mutant in chosen:
            print(mutant.promise, *mutant.tests, sep="\n    ")
        return 0
    with copy_with(None) as root:
        code, output = run(root, *nodes, "-n2", most=MOST * len(nodes))
        if code != PASSED:
            print(f"although nothing is changed:\n{output}")
            return 2
    missed = 0
    for mutant in chosen:
        started = time.monotonic()
        complaint = complaint_of(mutant)
        missed += bool(complaint)
        end = f"NOT CAUGHT: {complaint}" if complaint else "caught"
        print(f"{mutant.promise}: {time.monotonic() - started:.1f} s: {end}", flush=True)
    print(f"{len(chosen)} mutants, {len(chosen) - missed} caught by what they are meant for")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
