"""What must be true of the server after every call, whatever its clients do.

The judge keeps books of requests, tokens and holders, and looks at the model around each call.
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
from redsem_async._protocol.replies import FULL, FULL_FOR_KEY, AnyReply, Holding, Reply
from redsem_async.testing._spec.base import Specification
from redsem_async.testing._spec.keyed import KeyedSpecification
from redsem_async.testing._spec.queue import QueueSpecification
from redsem_async.testing._spec.records import QueuedRequest, key_of, requests_of
from tests.worlds.turns import (
    SERVING,
    broken_turn,
    eligible,
    forgotten,
    grants_of,
    limit_in_force,
    ready,
    room_of,
)

from .books import Around, InLine, Look, Order, Permit, Tenure, in_use, own_ids
from .world import Process, World

ROUNDED = 2  # milliseconds, of times that are rounded
CLOCKS = 1.01  # of two processes, beside each other
REMEMBERED = 60.0  # seconds for which the judge remembers how everything stood


class Judge:
    """Watches one semaphore on the server."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.set_limit: int | None = None
        self.slotted = False
        self.passes = False  # a request that does not fit is passed over
        self.recovers = False
        self.tenures: dict[tuple[str, int], Tenure] = {}  # by id and token
        self.revived: set[str] = set()  # granted to a delayed duplicate, after the marks were lost
        self.detached: set[str] = set()
        self.revived_line: set[str] = set()
        self.last_token = 0
        self.grants = 0
        self.granted_at: dict[int, float] = {}  # by token, for whoever adopts it, too
        self.slots: dict[tuple[str, int], Sequence[int]] = {}  # by id and token
        self.heir: dict[str, str] = {}  # who adopted, by the id that it adopted
        self.flushed_at = -math.inf
        self.prompt = math.inf  # seconds in which everybody learns who waits
        self._in_line: dict[str, InLine] = {}  # those whose turn may come
        self._orders: list[Order] = []
        self._limits: list[tuple[float, int | None]] = [(0.0, None)]  # from when on which was set
        self._key_limited_since = math.inf  # from when on the limit of any key has been set
        self._looks: deque[tuple[float, Look]] = deque()  # the last ones, each after a call
        self._world = world
        self._asked: dict[str, op.Request] = {}
        self._current: dict[str, Tenure] = {}
        self._began: set[str] = set()
        self._closed: set[str] = set()  # given up or given back by their own hub

    def look(self, model: Specification, now: int) -> Look:
        state = model.state
        holders = {
            i: Permit(h.expiry_ms, h.token, h.permits, h.key) for i, h in state.holders.items()
        }
        assert isinstance(model, QueueSpecification)
        tickets = {waiter.id: waiter.ticket for waiter in model.line}
        look = Look(now, holders, tickets, state.set_limit, state.grace.until)
        if not isinstance(model, KeyedSpecification):
            return look
        room, keys = room_of(model, now), {waiter.id: waiter.key for waiter in model.line}
        room = room._replace(key_limits=dict(model.key_limits), slotted=self.slotted)
        heads = ready(eligible(model, room, now), room)
        held_up = not all(room.fits(head.request) for head in heads)
        return look._replace(room=room, keys=keys, held_up=held_up)

    def ran(
        self,
        model: Specification,
        before: Look,
        call: op.Operation,
        hub: str,
        answer: AnyReply | CommandError,
        around: Around,
        line: Sequence[QueuedRequest] = (),
    ) -> bool:
        """Judge what *call* by *hub* has done. Returns whether that was anything."""
        after = self.look(model, before.now)
        if isinstance(answer, CommandError):
            self._check(before == after, "a call that was sent back changed something")
            return False
        if self.slotted:
            self._judge_slots(model, after)
        if isinstance(call, op.Acquire):
            self._asked |= {permit_id(hub, r.number): r for r in requests_of(call)}
        if isinstance(call, op.Clear) and before != after:  # and was not too late
            self._forget("cleared")
            for tenure in self.tenures.values():
                tenure.in_grace = False  # a clear ends the grace period of an earlier flush
        new = after.live.keys() - before.live.keys()
        gone = before.live.keys() - after.live.keys()
        self._expire(before)
        self._judge_gone(gone, call, hub)
        self._judge_orders(before, after, call, hub, around)
        if isinstance(call, op.Restore):
            self._judge_restored(new, after, call, hub, around)
        elif isinstance(call, op.Adopt):
            self._judge_adopted(new, before, after, call, hub)
        else:
            self._judge_granted(new, before, after, call, hub)
        self._judge_kept(before, after, call, hub)
        self._judge_answers(before, after, call, hub, answer)
        assert isinstance(model, QueueSpecification)
        self.passes = model.passes_over
        if isinstance(model, KeyedSpecification) or self.passes:
            self._judge_turns(model, line, new, after, call, hub)
        else:
            self._judge_line(model, new, before, after, call, hub)
        self._note_line(model, before.now)
        for owner in {identity.partition(".")[0] for identity in new} - around.notified - {hub}:
            no_push = model.state.hub_record(owner).no_push
            self._check(no_push, f"{new} were granted, and nobody was notified")
        if isinstance(call, op.Abandon) or (isinstance(call, op.Release) and call.owner == hub):
            self._closed |= own_ids(call, hub)
        elif isinstance(call, op.Detach):
            self.detached |= own_ids(call, hub)
        if around.late and self.forgot:
            self.revived |= new
            self.revived_line |= after.tickets.keys() - before.tickets.keys()
        # A process that the message reaches gives it back.
        self.revived |= {
            i for i in new & self.revived_line if i.partition(".")[0] not in around.reached
        }
        self._looks.append((self._world.now, after))
        while len(self._looks) > 1 and self._looks[1][0] < self._world.now - REMEMBERED:
            self._looks.popleft()
        return bool(new or gone or before.tickets.keys() != after.tickets.keys())

    def flushed(self) -> None:
        """The server forgot everything, and the marks that stop delayed duplicates too."""
        self.flushed_at = self._world.now
        self._forget("flushed")
        self._in_line.clear()
        for order in self._orders:
            order.done = False  # what is asked for still is carried out anew
        self._limit_is(None)
        self._looks.append((self._world.now, Look(0, {}, {}, None, 0)))

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
        for identity, (since, alive_until) in self._in_line.items():
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

    def was_full(
        self, since: float, limit: int, permits: int, hubs: Collection[str], *, waits: bool = True
    ) -> bool:
        """Whether somebody of *hubs* had to wait for *permits* at some moment since *since*.

        One who *waits* has a place in line, which is in nobody's way.
        """
        looks = self._looks_since(since)
        for moment, look in looks:
            now = self._world.server_us_at(max(moment, since)) // 1000
            most = limit_in_force(limit, look.set_limit, slotted=self.slotted)
            others = len(look.tickets) > waits or any(
                identity.partition(".")[0] not in hubs for identity in look.tickets
            )
            if (
                (others and not self.passes)
                or look.grace_until > now
                or look.used(now) + permits > most
            ):
                return True
        return not looks

    def held_up(self, since: float, request: op.Request, *, waits: bool) -> set[str]:
        """What a request with a key, or beside keys, had to wait for since *since*."""
        found: set[str] = set()
        looks = self._looks_since(since)
        for moment, look in looks:
            if look.room is None:  # everything was lost
                continue
            if look.set_limit == 0:
                found.add("paused")
            now = self._world.server_us_at(max(moment, since)) // 1000
            in_grace = look.grace_until > now
            if in_grace or look.held_up or not look.room.fits(request):
                found.add("limit")
            of_its_key = [key for key in look.keys.values() if key == key_of(request)]
            if len(of_its_key) > waits or not look.room.fits_key(request):
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

    def _judge_gone(self, gone: Iterable[str], call: op.Operation, hub: str) -> None:
        """Only a release, an abandon, an adoption and a clearing take live permits away."""
        allowed = own_ids(call, hub)
        match call:
            case op.Release():
                cause = "released" if call.owner == hub else "released by somebody else"
            case op.Abandon():
                cause = "abandoned"
            case op.Adopt():
                cause = "adopted"
            case op.Clear():
                allowed, cause = set(gone), "cleared"
            case _:
                allowed, cause = set[str](), "taken"
        for identity in gone:
            self._check(identity in allowed, f"{identity} was taken by {call}")
            if identity in self._current:
                self._end(self._current[identity], cause)

    def _judge_orders(
        self, before: Look, after: Look, call: op.Operation, hub: str, around: Around
    ) -> None:
        """What is set and cleared is what somebody asks for now, and who did not get it yet."""
        self._limit_is(after.set_limit)
        limited = after.room is not None and bool(after.room.key_limits)
        if not limited:
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

    def _judge_restored(
        self, new: Iterable[str], after: Look, call: op.Restore, hub: str, around: Around
    ) -> None:
        """Only what was lost with the state is put back, as it was."""
        asked = {
            permit_id(hub, n): (token, permits, key and key.key)
            for n, token, permits, key, _ in call.permits
        }
        for identity in new:
            permit = after.live[identity]
            tenure = self.tenures.get((identity, permit.token))
            # One that was taken before all was lost, unheard by its holder, comes back as well.
            # With its marks the server forgot the release that came before a late restore.
            late = around.late and self.forgot
            right = tenure is not None and (tenure.taken or late)
            right &= asked.get(identity) == permit[1:]
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

    def _judge_adopted(
        self, new: Iterable[str], before: Look, after: Look, call: op.Adopt, hub: str
    ) -> None:
        old = permit_id(call.owner, call.old)
        for identity in new:
            right = identity == permit_id(hub, call.new) and old in before.live
            self._check(right, f"{identity} was adopted without a holder to adopt from")
            if right:
                same = after.live[identity][1:] == before.live[old][1:]
                self._check(same, f"{identity} was adopted with another token or key")
                self._begin(identity, after.live[identity], None)
                self.heir[old] = identity
                limit = self._asked[old].limit if old in self._asked else 0
                permits = after.live[identity].permits
                self._asked[identity] = op.Request(call.new, call.lease_ms, limit, permits)

    def _judge_granted(
        self, new: Iterable[str], before: Look, after: Look, call: op.Operation, hub: str
    ) -> None:
        """Tokens grow, limits hold, and nobody is granted who did not ask, or asked before."""
        granted = sorted(new, key=lambda identity: after.live[identity].token)
        used = sum(p.permits for i, p in after.live.items() if i not in granted)
        asked_now = own_ids(call, hub) if isinstance(call, op.Acquire) else set[str]()
        for identity in granted:
            permit = after.live[identity]
            self._check(
                identity in asked_now or identity in before.tickets,
                f"{identity} was granted and had not asked",
            )
            self._check(
                permit.token > self.last_token,
                f"token {permit.token} of {identity} is not above {self.last_token}",
            )
            self.last_token = max(self.last_token, permit.token)
            asked = self._asked[identity]
            right = (permit.permits, permit.key) == (asked.permits, key_of(asked))
            right &= permit.expiry_ms <= before.now + asked.lease_ms
            self._check(right, f"{identity} was granted {permit}, having asked for {asked}")
            used += permit.permits
            limit = self.limit_of(identity)
            self._check(used <= limit, f"{used} permits in use, {identity} has a limit of {limit}")
            self._begin(identity, permit, limit)
            self.grants += 1

    def _begin(self, identity: str, permit: Permit, limit: int | None) -> None:
        ended = identity in self._began or identity in self._closed
        self._check(not ended or self.forgot, f"{identity} holds, having ended before")
        self._began.add(identity)
        now = self._world.now
        self.granted_at.setdefault(permit.token, now)
        self._current[identity] = self.tenures[identity, permit.token] = Tenure(
            identity, now, now, permit.token, permit.permits, permit.expiry_ms, limit
        )

    def _judge_kept(self, before: Look, after: Look, call: op.Operation, hub: str) -> None:
        """Only a refresh and a detach change a permit, and only the caller's own."""
        own = own_ids(call, hub)
        for identity, was in before.live.items():
            now = after.live.get(identity)
            if now is None or now == was:
                continue
            self._current[identity].expiry_ms = now.expiry_ms
            expiry_ms = was.expiry_ms
            if isinstance(call, op.Restore) and identity in own:
                expiry_ms = max(expiry_ms, before.now + call.lease_ms)
            elif isinstance(call, op.Refresh) and identity in own:
                longest = self._within_hold(was, before.now + call.lease_ms, call)
                expiry_ms = max(was.expiry_ms, longest)
            elif isinstance(call, op.Detach) and identity in own:
                expiry_ms = self._within_hold(was, before.now + call.expires_ms, call)
            cut = isinstance(call, op.Refresh | op.Detach) and call.max_hold_ms is not None
            if cut and identity in own and abs(now.expiry_ms - expiry_ms) <= ROUNDED:
                expiry_ms = now.expiry_ms
            expected = was._replace(expiry_ms=expiry_ms)
            self._check(now == expected, f"{identity} became {now} by {call}, not {expected}")

    def _within_hold(self, was: Permit, expiry_ms: int, call: op.Refresh | op.Detach) -> int:
        """*expiry_ms*, or when the longest hold ends that *call* allows."""
        if call.max_hold_ms is None:
            return expiry_ms
        granted_ms = self._world.server_us_at(self.granted_at[was.token]) // 1000
        return min(expiry_ms, granted_ms + call.max_hold_ms)

    def _judge_answers(
        self, before: Look, after: Look, call: op.Operation, hub: str, answer: AnyReply
    ) -> None:
        if not isinstance(answer, Reply):
            return
        match call:
            case op.Release() | op.Refresh():
                owner = call.owner if isinstance(call, op.Release) else hub
                held = [int(permit_id(owner, n) in before.live) for n in call.numbers]
                if isinstance(call, op.Release):  # twice in one call, the second finds nothing
                    first = {n: i for i, n in reversed(list(enumerate(call.numbers)))}
                    held = [one * (first[call.numbers[i]] == i) for i, one in enumerate(held)]
                told = [int(bool(one)) for one in answer.answers]
                self._check(told == held, f"{answer.answers} to {call}")
            case op.Acquire():
                in_grace = after.grace_until > before.now
                for number, said in zip(call.numbers, answer.answers, strict=True):
                    identity = permit_id(hub, number)
                    token = said.token if isinstance(said, Holding) else said
                    if token > 0:
                        permit = after.live.get(identity)
                        right = permit is not None and permit.token == token
                        self._check(right, f"{identity} was answered {said}, and has {permit}")
                    elif said == FULL_FOR_KEY and after.room and not (before.keys or after.keys):
                        asked = self._asked[identity]
                        full = not after.room.fits_key(asked)
                        self._check(full, f"{identity} was answered full: its key has room")
                    elif said == FULL and not (before.tickets or after.tickets or in_grace):
                        room = self.limit_of(identity) - after.used(before.now)
                        asked = self._asked[identity]
                        self._check(
                            asked.permits > room, f"{identity} was answered full: {room} left"
                        )
            case _:
                pass
        for number, token in answer.granted:
            permit = after.live.get(permit_id(hub, number))
            right = permit is not None and permit.token == token
            self._check(right, f"{number} of {hub} was served {token}, and has {permit}")

    def _judge_line(
        self,
        model: QueueSpecification,
        new: Iterable[str],
        before: Look,
        after: Look,
        call: op.Operation,
        hub: str,
    ) -> None:
        """First come, first served; and nobody waits for what is free."""
        self._judge_both(after)
        first = self.first(model, before.now)
        if first and not isinstance(call, op.Adopt):
            for identity in new:
                # One who was not in line drew its token only now, from the tickets' counter.
                ticket = before.tickets.get(identity, after.live[identity].token)
                self._check(
                    ticket < first.ticket, f"{identity} was granted before {first.id} ({call})"
                )
        if first and isinstance(call, SERVING) and after.grace_until <= before.now:
            room = self.room(model, first, before.now)
            self._check(
                first.request.permits > room, f"{first.id} waits with room for {room} ({call})"
            )

    def _judge_both(self, look: Look) -> None:
        both = look.tickets.keys() & look.live.keys()
        self._check(not both, f"{both} hold and wait")

    def _judge_turns(
        self,
        model: QueueSpecification,
        line: Sequence[QueuedRequest],
        new: Iterable[str],
        after: Look,
        call: op.Operation,
        hub: str,
    ) -> None:
        """The same where requests have keys, none above its limit, or are passed over."""
        self._judge_both(after)
        now_us = model.state.counter.ahead_us + self._world.server_us
        if not isinstance(call, op.Adopt | op.Restore):
            ids = sorted(new, key=lambda identity: after.live[identity].token)
            grants = grants_of(model, line, call, hub, ids, now_us)
            wrong = broken_turn(model, line, grants, now_us)
            self._check(wrong is None, f"{wrong} ({call})")
        if isinstance(call, SERVING):
            waits = forgotten(model, now_us)
            self._check(waits is None, f"{waits} waits, and its limits have room ({call})")

    def _note_line(self, model: QueueSpecification, now: int) -> None:
        """Who stands in line, without a break in which its turn could not have come."""
        old, self._in_line = self._in_line, {}
        for waiter in model.line:
            if self._eligible(model, waiter, now):
                known = old.get(waiter.id)
                steady = known is not None and known.alive_until > now
                since = known.since if known is not None and steady else self._world.now
                alive_until = model.state.hubs[waiter.hub].alive_until
                self._in_line[waiter.id] = InLine(since, alive_until)

    def _most(self, waiter: QueuedRequest) -> int:
        return self.in_force(waiter.request.limit)

    def room(self, model: Specification, waiter: QueuedRequest, now: int) -> int:
        return self._most(waiter) - in_use(model.state.holders, now)

    def first(self, model: QueueSpecification, now: int) -> QueuedRequest | None:
        """The first in line whose turn it is."""
        turns = (waiter for waiter in model.line if self._eligible(model, waiter, now))
        return next(turns, None)

    def _eligible(self, model: QueueSpecification, waiter: QueuedRequest, now: int) -> bool:
        """Alive, reachable, and not heavier than the limit."""
        known = model.state.hubs.get(waiter.hub)
        if known is None or known.alive_until <= now or known.unreachable:
            return False
        return waiter.request.permits <= self._most(waiter)

    def _judge_slots(self, model: Specification, after: Look) -> None:
        taken: set[int] = set()
        for identity in after.live:
            holder = model.state.holders[identity]
            many = len(holder.slots)
            self._check(many == holder.permits, f"{identity} has {many} slots for its permits")
            self._check(taken.isdisjoint(holder.slots), f"{identity} has a slot of another's")
            taken |= {*holder.slots}
            self.slots[identity, holder.token] = holder.slots

    def _check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._world.violated(f"{self.name}: {otherwise}")
