"""What tests say of the servers and programs that they start."""

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from redsem_async.testing._embedded import EmbeddedRedis


class StartServer(Protocol):
    """What the fixture `embedded` gives; see `embedded_redis`."""

    def __call__(self, *arguments: str, binary: str | Path | None = None) -> EmbeddedRedis: ...


def complaints(stderr: str) -> list[str]:
    """What a program in debug mode said, but for asyncio's remarks on a busy machine."""
    return [line for line in stderr.splitlines() if not line.startswith("Executing <")]


@contextmanager
def stopped(server: EmbeddedRedis) -> Generator[None]:
    """The server answers nothing within the block, and keeps its connections."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)
