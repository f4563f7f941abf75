"""What a simulation knows of its server, beside the rules of every world: its books.

The judge keeps books of what clients asked for, and looks at the semaphore around each call.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet

import redsem_async._protocol.operations as op
from redsem_async._core.keys import permit_id
from redsem_async._hub.model import Request
from redsem_async._hub.state import SemaphoreState
from redsem_async._protocol.backend import AnyReply
from redsem_async._protocol.errors import CommandError
from tests.worlds.judge import Broken, Trusted, own_ids
from tests.worlds.judge import Judge as Rules
from tests.worlds.look import Look, key_of

if TYPE_CHECKING:
    from .walk import Walk

CLOCKS = 1.01  # of two processes, beside each other
REMEMBERED = 60.0  # seconds for which the judge remembers how everything stood
NOTHING = Look(0, {}, [])


class Around(NamedTuple):
    """What went on around a call.

    Attributes:
        notified: hubs that a message went to, as the server believes.
        reached: hubs that a message is sure to reach.
        late: its link was closed before.
    """

    notified: frozenset[str]
    reached: frozenset[str]
    late: bool


class Judge:
    """Watches one semaphore on the server."""

    def __init__(self, world: "Walk", name: str) -> None:
        self.name = name
        self.revived: set[str] = set()  # granted to a delayed duplicate, after the marks were lost
        self.detached: set[str] = set()
        self.revived_line: set[str] = set()
        self.grants = 0
        self.heir: dict[str, str] = {}  # who adopted, by the id that it adopted
        self.flushed_at = -math.inf
        self.orders = world.orders[name]
        self._looks: deque[tuple[float, Look]] = deque()  # the last ones, each after a call
        self._world = world
        self._rules = Rules()
        self._since: dict[str, float] = {}  # from when on each is held
        self._began: set[str] = set()
        self._closed: set[str] = set()  # given up or given back by their own hub
        self._answered: WeakSet[Request] = WeakSet()

    def ran(
        self,
        before: Look,
        call: op.AnyOperation,
        hub: str,
        answer: AnyReply | CommandError,
        after: Look,
        around: Around,
        trusted: Trusted,
    ) -> bool:
        """Judge what *call* by *hub* has done. Returns whether that was anything."""
        self._report(self._rules.ran(before, call, hub, answer, after, trusted))
        if isinstance(answer, CommandError):
            return False
        new = after.live.keys() - before.live.keys()
        gone = before.live.keys() - after.live.keys()
        found = list(self.orders.ran(before, call, hub, answer, after))
        if not (around.late and self.forgot):  # it forgot that it ran before, perhaps long ago
            self._report(found)
        self._begin(new)
        if isinstance(call, op.Adopt):
            self.heir |= {permit_id(call.owner, call.old): identity for identity in new}
        else:
            self.grants += len(new)
        now = self._world.now
        self._since = {i: self._since.get(i, now) for i in after.live}
        others = {identity.partition(".")[0] for identity in new} - {hub}
        for identity in new - own_ids(call, hub):
            self._world.holdings.handed_over(self.request(identity))
        for owner in others - around.notified:
            silent = owner in after.silent
            self._check(silent, f"{new} were granted, and nobody was notified")
        if isinstance(call, op.Abandon) or (isinstance(call, op.Release) and call.owner == hub):
            self._closed |= own_ids(call, hub)
        elif isinstance(call, op.Detach):
            self.detached |= own_ids(call, hub)
        were, are = ({waiter.id for waiter in look.line} for look in (before, after))
        if around.late and self.forgot:
            self.revived |= new
            self.revived_line |= are - were
        # A process that the message reaches gives it back.
        self.revived |= {
            i for i in new & self.revived_line if i.partition(".")[0] not in around.reached
        }
        self._looks.append((self._world.now, after))
        while len(self._looks) > 1 and self._looks[1][0] < self._world.now - REMEMBERED:
            self._looks.popleft()
        return bool(new or gone or were != are)

    def forgot_some(self, before: Look, after: Look) -> None:
        """The server forgot what is missing *after*, with marks that stop delayed duplicates."""
        self.flushed_at = self._world.now
        self._rules.forgot(before, after)
        self._since = {i: at for i, at in self._since.items() if i in after.live}
        self.orders.forgot(after)
        self._looks.append((self._world.now, after))

    @property
    def unsure(self) -> bool:
        """Whether the server may take what is held for lost."""
        now_ms = self._world.server_us // 1000
        return bool(self._rules.maimed) or now_ms < self._rules.unsure_until

    @property
    def forgot(self) -> bool:
        return self.flushed_at > -math.inf

    def arrived(self, call: op.Acquire, hub: str) -> None:
        """Requests of one process that nobody has answered come in the order of their calls."""
        for state in self._states(hub):
            known = [state.requests[n] for n in call.numbers if n in state.requests]
            asked = [request for request in state.pending() if not request.call]
            for request in known:
                self._answered.add(request)
                passed = any(
                    other.order < request.order
                    and other.started <= request.started  # one may have had a lease for a moment
                    and other.ahead == request.ahead
                    and other not in self._answered
                    for other in asked
                )
                self._check(not passed, f"{request.number} of {hub} came before its turn: {call}")

    def request(self, identity: str) -> Request | None:
        """What its process knows of it."""
        hub, _, number = identity.partition(".")
        states = self._states(hub)
        return states[0].requests.get(int(number)) if states else None

    def _states(self, hub: str) -> list[SemaphoreState]:
        remotes = self._world.owners[hub].remotes
        states = [remote for remote in remotes if remote.address.name == self.name]
        return [state for state in states if state.identity.id == hub]

    # -- what the clients ask for

    def held_since(self, identity: str, margin: float = 0.0) -> float:
        """From when on a permit has been held under *identity*, without a break until now.

        One that expires within *margin* seconds counts as held no more.
        """
        held, at = self._last.holders.get(identity), self._world.now + margin
        if held is None or self._world.by_server_clock(held.expiry_ms) <= at:
            return math.inf
        return self._since[identity]

    def granted_at(self, token: int) -> float:
        """When *token* was granted, to whoever has it now."""
        granted_ms = self._rules.granted_ms.get(token)
        return math.inf if granted_ms is None else self._world.by_server_clock(granted_ms)

    def last_granted(self, *ids: str) -> float:
        """When the first of *ids* that is held was granted."""
        tokens = [held.token for i in ids if (held := self._last.live.get(i))]
        return self.granted_at(tokens[0]) if tokens else math.inf

    def judge_trust(self, trusted: Trusted) -> None:
        self._report(self._rules.trust(trusted, self._last.holders))

    @property
    def _last(self) -> Look:
        return self._looks[-1][1] if self._looks else NOTHING

    def held_up(
        self, since: float, request: op.QueuedRequest, hubs: Collection[str], *, waits: bool
    ) -> set[str]:
        """What a request of one of *hubs* had to wait for at some moment since *since*.

        One that *waits* has a place in line, which is in nobody's way.
        """
        found: set[str] = set()
        looks = self._looks_since(since)
        for moment, look in looks:
            if look.set_limit == 0:
                found.add("paused")
            now = self._world.server_us_at(max(moment, since)) // 1000
            room = look.room(now)
            if room.backs_off(request):
                found.add("back_off")
            if look.is_held_up or not room.fits(request):
                found.add("limit")
            of_its_key = [waiter.id for waiter in look.line if waiter.key == key_of(request)]
            others = any(identity.partition(".")[0] not in hubs for identity in of_its_key)
            in_its_way = not look.passes_over and (others or len(of_its_key) > waits)
            if in_its_way or not room.fits_key(request):
                found.add("limit" if request.key is None else "key")
        return found if looks else {"nothing is known"}

    def _looks_since(self, since: float) -> list[tuple[float, Look]]:
        looks = [(moment, look) for moment, look in self._looks if moment > since]
        return looks + [pair for pair in self._looks if pair[0] <= since][-1:]

    # -- the rules

    def _begin(self, new: Iterable[str]) -> None:
        for identity in new:
            ended = identity in self._began or identity in self._closed
            self._check(not ended or self.forgot, f"{identity} holds, having ended before")
            self._began.add(identity)

    def _report(self, found: Iterable[Broken]) -> None:
        for broken in found:
            self._check(False, str(broken))

    def _check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._world.violated(f"{self.name}: {otherwise}")
