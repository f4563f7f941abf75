"""Programs as they stand on the pages, but for the server's address, and their processes."""

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
TITLED = re.compile(r'^```\{\.python title="(\w+\.py)"\}\n(.*?)^```', re.MULTILINE | re.DOTALL)
ADDRESS = "redis://localhost:6379"

# What the programs call `work`: it counts, on the server, and stays inside for some seconds.
WORK = """
import asyncio

from redis.asyncio import Redis


async def render(document: str) -> str:
    async with Redis.from_url("redis://localhost:6379") as redis:
        inside = await redis.incr("inside")
        try:
            await redis.rpush("seen", inside)
            await asyncio.sleep(float(document.partition("-")[2]))
        finally:
            await redis.decr("inside")
        await redis.rpush("done", document)
    return document
"""


def titled_blocks(page: str) -> dict[str, str]:
    """The blocks of *page* that have a file's name as their title."""
    return dict(TITLED.findall((DOCS / page).read_text(encoding="utf-8")))


class Programs:
    """A folder with the programs of both pages."""

    def __init__(self, folder: Path, url: str, stack: ExitStack) -> None:
        self.url = url
        self._folder = folder
        self._stack = stack
        self._environment = os.environ | {"PYTHONPATH": str(folder)}
        blocks = titled_blocks("workers.md") | titled_blocks("frameworks.md")
        for name, code in {**blocks, "work.py": WORK}.items():
            (folder / name).write_text(code.replace(ADDRESS, url), encoding="utf-8")

    def text(self, name: str) -> str:
        """The program *name*."""
        return (self._folder / name).read_text(encoding="utf-8")

    def run(self, code: str) -> None:
        """Run *code* to its end, beside the programs."""
        command = [sys.executable, "-c", code]
        subprocess.run(command, cwd=self._folder, env=self._environment, check=True, timeout=50)

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start ``python -m`` with *arguments*; what it started too is ended after the test."""
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
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
