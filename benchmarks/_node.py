"""Peers with ioredis, measured in Node processes: redis-semaphore, and Bottleneck.

Optional: requires ``node`` and ``npm``. Its packages are installed once, in the user's cache.
"""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._bench import Leaked, LimitExceeded
from benchmarks._comparison import Burst, Load

LABEL = "Node redis-semaphore"
HERE = Path(__file__).parent / "node"
_LINE = 2**26  # bytes of a reply, which contains all durations


class NodeUnavailable(Exception):
    """Node is missing, or its packages could not be installed."""


@dataclass(frozen=True, slots=True)
class Node:
    """A running Node driver."""

    process: asyncio.subprocess.Process

    async def turn(self, job: dict[str, Any]) -> Any:
        """What the driver answers to *job*, which its file describes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        line = await self.process.stdout.readline()
        if not line:
            raise NodeUnavailable("the Node driver ended")
        return json.loads(line)

    async def burst(self, name: str, load: Load, seconds: float) -> Burst:
        """Run *load* on a semaphore, as `benchmarks._measure.burst` does."""
        job = {
            "name": name,
            "tasks": load.tasks,
            "limit": load.limit,
            "work_ms": 1000 * load.work,
            "seconds": seconds,
        }
        reply = await self.turn(job)
        if reply["most"] > load.limit:
            raise LimitExceeded(reply["most"], load.limit)
        if reply["held"]:
            raise Leaked(reply["held"])
        return Burst(reply["pairs"], reply["seconds"], reply["waits"])


@asynccontextmanager
async def node(url: str, driver: str = "driver.mjs") -> AsyncGenerator[Node]:
    """Run *driver* for the length of a block; raises `NodeUnavailable`."""
    folder = await asyncio.to_thread(_installed)
    process = await asyncio.create_subprocess_exec(
        *("node", str(folder / driver), url),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=_LINE,
    )
    try:
        yield Node(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _installed() -> Path:
    """The folder of the driver, with its packages installed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise NodeUnavailable("node or npm is missing")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "redsem-async-benchmarks" / "node"
    folder.mkdir(parents=True, exist_ok=True)
    for driver in HERE.glob("*.mjs"):
        shutil.copy(driver, folder)
    wanted, present = HERE / "package.json", folder / "package.json"
    complete = folder / "complete"
    if not complete.exists() or present.read_bytes() != wanted.read_bytes():
        complete.unlink(missing_ok=True)
        shutil.copy(wanted, present)
        command = ("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NodeUnavailable(f"npm failed: {done.stderr.strip()[-200:]}")
        complete.touch()
    return folder
