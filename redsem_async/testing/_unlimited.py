"""No limits, and no server."""

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from itertools import count
from typing import Any

from redsem_async._api.stand_ins import STAND_INS
from redsem_async._core.keys import Address
from redsem_async._protocol.backend import Link, Listener, OneNode
from redsem_async._protocol.operations import (
    DEFAULT_OPTIONS,
    Abandon,
    Acquire,
    Adopt,
    AnyOperation,
    Detach,
    Heartbeat,
    Refresh,
    Release,
)
from redsem_async._protocol.replies import AdoptReply, Holding, Reply
from redsem_async._protocol.status import Status, StatusReply, Viewer
from redsem_async._protocol.views import SemaphoreStatus

from ._memory import MemoryLink


class unlimited(AbstractContextManager[None], AbstractAsyncContextManager[None]):  # noqa: N801
    """Grant every request of every semaphore immediately, without Redis, in the block.

    ```python
    with unlimited():  # or `async with`
        async with sem as permit:
            ...
    ```

    It is for tests of code whose limits do not matter, and a switch for an emergency. It holds
    for the whole process, in all threads and event loops. Requests that already wait, and permits
    that are already held, are not affected.

    Arguments are checked as usual. A permit has an id, a growing fencing token and slots, and is
    refreshed and released as usual, also after the block, but nothing is sent. Slots are given
    out in turn, so more than one holder may have the same. ``adopt`` takes over a permit that was
    detached in this process, once, and any permit of another. ``status`` shows no holders, and
    ``set_limit`` and ``back_off`` have no effect.
    """

    def __enter__(self) -> None:
        STAND_INS.append(_GRANTS)

    def __exit__(self, *_: object) -> None:
        STAND_INS.remove(_GRANTS)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()


class _Grants(OneNode):
    """A server that grants everything."""

    place = "unlimited()"

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.links: list[MemoryLink] = []
        self._token = 0
        self._turns = count()
        self._held: dict[tuple[str, int], AdoptReply] = {}  # as who adopts it is told

    async def connect(self, listener: Listener) -> Link:
        """Open a link. The library calls this."""
        return MemoryLink(self, listener)

    def run(self, address: Address, operation: AnyOperation, hub: str) -> Any:
        """Carry *operation* out and return the reply."""
        with self.lock:
            match operation:
                case Acquire(numbers=numbers):
                    given = {number: self._grant(operation, hub, number) for number in numbers}
                    tokens = [holding.token for holding in given.values()]
                    return Reply(tokens, slots={n: given[n].slots for n in numbers})
                case Adopt(owner=owner, old=old):
                    return self._adopt(operation, hub, known=(owner, old) in self._held)
                case Release(owner=owner, numbers=numbers):
                    ended = [self._held.pop((owner, number), None) for number in numbers]
                    return Reply([int(each is not None) for each in ended])
                case Refresh(numbers=numbers):
                    return Reply([operation.max_hold_ms or 1] * len(numbers))
                case Abandon(requests=requests):
                    for request in requests:
                        self._held.pop((hub, request.number), None)
                    return Reply([1] * len(requests))
                case Heartbeat(requests=requests):
                    return Reply([0] * len(requests))
                case Detach():
                    return Reply([1])
                case Status(viewer=Viewer(limit=limit)):
                    status = SemaphoreStatus(address.name, limit, 0, limit, 0, (), ())
                    return StatusReply(status, blocked=False, key_limits=0)
                case _:
                    return Reply([0])

    def _grant(self, asked: Acquire, hub: str, number: int) -> Holding:
        options = asked.options.get(number, DEFAULT_OPTIONS)
        holding = self._holding(asked.lease_ms, asked.slots, options.permits)
        known = None if options.key is None else options.key.key
        self._held[hub, number] = AdoptReply(holding, options.permits, key=known)
        return holding

    def _holding(self, lease_ms: int, slots: Sequence[str | int] | None, permits: int) -> Holding:
        """A new permit. Its token grows with the time, as Redis's do."""
        self._token = max(self._token + 1, _now_us())
        own = [next(self._turns) % len(slots) for _ in range(permits)] if slots else ()
        return Holding(self._token, lease_ms, own)

    def _adopt(self, asked: Adopt, hub: str, *, known: bool) -> AdoptReply:
        if not known and any(link.hub == asked.owner for link in self.links):
            return AdoptReply(None)  # it was released, or adopted already
        new = AdoptReply(self._holding(asked.lease_ms, asked.slots, 1))
        self._held[hub, asked.new] = held = self._held.pop((asked.owner, asked.old), new)
        return held


def _now_us() -> int:
    return time.time_ns() // 1000


_GRANTS = _Grants()
