"""A limit on agents and models of Pydantic AI, across all processes."""

import asyncio
from collections.abc import Callable
from types import EllipsisType
from typing import Any

from ._api.group import SemaphoreGroup
from ._api.semaphore import AnySemaphore
from ._core.errors import AcquireTimeout, QueueFull
from ._core.rates import Cost
from ._integrations.outbound import HeldPermit, raising
from ._integrations.selector import Selector

try:
    from pydantic_ai.concurrency import AbstractConcurrencyLimiter
    from pydantic_ai.exceptions import ConcurrencyLimitExceeded
except ModuleNotFoundError as _missing:
    raise ImportError(
        "redsem_async.pydantic_ai needs pydantic-ai-slim: pip install 'redsem-async[pydantic-ai]'"
    ) from _missing

__all__ = ["PermitsQueueFull", "PermitsTimeout", "SemaphoreLimiter"]


class PermitsTimeout(AcquireTimeout, ConcurrencyLimitExceeded):
    """No permit became free in time. The run or the request did not start.

    It is an ``AcquireTimeout`` and has its attributes. It is also a ``ConcurrencyLimitExceeded``,
    so programs that know only Pydantic AI catch it.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.message: str = str(self)  # OSError's constructor does not call the next one


class PermitsQueueFull(QueueFull, ConcurrencyLimitExceeded):
    """The queue already has ``max_waiters`` waiters. The run or the request did not start.

    It is a ``QueueFull`` with its attributes, and a ``ConcurrencyLimitExceeded``.
    """


class SemaphoreLimiter(AbstractConcurrencyLimiter):
    """A permit for each run of an agent, or for each request to a model.

    ```python
    model = ConcurrencyLimitedModel("openai:gpt-5", limiter=SemaphoreLimiter(sem))
    agent = Agent(model, max_concurrency=SemaphoreLimiter(runs))
    ```

    Errors are raised before the run or the request starts. The loss of a permit does not cancel
    them, because Pydantic AI may acquire in one task and release in another. Such a release frees
    the oldest permit, so use a separate limiter for each streamed model with a different key.

    Args:
        sem_or_group: a semaphore, or a group with one for each *key*.
        key: in a group or in a semaphore with keys, a string or a function of what Pydantic AI
            calls the source, such as ``"model:gpt-5"``. In a group it is the source by default.
        timeout: seconds to wait, instead of the semaphore's. ``None`` waits forever.
        permits: how many permits each run or request needs.
        cost: what each takes from the rate, or a dict of what it takes from each rate, by name, as
            for ``acquire``, or a function of the source that returns one of these.

    Raises:
        PermitsTimeout: (of a run or a request) no permit became free in time.
        PermitsQueueFull: the queue already has ``max_waiters`` waiters.
        BackendError: Redis rejected the command, or is unavailable (``BackendUnavailable``).
        ValueError, TypeError: (of the constructor) for invalid arguments.
    """

    def __init__(
        self,
        sem_or_group: AnySemaphore | SemaphoreGroup,
        *,
        key: Callable[[str], str] | str | EllipsisType | None = ...,
        timeout: float | EllipsisType | None = ...,
        permits: int = 1,
        cost: Callable[[str], Cost | None] | Cost | None = None,
    ) -> None:
        self._choose = Selector(
            sem_or_group,
            key,
            str,
            timeout=timeout,
            permits=permits,
            cancel_on_loss=False,
            cost=cost,
        )
        self._held: list[tuple[asyncio.Task[Any] | None, HeldPermit]] = []

    async def acquire(self, source: str) -> None:
        """Wait for a permit. Pydantic AI calls this."""
        choice = self._choose(source)
        held = HeldPermit(choice.semaphore, choice.acquire())
        with raising(PermitsTimeout, PermitsQueueFull):
            await held.begin()
        self._held.append((asyncio.current_task(), held))

    def release(self) -> None:
        """Release the latest permit of this task, or else the oldest of all."""
        task = asyncio.current_task()
        own = [number for number, (owner, _) in enumerate(self._held) if owner is task]
        _, held = self._held.pop(own[-1] if own else 0)
        held.drop()
