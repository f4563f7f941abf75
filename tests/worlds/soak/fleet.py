"""The processes of a soak, as seen from outside: started, stopped, killed, and read from."""

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from redsem_async._core.clock import now
from tests.scripts.history import Stay
from tests.scripts.journal import JournalChecker
from tests.worlds.soak.plan import Plan

_ROOT = Path(__file__).parents[3]
# Behind everything else on the path: the package that is installed is the one to run.
_RUN = f"""
import runpy, sys
sys.path.append({str(_ROOT)!r})
runpy.run_module("tests.worlds.soak.worker", run_name="__main__")
"""


@dataclass
class Sizes:
    """What a process reported of its size."""

    sizes: list[dict[str, int]] = field(default_factory=list[dict[str, int]])
    rest: dict[str, int] | None = None


class Worker:
    """One process. Its reports go to the checker."""

    def __init__(self, number: int, plan: Plan, urls: Sequence[str], tally: "Tally") -> None:
        self.number = number
        self.stopped = False
        self.blocks = 0
        self.sizes = Sizes()
        self._plan = plan
        self._urls = urls
        self._tally = tally
        self._incarnation = 0
        self._killed_at: float | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return f"{self.number}.{self._incarnation}"

    @property
    def alive(self) -> bool:
        running = self._process is not None and self._process.returncode is None
        return running and self._killed_at is None

    async def start(self) -> None:
        self._incarnation += 1
        self._killed_at = None
        self.sizes = Sizes()
        options = {
            "number": self.number,
            "plan": asdict(self._plan),
            "urls": self._urls,
            "seed": hash((self._plan.seed, self.number, self._incarnation)),
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", _RUN, json.dumps(options)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        self._process = process
        self._tally.sizes.append(self.sizes)
        self._tally.checker.history.reported(self.name)
        self._reading = asyncio.create_task(self._read(process))

    def command(self, *words: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)
        self.stopped = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self.stopped = False

    async def kill(self) -> None:
        self._killed_at = now()
        self._signal(signal.SIGKILL)
        await self.ended()

    async def ended(self) -> int:
        """Wait for it to end, and for its last report. Returns how it ended."""
        assert self._process is not None
        assert self._reading is not None
        await self._reading
        return await self._process.wait()

    async def end(self) -> None:
        if self.alive:
            await self.kill()

    def is_stopped(self) -> bool:
        """Whether the system says so."""
        assert self._process is not None
        stat = Path(f"/proc/{self._process.pid}/stat")
        if not stat.exists():
            return True  # a system that does not say; the signal cannot be ignored
        return stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        name, count = self.name, 0
        while (line := await process.stdout.readline()).endswith(b"\n"):
            self._note(name, json.loads(line))
            count += 1
            if count % 100 == 0:
                await asyncio.sleep(0)
        code = await process.wait()
        history = self._tally.checker.history
        if self._killed_at is not None:
            history.died(name, self._tally.at(self._killed_at))
        else:
            history.died(name, self._tally.at(now()))
            if code != 0:
                self._tally.wrong(name, f"ended with {code}")

    def _note(self, name: str, said: list[Any]) -> None:
        history, at = self._tally.checker.history, self._tally.at
        match said:
            case ["got", identity, *facts]:
                lease, place, token, permits, key, slots, since, trusted = facts
                stay = Stay(name, lease, place, token, permits, at(since), at(trusted))
                stay.key, stay.slots = key, tuple(slots)
                history.got(identity, stay)
                self._tally.stays += 1
            case ["doubts", identity, moment]:
                history.doubts(identity, at(moment))
            case ["left", identity, until, asked, released]:
                history.left(identity, at(until), at(asked), released)
            case ["reported", until]:
                history.reported(name, at(until))
            case ["size", size]:
                self.sizes.sizes.append(size)
            case ["rest", size]:
                self.sizes.rest = size
            case ["blocked"]:
                self.blocks += 1
            case ["outcomes", outcomes]:
                self._tally.outcomes.update(outcomes)
            case ["wrong", what]:
                self._tally.wrong(name, what)
            case _:
                self._tally.wrong(name, f"said {said}")


class Tally:
    """What all processes reported, beside what the checker has."""

    def __init__(self, checker: JournalChecker) -> None:
        self.checker = checker
        self.stays = 0
        self.outcomes: Counter[str] = Counter()
        self.sizes: list[Sizes] = []
        self._ahead = time.time() - now()

    def at(self, moment: float) -> float:
        """A *moment* of the monotonic clock that all processes share, by the server's clock."""
        return moment + self._ahead

    def wrong(self, who: str, what: str) -> None:
        self.checker.findings.add("nothing unexpected happens", who, what)
