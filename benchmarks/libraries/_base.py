"""The protocol between the cases and a library."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol


class OpenSemaphore(Protocol):
    """An open semaphore of some library."""

    def permit(self) -> AbstractAsyncContextManager[object]:
        """Hold a permit for the length of a block."""
        ...

    async def held(self) -> int:
        """The number of held permits according to the server."""
        ...

    async def clear(self) -> None:
        """Delete the semaphore."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a semaphore.

    Attributes:
        url: URL of the server.
        name: name of the semaphore; every key contains it.
        limit: maximum number of held permits.
        tasks: number of concurrent tasks, for libraries that need a connection for each.
        lease: lease in seconds, for libraries with leases.
    """

    url: str
    name: str
    limit: int
    tasks: int
    lease: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A measured library.

    Attributes:
        label: name in reports.
        open: opens a semaphore.
        package: distribution to install, if it is not a dependency of ours.
        module: module of that distribution.
        ours: whether it is this library.
        mutex: whether its limit is always 1.
        polls: whether each of its waiters polls.
    """

    label: str
    open: Callable[[Options], AbstractAsyncContextManager[OpenSemaphore]]
    package: str | None = None
    module: str | None = None
    ours: bool = False
    mutex: bool = False
    polls: bool = False

    @property
    def installed(self) -> bool:
        """Whether the library is installed."""
        return self.module is None or find_spec(self.module) is not None
