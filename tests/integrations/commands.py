"""Runs of the ``redsem-async`` command: in this process, in one of its own, in a terminal."""

import asyncio
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import typer.testing

from redsem_async.cli._app import app

COMMAND = (sys.executable, "-m", "redsem_async")
CTRL_C = "\x03"
PATIENCE = 20.0  # seconds, on a busy machine

# Has the terminal send its signals to the program.
IN_CHARGE = """
import fcntl, os, sys, termios

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True)
class Said:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def facts(self) -> Any:
        """What it said as JSON."""
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The one line that it failed with."""
        assert self.out == ""
        [line] = self.err.splitlines()
        return line


async def command(*arguments: str, url: str, answer: str | None = None) -> Said:
    """Run a command in a thread, for its event loop is its own."""
    runner = typer.testing.CliRunner(env={"REDIS_URL": url})
    done = await asyncio.to_thread(runner.invoke, app, list(arguments), input=answer)
    unexpected = done.exception is not None and not isinstance(done.exception, SystemExit)
    assert not unexpected, done.exception
    return Said(done.exit_code, done.stdout, done.stderr)


async def program(*arguments: str, **environment: str) -> Said:
    """Run a command as users do, in a process of its own."""
    done = await asyncio.to_thread(
        subprocess.run,
        [*COMMAND, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


class Terminal:
    """A command that runs in a terminal: what it shows can be waited for, and keys be pressed."""

    def __init__(self, process: "subprocess.Popen[bytes]", side: int) -> None:
        self.process = process
        self.screen = ""
        self._side = side

    async def shows(self, text: str) -> None:
        """Wait until it has shown *text*."""
        await self._read_until(lambda: text in self.screen, text)

    async def ended(self) -> int:
        """Wait for its end, and return its exit code."""
        await self._read_until(lambda: self.process.poll() is not None, "its end")
        return self.process.returncode

    def press(self, keys: str) -> None:
        """As if they were typed."""
        os.write(self._side, keys.encode())

    async def _read_until(self, holds: Any, what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            ended = self.process.poll() is not None
            try:
                self.screen += os.read(self._side, 65536).decode(errors="replace")
                continue
            except BlockingIOError:
                pass
            except OSError:  # the other side is closed
                ended = True
            if holds():
                return
            assert not ended, f"it ended and did not show {what!r}: {self.screen}"
            assert time.monotonic() < deadline, f"no {what!r}: {self.screen}"
            await asyncio.sleep(0.01)


@contextmanager
def terminal(*arguments: str, columns: int = 100, lines: int = 30) -> Generator[Terminal]:
    """Run a command in a terminal of its own."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    os.set_blocking(ours, False)
    process = subprocess.Popen(
        [sys.executable, "-c", IN_CHARGE, *COMMAND, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=os.environ | {"TERM": "xterm-256color"},
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours)
