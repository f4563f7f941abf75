"""Keeps permits refreshed while the hub's event loop is blocked: from a thread of its own.

The thread has an event loop and links of its own, and looks at the permits again and again. As
long as the hub's loop refreshes them in time, it says nothing; where half of a lease is gone, it
refreshes them itself. It does so only while the hub's loop showed life within the longest stall:
a loop that is stuck for ever must lose its permits, as a crashed process does.

This is what the hub's loop sees of it; `_vigil` is what the thread does.
"""

import asyncio
import logging
import math
import threading
from collections.abc import Callable
from contextlib import suppress

from ._backend import Backend
from ._claim import Claim
from ._clock import now as clock
from ._vigil import Vigil

logger = logging.getLogger("redsem_async")

ENDING_TIME = 2.0  # seconds that the end of the thread may take


class Guardian:
    """Permits are watched and forgotten; a thread comes and goes. One for a hub incarnation."""

    def __init__(self, backend: Backend, loop: asyncio.AbstractEventLoop, hub_id: str) -> None:
        self.backend: Backend = backend
        self.loop: asyncio.AbstractEventLoop = loop
        self.hub_id: str = hub_id
        self.watched: set[Claim] = set()  # copied whole, added to and taken from in single steps
        self.shortest: float = math.inf  # lease of any claim so far
        self.seen_at: float = -math.inf  # when the loop last showed life
        self.used_at: float = -math.inf
        self.trust_lock: threading.Lock = threading.Lock()  # where both threads would write trust
        self._asked = False  # for a sign of life
        self._lock = threading.Lock()  # on whether there is a thread
        self._vigil: Vigil | None = None

    # -- in the hub's loop

    def watch(self, claim: Claim, now: float) -> None:
        """Keep the permit of *claim* refreshed, whatever the loop does."""
        self.seen_at = self.used_at = now
        hurry = claim.terms.lease < self.shortest
        if hurry:
            self.shortest = claim.terms.lease
        with self._lock:
            self.watched.add(claim)
            if self._vigil is None:
                self._vigil = self._start()
            elif hurry:
                self._vigil.stir()

    def _start(self) -> Vigil | None:
        try:
            return Vigil(self)
        except (OSError, RuntimeError) as error:
            # The permit is held all the same, and the loop refreshes it.
            logger.warning("no thread keeps permits while the event loop is blocked: %s", error)
            return None

    def forget(self, claim: Claim) -> None:
        """Leave *claim* alone. Takes no lock: a forked child may come here."""
        self.watched.discard(claim)

    async def end(self) -> None:
        """The hub ends: see the thread out, within a bounded time."""
        self.watched.clear()
        with self._lock:
            vigil = self._vigil
        if vigil is not None:
            vigil.stop()
            await asyncio.wait([vigil.gone], timeout=ENDING_TIME)
            if vigil.gone.done():
                vigil.thread.join(ENDING_TIME)  # that was its last word

    def _show_life(self) -> None:
        self.seen_at, self._asked = clock(), False

    # -- in the thread

    def ask_for_life(self) -> None:
        """Have the loop show that it lives, once it comes to that."""
        if not self._asked:
            self._asked = True
            self.to_loop(self._show_life)

    def to_loop(self, work: Callable[..., object], *arguments: object) -> None:
        """Let the loop do something, unless it was closed."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(work, *arguments)

    def may_leave(self) -> bool:
        """Whether the thread may end. If it may, the next permit finds none, and starts one."""
        with self._lock:
            if self.watched and not self.loop.is_closed():
                return False
            self._vigil = None
            return True

    def left(self, vigil: Vigil) -> None:
        """The thread has ended, for whatever reason."""
        with self._lock:
            if self._vigil is vigil:
                self._vigil = None
