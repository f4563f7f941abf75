"""Programs as they stand on the pages, but for the server's address, and their processes."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
TITLED = re.compile(r'^```\w+ title="(\w+\.\w+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
ADDRESS = "redis://localhost:6379"


def titled_blocks(page: str) -> dict[str, str]:
    """The blocks of *page* that have a file's name as their title."""
    return dict(TITLED.findall((DOCS / page).read_text(encoding="utf-8")))


class Programs:
    """A folder with the programs of some pages, and others.

    Args:
        folder: an empty one.
        url: of the server that they use.
        stack: ends the processes.
        programs: their texts, by the names of the files.
    """

    def __init__(
        self, folder: Path, url: str, stack: ExitStack, programs: Mapping[str, str]
    ) -> None:
        self.url = url
        self._folder = folder
        self._stack = stack
        self._environment = {**os.environ, "REDIS_URL": url}
        # Beside the package that is tested, which may be there and not installed.
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment["PYTHONPATH"] = os.pathsep.join(paths)
        for name, code in programs.items():
            (folder / name).write_text(code.replace(ADDRESS, url), encoding="utf-8")

    def text(self, name: str) -> str:
        """The program *name*."""
        return (self._folder / name).read_text(encoding="utf-8")

    def run(self, *arguments: str) -> str:
        """Run ``python`` with *arguments* to its end, beside the programs. Returns its output."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=50,
        )
        return done.stdout

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start ``python`` with *arguments*; what it started too is ended after the test."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self._folder,
            env=self._environment,
            start_new_session=True,
        )
        self._stack.callback(_end, process)
        return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
