"""The semaphore classes."""

from typing import TYPE_CHECKING, ClassVar, Unpack

from redsem_async._core import config
from redsem_async._core.config import FairOptions, Options
from redsem_async._core.keys import Mode

from .options import takes_options
from .semaphore import AnySemaphore

if TYPE_CHECKING:
    from .options import AnyRedis


class Semaphore(AnySemaphore):
    """A counting semaphore shared by all processes that use its name.

    Never more than ``limit`` permits are held. A request that fits when it arrives is granted
    immediately. The next waiter is the oldest that fits. A request for several permits may
    therefore starve behind smaller ones, which a ``FairSemaphore`` would make wait. A release may
    serve waiters of its own process first, while the oldest request has waited for less than
    50 ms.

    Its mode is ``zset``. It is based on the counting semaphore of *Redis in Action*, 6.3, which
    keeps its holders in a sorted set. Here each operation is one atomic script that uses the
    server's clock.
    """

    _mode: ClassVar[Mode] = "zset"

    @takes_options
    def __init__(
        self, redis: "AnyRedis", name: str, limit: int | None = None, **options: Unpack[Options]
    ) -> None:
        super().__init__(redis, name, limit, **options)


class FairSemaphore(AnySemaphore):
    """A semaphore that grants permits first come, first served, across all processes.

    Never more than ``limit`` permits are held. Every request draws a ticket from a counter that
    only increases, and permits are granted strictly in that order. No waiter starves, and a
    crashed process's request is skipped.

    Its mode is ``fair``. It is based on the fair semaphore of *Redis in Action*, 6.3. Here each
    operation is one atomic script. No other process can intervene between drawing a ticket and
    ranking it, a failed request leaves no entry, and one caller's timeout does not apply to
    others.
    """

    _mode: ClassVar[Mode] = "fair"

    @takes_options
    def __init__(
        self,
        redis: "AnyRedis",
        name: str,
        limit: int | None = None,
        **options: Unpack[FairOptions],
    ) -> None:
        super().__init__(redis, name, limit, **options)


class Mutex(FairSemaphore):
    """A ``FairSemaphore`` with a limit of 1, for one holder at a time.

    ``set_limit`` pauses it with 0, and refuses more than 1.
    """

    @takes_options
    def __init__(
        self, redis: "AnyRedis", name: str, *, limit: int = 1, **options: Unpack[Options]
    ) -> None:
        if limit != 1:
            raise TypeError("the limit of a Mutex is 1: for another limit, use FairSemaphore")
        super().__init__(redis, name, limit, **options)

    async def set_limit(self, limit: int | None, *, key: str | None = None) -> None:
        """Set a limit of 0 or 1, as in every semaphore. ``None`` removes it.

        Raises:
            ValueError, TypeError: for an invalid limit, such as one above 1.
            SemaphoreError: see `AnySemaphore`. If cancelled, it may still take effect.
        """
        if limit is not None and config.whole(limit, "limit", 0) > 1:
            raise ValueError(f"the limit of a Mutex is at most 1, not {limit}: use FairSemaphore")
        await super().set_limit(limit, key=key)
