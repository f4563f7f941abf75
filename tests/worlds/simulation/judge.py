"""What a simulation knows of its server, beside the rules of every world: its books.

The judge keeps books of tenures and of what clients asked for, and looks at the model around
each call.
"""

import math
import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter, itemgetter

import redsem_async._protocol.operations as op
from redsem_async import AnySemaphore
from redsem_async._core.keys import permit_id
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.replies import AnyReply
from redsem_async.testing._spec.queue import QueueSpecification
from redsem_async.testing._spec.records import key_of, requests_of
from tests.worlds.judge import Judge as Rules
from tests.worlds.judge import (
    Look,
    Permit,
    limit_in_force,
    look_at,
    own_ids,
)

from .books import Around, InLine, Order, Tenure
from .world import Process, World

CLOCKS = 1.01  # of two processes, beside each other
REMEMBERED = 60.0  # seconds for which the judge remembers how everything stood


class Judge:
    """Watches one semaphore on the server."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.set_limit: int | None = None
        self.slotted = False
        self.recovers = False
        self.tenures: dict[tuple[str, int], Tenure] = {}  # by id and token
        self.revived: set[str] = set()  # granted to a delayed duplicate, after the marks were lost
        self.detached: set[str] = set()
        self.revived_line: set[str] = set()
        self.grants = 0
        self.granted_at: dict[int, float] = {}  # by token, for whoever adopts it, too
        self.slots: dict[tuple[str, int], Sequence[int]] = {}  # by id and token
        self.heir: dict[str, str] = {}  # who adopted, by the id that it adopted
        self.flushed_at = -math.inf
        self.prompt = math.inf  # seconds in which everybody learns who waits
        self._answer_of: dict[str, InLine] = {}  # those whose turn may come
        self._orders: list[Order] = []
        self._limits: list[tuple[float, int | None]] = [(0.0, None)]  # from when on which was set
        self._key_limited_since = math.inf  # from when on the limit of any key has been set
        self._looks: deque[tuple[float, Look]] = deque()  # the last ones, each after a call
        self._world = world
        self._rules = Rules()
        self._asked: dict[str, op.Request] = {}
        self._current: dict[str, Tenure] = {}
        self._began: set[str] = set()
        self._closed: set[str] = set()  # given up or given back by their own hub

    def look(self, model: QueueSpecification) -> Look:
        return look_at(model, self._world.server_us)

    def ran(
        self,
        model: QueueSpecification,
        before: Look,
        call: op.Operation,
        hub: str,
        answer: AnyReply | CommandError,
        around: Around,
    ) -> bool:
        """Judge what *call* by *hub* has done. Returns whether that was anything."""
        after = self.look(model)
        for broken in self._rules.ran(before, call, hub, answer, after):
            self._check(False, str(broken))
        if isinstance(answer, CommandError):
            return False
        if isinstance(call, op.Acquire):
            self._asked |= {permit_id(hub, r.number): r for r in requests_of(call)}
        if isinstance(call, op.Clear) and before != after:  # and was not too late
            self._forget("cleared")
            for tenure in self.tenures.values():
                tenure.in_grace = False  # a clear ends the grace period of an earlier flush
        new = after.live.keys() - before.live.keys()
        gone = before.live.keys() - after.live.keys()
        self._expire(before)
        self._note_gone(gone, call, hub)
        self._judge_orders(before, after, call, hub, around)
        if isinstance(call, op.Restore):
            self._judge_restored(new, after, around)
        elif isinstance(call, op.Adopt):
            self._note_adopted(new, after, call)
        else:
            for identity in sorted(new, key=lambda i: after.live[i].token):
                self._begin(identity, after.live[identity], self.limit_of(identity))
                self.grants += 1
        for identity, permit in after.live.items():
            self._current[identity].expiry_ms = permit.expiry_ms
            self.slots[identity, permit.token] = permit.slots
        self._note_line(after)
        for owner in {identity.partition(".")[0] for identity in new} - around.notified - {hub}:
            no_push = model.state.hub_record(owner).no_push
            self._check(no_push, f"{new} were granted, and nobody was notified")
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

    def flushed(self) -> None:
        """The server forgot everything, and the marks that stop delayed duplicates too."""
        self.flushed_at = self._world.now
        self._forget("flushed")
        self._answer_of.clear()
        for order in self._orders:
            order.done = False  # what is asked for still is carried out anew
        self._limit_is(None)
        self._looks.append((self._world.now, Look(0, 0, {}, [])))

    @property
    def forgot(self) -> bool:
        return self.flushed_at > -math.inf

    # -- what the clients ask for

    def ordered(self, by: Process, limit: int | None, *, clears: bool = False) -> Order:
        order = Order(by, limit, clears, self._world.now)
        self._orders.append(order)
        return order

    def obeyed(self, order: Order) -> None:
        """*order* was answered: it took effect, and will not again."""
        now = self._world.now
        order.ended = now
        for earlier in self._orders:
            # Only the commands of one hub are in order: a client that was closed has another.
            same = earlier.by is order.by and earlier.hubs == frozenset(order.by.hubs)
            if same and earlier.given_up < order.asked:
                earlier.ended = min(earlier.ended, now)
        if order.done:
            return
        if order.clears:
            left = [i for i in self._current if self.held_since(i) < order.asked]
            self._check(not left, f"{left} were held before it was cleared, and after")
        else:
            first = bisect_left(self._limits, order.asked, key=itemgetter(0)) - 1
            set_to = [limit for _, limit in self._limits[max(first, 0) :]]
            self._check(order.limit in set_to, f"a limit of {order.limit} was not set")

    def given_up(self, order: Order) -> None:
        """Nobody waits for an answer to *order* any more."""
        order.given_up, order.hubs = self._world.now, frozenset(order.by.hubs)

    def reused(self, hub: str, semaphore: AnySemaphore, moment: float) -> None:
        """A lease of *hub* is used again since *moment*: nobody elsewhere has waited for long.

        And no limit of a key has been set for long, by which nobody judged that. Where *hub* does
        not learn of it, its right ends after a refresh interval.
        """
        now = self._world.server_us // 1000
        longest = min(CLOCKS * semaphore._terms.refresh_interval, self.prompt)
        for identity, (since, alive_until) in self._answer_of.items():
            others = not identity.startswith(hub) and alive_until > now
            self._check(
                not others or since > moment - longest,
                f"{hub} uses a lease again, and {identity} waits since {since:.3f}",
            )
        self._check(
            self._key_limited_since > moment - longest,
            f"{hub} uses a lease again, and limits of keys are set",
        )

    def held_since(self, identity: str, margin: float = 0.0) -> float:
        """From when on a permit has been held under *identity*, without a break until now.

        One that expires within *margin* seconds counts as held no more.
        """
        tenure, at = self._current.get(identity), self._world.now + margin
        if tenure is None or self._world.by_server_clock(tenure.expiry_ms) <= at:
            return math.inf
        return tenure.since

    def token_of(self, identity: str) -> int:
        tenure = self._current.get(identity)
        return tenure.token if tenure else 0

    def held_up(
        self, since: float, request: op.Request, hubs: Collection[str], *, waits: bool
    ) -> set[str]:
        """What a request of one of *hubs* had to wait for at some moment since *since*.

        One that *waits* has a place in line, which is in nobody's way.
        """
        found: set[str] = set()
        looks = self._looks_since(since)
        for moment, look in looks:
            if not look.now:  # everything was lost
                continue
            if look.set_limit == 0:
                found.add("paused")
            now = self._world.server_us_at(max(moment, since)) // 1000
            room = look.room(now)
            if look.grace_until > now or look.is_held_up or not room.fits(request):
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

    def limit_of(self, identity: str) -> int:
        return self.in_force(self._asked[identity].limit)

    def in_force(self, declared: int) -> int:
        return limit_in_force(declared, self.set_limit, slotted=self.slotted)

    # -- books

    def _forget(self, cause: str) -> None:
        for tenure in list(self._current.values()):
            self._end(tenure, cause)

    def _end(self, tenure: Tenure, cause: str) -> None:
        expiry = self._world.by_server_clock(tenure.expiry_ms)
        tenure.cause = cause if self._world.now < expiry else "expired"
        tenure.in_grace = cause == "flushed" and self.recovers
        tenure.ended = min(self._world.now, expiry)
        del self._current[tenure.id]

    def _expire(self, before: Look) -> None:
        for tenure in list(self._current.values()):
            if tenure.expiry_ms <= before.now:
                self._end(tenure, "expired")

    # -- the rules

    def _note_gone(self, gone: set[str], call: op.Operation, hub: str) -> None:
        match call:
            case op.Release():
                cause = "released" if call.owner == hub else "released by somebody else"
            case op.Abandon():
                cause = "abandoned"
            case op.Adopt():
                cause = "adopted"
            case _:
                cause = "taken"
        for identity in gone & self._current.keys():
            self._end(self._current[identity], cause)

    def _judge_orders(
        self, before: Look, after: Look, call: op.Operation, hub: str, around: Around
    ) -> None:
        """What is set and cleared is what somebody asks for now, and who did not get it yet."""
        self._limit_is(after.set_limit)
        if not after.key_limits:
            self._key_limited_since = math.inf
        elif self._key_limited_since == math.inf:
            self._key_limited_since = self._world.now
        cleared = isinstance(call, op.Clear) and before != after and not before.idle
        if before.set_limit == after.set_limit and not cleared:
            return
        if around.late and self.forgot:
            return  # with its marks the server forgot that it ran before, perhaps long ago
        now = self._world.now
        fit = [
            order
            for order in self._orders
            if isinstance(call, op.Clear | op.SetLimit)
            and hub in order.by.hubs
            and order.clears is isinstance(call, op.Clear)
            and (order.clears or order.limit == after.set_limit)
            and not order.done
            and order.ended >= now
        ]
        self._check(bool(fit), f"{call} took effect, and nobody asks now")
        if fit:
            min(fit, key=attrgetter("ended")).done = True

    def _limit_is(self, limit: int | None) -> None:
        if limit != self.set_limit:
            self.set_limit = limit
            self._limits.append((self._world.now, limit))

    def _judge_restored(self, new: Iterable[str], after: Look, around: Around) -> None:
        """Only what was lost with the state is put back."""
        for identity in new:
            permit = after.live[identity]
            tenure = self.tenures.get((identity, permit.token))
            # One that was taken before all was lost, unheard by its holder, comes back as well.
            # With its marks the server forgot the release that came before a late restore.
            late = around.late and self.forgot
            right = tenure is not None and (tenure.taken or late)
            self._check(right, f"{identity} was put back as {permit}, having been {tenure}")
            ended = identity in self._closed
            self._check(late or not ended, f"{identity} was put back, having ended")
            if tenure is None:
                continue
            if tenure.cause != "flushed":
                self._world.fault("taken permit put back")
                tenure.began, tenure.limit = self._world.now, sys.maxsize
            tenure.since, tenure.ended, tenure.cause = self._world.now, math.inf, ""
            tenure.expiry_ms = permit.expiry_ms
            self._current[identity] = tenure
            self._world.fault("permit put back")

    def _note_adopted(self, new: Iterable[str], after: Look, call: op.Adopt) -> None:
        old = permit_id(call.owner, call.old)
        for identity in new:
            self._begin(identity, after.live[identity], None)
            self.heir[old] = identity
            limit = self._asked[old].limit if old in self._asked else 0
            permits = after.live[identity].permits
            self._asked[identity] = op.Request(call.new, call.lease_ms, limit, permits)

    def _begin(self, identity: str, permit: Permit, limit: int | None) -> None:
        ended = identity in self._began or identity in self._closed
        self._check(not ended or self.forgot, f"{identity} holds, having ended before")
        self._began.add(identity)
        now = self._world.now
        self.granted_at.setdefault(permit.token, now)
        self._current[identity] = self.tenures[identity, permit.token] = Tenure(
            identity, now, now, permit.token, permit.permits, permit.expiry_ms, limit
        )

    def _note_line(self, look: Look) -> None:
        """Who stands in line, without a break in which its turn could not have come."""
        old, self._answer_of = self._answer_of, {}
        room = look.room()
        for waiter in look.line:
            alive = waiter.alive_until > look.now and not waiter.unreachable
            if alive and not room.is_too_heavy(waiter.request):
                known = old.get(waiter.id)
                steady = known is not None and known.alive_until > look.now
                since = known.since if known is not None and steady else self._world.now
                self._answer_of[waiter.id] = InLine(since, waiter.alive_until)

    def _check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._world.violated(f"{self.name}: {otherwise}")
