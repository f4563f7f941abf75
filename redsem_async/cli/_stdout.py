"""Errors of stdout, told apart from those of Redis, because both are an `OSError`."""

import os
import sys
from contextlib import suppress
from typing import Any, NoReturn, TextIO, cast


class StdoutFailed(Exception):
    """Stdout takes no more output, because its reader has ended or the disk is full."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"redsem-async: stdout: {cause.strerror or cause}")
        self.silent = isinstance(cause, BrokenPipeError)  # as a program in a pipeline ends


class _Stdout:
    """A stream that raises `StdoutFailed` for an `OSError`, and else is the one that it has."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise StdoutFailed(error) from error

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise StdoutFailed(error) from error


def tell_errors_apart() -> None:
    """Let stdout raise `StdoutFailed` from now on, and escape what its encoding lacks."""
    if (stream := cast("TextIO | None", sys.stdout)) is None:  # closed by the caller
        return
    with suppress(AttributeError):  # as stderr does, because names may not fit the encoding
        cast("Any", stream).reconfigure(errors="backslashreplace")
    sys.stdout = cast("TextIO", _Stdout(stream))


def end(failed: StdoutFailed) -> NoReturn:
    """Exit with 1, and name stdout on one line of stderr unless only its reader has ended."""
    # Python writes at its end what is left, and would fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1 if failed.silent else str(failed))
