"""A command in a process group of its own, which does not outlive this process."""

import asyncio
import errno
import json
import os
import select
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ._target import fail, printable

PASSED_ON = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")
NOT_EXECUTABLE, NOT_FOUND = 126, 127  # exit codes, as shells have them
PR_SET_PDEATHSIG = 1


def check_program(program: str) -> None:
    """Exit as shells do if there is no such *program*, before anything waits for its permit."""
    if shutil.which(program) is None:
        found = "/" in program and Path(program).exists()
        reason = os.strerror(errno.EACCES if found else errno.ENOENT)
        fail(f"{program}: {reason}", NOT_EXECUTABLE if found else NOT_FOUND)


class Process:
    """A forked process that becomes the command once it is started.

    It is forked while this process has neither an event loop nor threads, and reads from a pipe
    what to add to its environment. A second process waits for the end of the pipe, which comes
    however this process ends, and kills the group then.

    Attributes:
        code: the exit code, once it has ended. 128 + n for signal n.
        ended: done once it has ended.
        signalled: the signal that came before the start, or after the end. 0 for none.
        asked_to_end: whether a SIGINT or SIGTERM was passed on.
    """

    def __init__(self, command: list[str]) -> None:
        reading, self._pipe = os.pipe()
        self._pid = _fork(self._pipe, lambda: _become(command, reading))
        os.setpgid(self._pid, self._pid)
        self._killer = _fork(self._pipe, lambda: _kill_at_the_end(self._pid, reading))
        os.close(reading)
        self._tty: int | None = None
        with suppress(OSError):  # there is no terminal
            self._tty = os.open("/dev/tty", os.O_RDWR)
        # Others in a pipeline may read from the terminal, so it is passed on only when asked for.
        self._wants_tty = os.isatty(0) and os.isatty(1)
        self._has_tty = False
        self._started = False
        self.code: int | None = None
        self.ended: asyncio.Future[None]
        self.signalled = 0
        self.asked_to_end = False

    def close(self) -> None:
        """Leave no process behind. A command that has not ended is killed."""
        if self.code is not None:
            os.kill(self._killer, signal.SIGKILL)
        os.close(self._pipe)
        os.waitpid(self._killer, 0)
        if self.code is None:
            os.waitpid(self._pid, 0)

    def listen(self) -> None:
        """Pass signals on from now on. Before the start, and after the end, cancel this task."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self.ended = loop.create_future()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])  # inherited, perhaps
        for name in (*PASSED_ON, "SIGTSTP"):
            number: int = getattr(signal, name)
            if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` has it
                loop.add_signal_handler(number, self._signalled, number, task)
        loop.add_signal_handler(signal.SIGCONT, self._resume)
        loop.add_signal_handler(signal.SIGCHLD, self._changed)

    def start(self, **environment: str) -> None:
        """Become the command, with these variables."""
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # so that the terminal can be taken back
        self._started = True
        self._hand_over_tty()
        os.write(self._pipe, f"{json.dumps(environment)}\n".encode())

    def send(self, number: int) -> None:
        """Send a signal to the group, unless the command has ended."""
        if self.code is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, number)

    def terminate(self) -> None:
        """Ask the group to end, also if it is stopped."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """Kill what is left of the group, also once the command has ended."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)

    def group_exists(self) -> bool:
        """Whether a process of the group is left that may be killed."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, 0)
            return True
        return False

    def _signalled(self, number: int, task: "asyncio.Task[Any]") -> None:
        if self._started and self.code is None:
            self.asked_to_end |= number in (signal.SIGINT, signal.SIGTERM)
            self.send(number)
        elif number == signal.SIGTSTP:
            self._stop()
        else:
            self.signalled = number
            task.cancel()

    def _changed(self) -> None:
        """The command has ended, or was stopped."""
        if self.code is not None:
            return
        pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            asks = os.WSTOPSIG(status) in (signal.SIGTTIN, signal.SIGTTOU)
            self._wants_tty = self._wants_tty or asks
            if asks and self._in_foreground():
                self._resume()
            else:
                self._stop()
        elif pid:
            code = os.waitstatus_to_exitcode(status)
            self.code = code if code >= 0 else 128 - code
            self._take_tty_back()
            self.ended.set_result(None)

    # -- the terminal

    def _stop(self) -> None:
        """Stop as well, so that the shell continues, until `fg` or `bg`."""
        if self._tty is None:
            return
        self._take_tty_back()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(0, signal.SIGTSTP)  # the others of a pipeline as well, and returns when resumed
        signal.signal(signal.SIGTSTP, handler)
        self._resume()

    def _resume(self) -> None:
        if self._started:
            self._hand_over_tty()
            self.send(signal.SIGCONT)

    def _in_foreground(self) -> bool:
        with suppress(OSError):  # it was hung up
            return self._tty is not None and os.tcgetpgrp(self._tty) == os.getpgrp()
        return False

    def _hand_over_tty(self) -> None:
        if self._wants_tty and self._tty is not None and self._in_foreground():
            os.tcsetpgrp(self._tty, self._pid)
            self._has_tty = True

    def _take_tty_back(self) -> None:
        if self._has_tty and self._tty is not None:
            self._has_tty = False
            with suppress(OSError):
                os.tcsetpgrp(self._tty, os.getpgrp())


def _fork(writing: int, work: Callable[[], None]) -> int:
    """Do *work* in a forked process, and return its id."""
    pid = os.fork()
    if not pid:
        try:
            os.close(writing)
            work()
        finally:
            os._exit(1)
    return pid


def _become(command: list[str], reading: int) -> None:
    """Become *command* when it is started. Otherwise this ends without it."""
    with suppress(ImportError, OSError, AttributeError):  # where there is no such thing
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with os.fdopen(reading) as pipe:
        line = pipe.readline()
    if not line:
        return
    os.environ.pop("REDSEM_SLOT", None)  # of an outer command
    os.environ.update(json.loads(line))
    for name in ("SIGPIPE", "SIGXFSZ"):  # which Python ignores
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        with suppress(OSError):  # stderr was closed
            os.write(2, f"redsem-async: {printable(command[0])}: {error.strerror}\n".encode())
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)


def _kill_at_the_end(group: int, reading: int) -> None:
    """Kill *group* when the process that forked this one has ended."""
    os.setsid()  # away from the signals of its terminal, and of programs that signal by name
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pipe = select.poll()
    pipe.register(reading, 0)  # there is always POLLHUP, whatever was not read
    pipe.poll()
    os.killpg(group, signal.SIGKILL)
