"""The guardian's own link to a server: it relieves a post whose loop is blocked of refreshing."""

import asyncio
import logging
import random
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._backend import Letter, Link, Node
from ._backoff import delays
from ._claim import Claim, State
from ._clock import now as clock
from ._keys import Address
from ._lane import MOST_HEAVY_REFRESHES, MOST_REFRESHES, Lane
from ._lease import Lost, Outcome, after_refresh
from ._protocol import Answered, Fault, Message, Refresh, Reply, Restore, Trouble

if TYPE_CHECKING:
    from ._guardian import Guardian
    from ._vigil import Vigil

logger = logging.getLogger("redsem_async")

LOOKS = 12  # in a lease, the shortest of those watched
CONNECT_TIME = 5.0  # seconds at most for one attempt to connect
LONGEST_PATIENCE = 3.0  # seconds without an answer, before a connection counts as dead


class _Round(Letter):
    """A refresh of permits on its way, or what puts them back."""

    __slots__ = ("claims", "lane")

    def __init__(
        self, lane: Lane, call: Refresh | Restore, tag: int, claims: Sequence[Claim]
    ) -> None:
        super().__init__(lane.wire, call, tag)
        self.lane: Lane = lane
        self.claims: Sequence[Claim] = claims


class Relief:
    """A link that is made again when it breaks. It hears nothing, and carries refreshes alone."""

    listens = False

    def __init__(self, guardian: "Guardian", vigil: "Vigil", node: Node) -> None:
        self.hub_id = guardian.hub_id
        self._guardian = guardian
        self._vigil = vigil
        self._node = node
        self._link: Link | None = None
        self._lost = asyncio.Event()
        self._on_way: deque[_Round] = deque()
        self._tags = 0
        self._delays = delays(random.random)
        self._warned = False
        self._task = asyncio.get_running_loop().create_task(self._keep_link())

    async def _keep_link(self) -> None:
        while True:
            lease = self._guardian.shortest
            await asyncio.sleep(min(next(self._delays), lease / LOOKS))
            self._lost.clear()
            try:
                async with asyncio.timeout(min(max(lease / 4, 0.25), CONNECT_TIME)):
                    self._link = await self._node.connect(self)
            except Exception as error:  # noqa: BLE001 - the network's, or of the user's making
                if not self._warned:
                    self._warned = True
                    place = self._node.place
                    logger.warning("a second connection to %s failed: %s", place, error)
                continue
            self._vigil.look_soon()
            await self._lost.wait()

    async def close(self) -> None:
        """The thread ends."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._link is not None:
            await self._link.close()

    def refresh(self, claims: Sequence[Claim]) -> None:
        """Refresh *claims*, unless an answer is still awaited."""
        link = self._link
        if link is None:
            return
        if self._on_way:
            patience = min(max(self._guardian.shortest / 6, 0.1), LONGEST_PATIENCE)
            if clock() - self._on_way[0].sent_at > patience:
                self.link_lost(TimeoutError("no answer came"))
                link.abort()
        elif claims and link.writable:
            groups: defaultdict[tuple[Lane, int], list[Claim]] = defaultdict(list)
            for claim in claims:
                groups[claim.lane, claim.terms.lease_ms].append(claim)
            for (lane, lease_ms), group in groups.items():
                heavy = any(claim.permits > 1 for claim in group)
                most = MOST_HEAVY_REFRESHES if heavy else MOST_REFRESHES
                for start in range(0, len(group), most):
                    part = group[start : start + most]
                    weights = {claim.number: claim.permits for claim in part if claim.permits > 1}
                    call = Refresh([claim.number for claim in part], lease_ms, weights)
                    self._on_way.append(self._round(lane, call, part))
            link.send(list(self._on_way), clock())

    def _restore(self, link: Link, lane: Lane, claims: Sequence[Claim]) -> None:
        """The server knows nothing of *claims*, and may have lost its state."""
        permits = [(claim.number, claim.token, claim.permits) for claim in claims]
        call = Restore(permits, claims[0].terms.lease_ms, lane.introduction())
        self._on_way.append(self._round(lane, call, claims))
        link.send([self._on_way[-1]], clock())

    def _round(self, lane: Lane, call: Refresh | Restore, claims: Sequence[Claim]) -> _Round:
        self._tags += 1
        return _Round(lane, call, self._tags, claims)

    # -- what the link says

    def answered(self, letter: Letter, answer: Answered | Fault) -> None:
        sent = self._on_way.popleft()
        assert sent is letter
        if isinstance(answer, Fault):
            self._refused(sent.lane, answer)
            return
        assert isinstance(answer, Reply)
        self._delays, self._warned = delays(random.random), False
        missing: list[Claim] = []
        for claim, held in zip(sent.claims, answer.answers, strict=True):
            if held:
                self._learn(claim, Outcome.RENEWED, sent.sent_at)
            elif sent.lane.wire.recovers and isinstance(sent.call, Refresh):
                missing.append(claim)
            else:
                self._learn(claim, Outcome.GONE, sent.sent_at)
        missing = [claim for claim in missing if claim.trusted_at(clock())]
        if missing and self._link is not None:
            self._restore(self._link, sent.lane, missing)

    def _refused(self, lane: Lane, fault: Fault) -> None:
        """The next look sends it again: at once, and elsewhere, where that helps."""
        match fault.trouble:
            case Trouble.AGAIN:
                self._vigil.look_soon()
            case Trouble.MOVED:
                backend = self._guardian.backend
                node = backend.redirected(lane.address, fault, here=self._node)
                if node is not None:
                    self._vigil.moved(lane, node)
            case _:
                pass

    def _learn(self, claim: Claim, outcome: Outcome, sent_at: float) -> None:
        """A refresh sent at *sent_at* has ended."""
        now, trusted = clock(), claim.trusted_until
        if claim.state is not State.HELD or now >= trusted:
            return  # given back meanwhile; or seen as lost, perhaps, and not to be revived
        if outcome is Outcome.GONE:
            claim.disown()
            self._guardian.to_loop(claim.lane.refreshed, claim, outcome, sent_at)
            return
        lease = claim.terms.lease
        verdict = after_refresh(trusted, lease, outcome, sent_at=sent_at, now=now)
        with self._guardian.trust_lock:
            # Unless the loop writes a detach, which may run after the refresh.
            if not isinstance(verdict, Lost) and sent_at > claim.renewable_after:
                claim.trusted_until = verdict

    def told(self, prefix: str, message: Message) -> None:
        """Messages are for the hub."""

    def unsubscribed(self, address: Address) -> None:
        """It was not subscribed."""

    def deafened(self, error: Exception) -> None:
        """It hears nothing in any case."""

    def writable_again(self) -> None:
        self._vigil.look_soon()

    def link_lost(self, error: Exception) -> None:
        self._link = None
        self._on_way.clear()
        self._lost.set()
