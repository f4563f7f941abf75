"""What the cases want of a library."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol


class OpenSemaphore(Protocol):
    """A semaphore of some library, open."""

    def permit(self) -> AbstractAsyncContextManager[object]:
        """Hold a permit for the length of a block."""
        ...

    async def held(self) -> int:
        """How many permits are held, as the server has it."""
        ...

    async def clear(self) -> None:
        """Delete the semaphore."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Which semaphore.

    Attributes:
        url: of the server.
        name: of the semaphore; it is in the name of each of its keys.
        limit: most permits held at a time.
        tasks: how many will use it at a time: where each needs a connection, as many are made.
        lease: seconds after which a crashed holder gives way, where the library has such.
    """

    url: str
    name: str
    limit: int
    tasks: int
    lease: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Something that is measured.

    Attributes:
        label: what reports call it.
        open: opens a semaphore of it.
        package: the distribution that has it, if it does not come with our own needs.
        module: that distribution's module.
        ours: whether it is our own.
        mutex: whether its limit is 1, always.
        polls: whether its waiters ask again and again, each for itself.
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
        """Whether it can be measured here."""
        return self.module is None or find_spec(self.module) is not None
