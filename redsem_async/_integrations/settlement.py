"""What a request really cost, as its response says."""

from collections.abc import Callable
from functools import partial
from typing import Any

from redsem_async._api.group import SemaphoreGroup
from redsem_async._api.permit import Permit
from redsem_async._api.semaphore import AnySemaphore
from redsem_async._core import config
from redsem_async._core.rates import Cost

from .outbound import WhenRead
from .overload import failures_logged
from .selector import terms_of

Settle = Callable[[Any], Cost | None]
"""What a response cost. None for the estimate."""


class Settlements:
    """Settles permits of *source* by what *settle* says that their responses cost."""

    def __init__(self, source: AnySemaphore | SemaphoreGroup, settle: Settle | None) -> None:
        if settle is not None:
            config.check_function(settle, "settle")
            if not terms_of(source).rates:
                raise TypeError("settle needs a FairSemaphore with rate=")
        self._settle = settle

    def note(self, permit: Permit | None, read: Callable[[], Any]) -> None:
        """*read* returns the response to the request that holds *permit*, with its content."""
        if permit is None or self._settle is None:
            return
        with failures_logged("settle", permit):
            cost = self._settle(read())
            if cost is not None:
                permit.settle(cost)

    def when_read(self, permit: Permit | None, read: Callable[..., Any]) -> WhenRead | None:
        """The same for a response that is read later. *read* gets its ``content``."""
        if permit is None or self._settle is None:
            return None
        return lambda content: self.note(permit, partial(read, content=content))
