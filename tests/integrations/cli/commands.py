"""Runs the ``redsem-async`` command: in this process, in a child process, in a terminal."""

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
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import click.testing
from redis.asyncio import Redis

from redsem_async import AnySemaphore, Permit
from redsem_async.cli._app import app
from tests.harness.wait import waiting

PASSWORD = "hunter2-of-the-test"
COMMAND = (sys.executable, "-m", "redsem_async")
CTRL_C = "\x03"
TIMEOUT = 45.0  # seconds, for a loaded machine

# Makes the terminal the controlling one, so that the program gets its signals.
WITH_CONTROLLING_TERMINAL = """
import fcntl, os, sys, termios

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True)
class Result:
    """The output and the exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def json_output(self) -> Any:
        """The parsed JSON output."""
        return json.loads(self.out)

    @property
    def error_line(self) -> str:
        """The only line of output, on stderr, without its author."""
        assert self.out == ""
        [line] = self.err.splitlines()
        assert line.startswith("redsem-async: ")
        return line.removeprefix("redsem-async: ")


async def command(*arguments: str, url: str, answer: str | None = None) -> Result:
    """Run a command in a thread, because it starts its own event loop."""
    runner = click.testing.CliRunner(env={"REDIS_URL": url})
    done = await asyncio.to_thread(runner.invoke, app, list(arguments), input=answer)
    unexpected = done.exception is not None and not isinstance(done.exception, SystemExit)
    assert not unexpected, done.exception
    return Result(done.exit_code, done.stdout, done.stderr)


class Cli:
    """Runs commands on one server."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __call__(self, *arguments: str, answer: str | None = None) -> Result:
        return await command(*arguments, url=self._url, answer=answer)

    async def json(self, *arguments: str) -> Any:
        """The output with ``--json``, parsed."""
        return (await self(*arguments, "--json")).json_output


async def program(*arguments: str, **environment: str) -> Result:
    """Run a command in a child process, as users do."""
    done = await asyncio.to_thread(
        subprocess.run,
        [*COMMAND, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


async def execute(redis: Redis, *arguments: str | int) -> Any:
    untyped: Any = redis
    return await untyped.execute_command(*arguments)


async def as_user(redis: Redis, url: str, *rules: str) -> str:
    """The URL of a user with these ACL *rules*."""
    await execute(redis, "ACL", "SETUSER", "semaphores", "reset", "on", f">{PASSWORD}", *rules)
    return url.replace("redis://", f"redis://semaphores:{PASSWORD}@")


async def queued(
    semaphore: AnySemaphore, count: int = 1, **options: Any
) -> list["asyncio.Task[Permit]"]:
    """Start tasks that wait, and return once the server has queued them."""
    before = (await semaphore.status(0)).waiting
    tasks = [asyncio.create_task(semaphore.acquire(**options)) for _ in range(count)]
    await waiting(semaphore, before + count)
    return tasks


class Terminal:
    """A command in a pseudo-terminal."""

    def __init__(self, process: "subprocess.Popen[bytes]", side: int) -> None:
        self.process = process
        self.screen = ""
        self._side = side

    async def shows(self, text: str) -> None:
        """Wait until the screen shows *text*."""
        await self._read_until(lambda: text in self.screen, text)

    async def ended(self) -> int:
        """Wait for the end of the command, and return its exit code."""
        await self._read_until(lambda: self.process.poll() is not None, "its end")
        with suppress(OSError):  # what it wrote between the last read and its end
            while text := os.read(self._side, 65536):
                self.screen += text.decode(errors="replace")
        return self.process.returncode

    def press(self, keys: str) -> None:
        """Type *keys*."""
        os.write(self._side, keys.encode())

    async def interrupt(self) -> int:
        """Press Ctrl-C until the command ends, and return its exit code.

        Python notices a signal that comes just before it reads a line only after that line.
        """
        while self.process.poll() is None:
            self.press(CTRL_C)
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self.process.wait, 5.0)
        return await self.ended()

    async def _read_until(self, holds: Any, what: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while True:
            ended = self.process.poll() is not None
            try:
                self.screen += os.read(self._side, 65536).decode(errors="replace")
                continue
            except BlockingIOError:
                pass
            except OSError:  # the command has closed the terminal: it is about to end
                await asyncio.to_thread(self.process.wait, TIMEOUT)
                ended = True
            if holds():
                return
            assert not ended, f"it ended and did not show {what!r}: {self.screen}"
            assert time.monotonic() < deadline, f"no {what!r}: {self.screen}"
            await asyncio.sleep(0.01)


@contextmanager
def terminal(
    *arguments: str,
    columns: int = 100,
    lines: int = 30,
    term: str = "xterm-256color",
    program: Sequence[str] = COMMAND,
) -> Generator[Terminal]:
    """Run a command, or another program, in a pseudo-terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    os.set_blocking(ours, False)
    process = subprocess.Popen(
        [sys.executable, "-c", WITH_CONTROLLING_TERMINAL, *program, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=os.environ | {"TERM": term},
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours)
