"""What a hub says of itself to a server, once for each connection and semaphore."""

import os
import socket
import time

from redsem_async._core.config import Terms
from redsem_async._core.rates import told_rates
from redsem_async._core.version import __version__
from redsem_async._protocol.hub_info import NO_PUSH, UNCHANGED, UNCOUNTED, HubInfo, describe

from .route import Route


class Introduction:
    """Attached to the next command that can carry it, until the server has it.

    Attributes:
        terms: those of the semaphore object that was used last.
        sent: whether a command carried it, and the server may be expected to remember.
    """

    def __init__(self, route: Route, label: str | None) -> None:
        self.terms: Terms | None = None
        self.sent: bool = False
        self._route = route
        self._label = label

    def take(self, used: int = 0) -> HubInfo:
        """What the command that is written now carries. UNCHANGED if the server has it."""
        if self.sent:
            return UNCHANGED
        self.sent = True
        terms = self.terms
        assert terms is not None
        of_keys = terms.key_limit
        description = describe(
            label=self._label,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            started=round(_STARTED, 3),
            limit=terms.limit,
            lease=terms.lease,
            refresh_interval=round(terms.refresh_interval, 3),
            **({"key_limit": of_keys} if isinstance(of_keys, int) else {}),
            **({"rates": told_rates(terms.rates)} if terms.rates else {}),
        )
        link = self._route.link_state
        messages = NO_PUSH if link.no_push else link.uncounted * UNCOUNTED
        return HubInfo(description, messages, used)


_STARTED = time.time()


def signature(label: str | None) -> str:
    """Who sets a limit or begins a back-off, as 'label@host:pid', in at most 200 bytes."""
    who = f"{_cut(label, 100)}@" if label else ""
    return f"{who}{_cut(socket.gethostname(), 80)}:{os.getpid()}"


def _cut(text: str, most: int) -> str:
    return text.encode(errors="replace")[:most].decode(errors="ignore")
