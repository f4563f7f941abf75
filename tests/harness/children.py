"""Processes of the tests' own, that can be stopped and killed."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from redis.asyncio import Redis

from tests.harness.wait import until

_SCRIPT = Path(__file__).with_name("child.py")


class Worker:
    """A running `child.py`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def spawn(
        cls, scenario: str, options: dict[str, Any], environment: Mapping[str, str] | None = None
    ) -> Self:
        """Start a scenario of `child.py`; an option that is a class is given by its name."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-X", "dev", "-W", "error", str(_SCRIPT)),
            *(scenario, json.dumps(options, default=lambda kind: kind.__name__)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
            env=environment and {**os.environ, **environment},
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def heard(self, event: str, within: float = 30.0) -> dict[str, Any]:
        """The next line of its output, which is about *event*."""
        said = await self.next(within)
        assert said is not None, f"it ended without {event!r}"
        assert said["event"] == event, said
        return said

    async def next(self, within: float = 30.0) -> dict[str, Any] | None:
        """The next line of its output; None when it has ended."""
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), within)
        said: dict[str, Any] | None = json.loads(line) if line else None
        return said

    def go_on(self) -> None:
        """Let it do what comes after this."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go on\n")

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    async def kill(self, server: Redis | None = None) -> None:
        """End it as the kernel does when it runs out of memory, and see that it is dead.

        With *server*, wait until that has closed its connections, too: on a busy machine, what
        others send may arrive there before the end of a connection.
        """
        name = f"worker-{self.pid}"

        async def closed() -> bool:
            assert server is not None
            return name not in [client["name"] for client in await server.client_list()]

        assert server is None or not await closed()
        self._process.kill()
        assert await self._process.wait() == -signal.SIGKILL
        if server is not None:
            await until(closed, "the server has closed its connections")

    async def ended(self, within: float = 30.0) -> int:
        """Its exit code, when it has ended of its own accord."""
        return await asyncio.wait_for(self._process.wait(), within)

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


def forked(says: Callable[[], object]) -> bool:
    """Whether *says* returns something true in a forked child."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(not says())
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


class StartWorker(Protocol):
    """What `start` gives: a process that runs a scenario of `child.py`, on ``jobs``."""

    async def __call__(self, scenario: str, **options: Any) -> Worker: ...
