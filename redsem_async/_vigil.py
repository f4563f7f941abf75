"""What the guardian's thread does: it looks at permits, and has those refreshed that are overdue.

What both threads know is a claim's state and until when it is trusted, each written in one step.
The hub's loop alone changes the state, and does so before it says a word of it to the server. The
thread writes trust that was counted from sending, and only where it had not ended: what the body
has seen as lost stays lost. Where the server says that a permit is gone, its trust ends at once,
for the body may ask while it blocks the loop; what follows from that is the loop's to do.
"""

import asyncio
import atexit
import logging
import threading
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from ._backend import Node
from ._claim import Claim, State
from ._clock import now as clock
from ._lane import Lane
from ._lease import overdue
from ._relief import LOOKS, Relief

if TYPE_CHECKING:
    from ._guardian import Guardian

logger = logging.getLogger("redsem_async")

LONGEST_REST = 0.5  # seconds from one look to the next
LINGER = 1.0  # seconds for which the thread stays when there is nothing to watch
EXIT_TIME = 2.0  # seconds for which the end of the program waits


class Vigil:
    """One thread, from its start to its end."""

    def __init__(self, guardian: "Guardian") -> None:
        """Raises RuntimeError or OSError where there can be no more threads or loops."""
        self.gone: asyncio.Future[None] = guardian.loop.create_future()
        self.thread: threading.Thread = threading.Thread(
            target=self._run, name="redsem-guardian", daemon=True
        )
        self._guardian = guardian
        self._stirred = asyncio.Event()
        self._stopped = False
        self._busy_at = clock()
        self._stuck = False
        self._reliefs: dict[Node, Relief] = {}
        # Where the loop still takes a semaphore to be, and where the server said that it is.
        self._moved: dict[Lane, tuple[Node, Node]] = {}
        self._loop = asyncio.new_event_loop()
        _VIGILS.add(self)
        try:
            self.thread.start()
        except RuntimeError:
            _VIGILS.discard(self)
            self._loop.close()
            raise

    # -- from other threads

    def stir(self) -> None:
        """Look at once."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self.look_soon)

    def stop(self) -> None:
        """End at once."""
        self._stopped = True
        self.stir()

    # -- in the thread

    def _run(self) -> None:
        guardian = self._guardian
        try:
            # Not in debug mode: whoever holds the interpreter's lock is slow, and not we.
            with asyncio.Runner(debug=False, loop_factory=lambda: self._loop) as runner:
                runner.run(self._keep())
        finally:
            guardian.left(self)
            _VIGILS.discard(self)
            guardian.to_loop(self.gone.set_result, None)

    async def _keep(self) -> None:
        try:
            while not (self._stopped or self._at_end()):
                self._guardian.ask_for_life()
                self._look()
                await self._rest()
        finally:
            await asyncio.gather(*(relief.close() for relief in self._reliefs.values()))

    def _at_end(self) -> bool:
        guardian, now = self._guardian, clock()
        if guardian.watched:
            self._busy_at = now
        idle = now - max(self._busy_at, guardian.used_at) >= LINGER
        return (idle or guardian.loop.is_closed()) and guardian.may_leave()

    async def _rest(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(self._guardian.shortest / LOOKS, LONGEST_REST)):
                await self._stirred.wait()
        self._stirred.clear()

    def look_soon(self) -> None:
        """Something has changed."""
        self._stirred.set()

    def _look(self) -> None:
        """Have refreshed what the hub's loop should have refreshed by now."""
        guardian, now = self._guardian, clock()
        silence = now - guardian.seen_at
        due: defaultdict[Relief, list[Claim]] = defaultdict(list)
        stuck = False
        for claim in guardian.watched.copy():
            if claim.state is not State.HELD or claim.hub_id != guardian.hub_id:
                guardian.forget(claim)
                continue
            # Made before it is needed, so that a stall does not begin with a handshake.
            relief = self._relief(self._node_of(claim.lane))
            if not overdue(claim.trusted_until, claim.terms.lease, now):
                continue
            if silence <= (claim.terms.longest_stall or 0.0):
                due[relief].append(claim)
            else:
                stuck = True
        if stuck and not self._stuck:
            logger.warning("the event loop is blocked for %.3g s: its permits are let go", silence)
        self._stuck = stuck
        for relief in self._reliefs.values():
            relief.refresh(due[relief])

    def _relief(self, node: Node) -> Relief:
        relief = self._reliefs.get(node)
        if relief is None:
            relief = self._reliefs[node] = Relief(self._guardian, self, node)
        return relief

    def _node_of(self, lane: Lane) -> Node:
        node = lane.post.node
        moved = self._moved.get(lane)
        if moved is None:
            return node
        if moved[0] is not node:
            del self._moved[lane]  # the loop has followed
            return node
        return moved[1]

    def moved(self, lane: Lane, node: Node) -> None:
        """The semaphore of *lane* is at *node* by now; the loop cannot follow it there."""
        self._moved[lane] = (lane.post.node, node)
        self.look_soon()


_VIGILS: set[Vigil] = set()
"""Those with a thread. A forked child has none of them, and keeps what it inherited as it is."""


def _end_all() -> None:
    """A program may end without closing its event loop."""
    for vigil in list(_VIGILS):
        if vigil.thread.is_alive():
            vigil.stop()
            vigil.thread.join(EXIT_TIME)


atexit.register(_end_all)
