"""Servers whose wall clock a test can step, while they run."""

import shlex
import shutil
import struct
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Final, final

import pytest

from redsem_async.testing._embedded import EmbeddedRedis, find_server
from tests.harness.servers import StartServer

_SOURCE: Final = Path(__file__).with_name("stepped_clock.c")


@final
class SteppedServer:
    """A server, and the clock on its wall."""

    def __init__(self, server: EmbeddedRedis, offset: Path) -> None:
        self.server: Final = server
        self._offset = offset

    def step(self, seconds: float) -> None:
        """Set the server's clock forward, or back; the test sees to it that it shows."""
        [already] = struct.unpack("q", self._offset.read_bytes())
        with self._offset.open("r+b") as file:
            file.write(struct.pack("q", already + round(seconds * 1_000_000)))


def start_with_a_clock_of_its_own(
    embedded: StartServer, folder: Path, *arguments: str
) -> SteppedServer:
    """Start a server behind a preloaded clock, compiled here; skip, aloud, where none can be."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not sys.platform.startswith("linux") or compiler is None:
        pytest.skip("NOT TESTED: a stepped clock needs Linux and a C compiler")
    shim, offset, binary = folder / "clock.so", folder / "offset", folder / "server"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", shim, _SOURCE], check=True)
    offset.write_bytes(struct.pack("q", 0))
    clock = f"LD_PRELOAD={shlex.quote(str(shim))} STEPPED_CLOCK={shlex.quote(str(offset))}"
    real = shlex.quote(str(_server_that_links(find_server())))
    binary.write_text(f'#!/bin/sh\n{clock} exec {real} "$@"\n')
    binary.chmod(0o755)
    return SteppedServer(embedded(*arguments, binary=binary), offset)


def _server_that_links(found: Path) -> Path:
    """*found*, or the server that is installed with the tests if *found* is linked statically."""
    with found.open("rb") as program:
        if b"/ld-" in program.read(4096):  # the name of its dynamic linker
            return found
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("REDSEM_SERVER_BIN")
        other = find_server()
    warnings.warn(f"NOT TESTED on {found}, which takes no clock: on {other}", stacklevel=2)
    return other
