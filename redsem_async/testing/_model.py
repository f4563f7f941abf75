"""The protocol in memory: the executable specification of the scripts.

One model is one semaphore. It has no clock and does no input or output: every call is given the
time, and says what it has to say through `tell`, which answers how many heard it. The tests
drive it and the scripts with the same steps, and compare.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from redsem_async._core.keys import Address, permit_id
from redsem_async._core.lease import handoff_lease, liveness_timeout
from redsem_async._protocol.hub_info import HubInfo
from redsem_async._protocol.operations import (
    Abandon,
    Acquire,
    Adopt,
    Clear,
    Confirm,
    Detach,
    Heartbeat,
    Operation,
    Reap,
    Refresh,
    Release,
    Request,
    Restore,
    SetLimit,
    Status,
)
from redsem_async._protocol.pushes import Cleared, Granted, Hint, Push, Revoked
from redsem_async._protocol.replies import (
    FULL,
    GAVE_BACK,
    GONE,
    LEFT_LINE,
    NOTHING,
    QUEUE_FULL,
    WAITING,
    AdoptReply,
    Answer,
    AnyReply,
    HeldEntry,
    Holding,
    LineEntry,
    Reply,
    StatusReply,
)

SLACK_MS = 60_000
STEP_US = 1_000_000
NUDGED = 10  # in line, of whom one is to hear that something changes earlier

Tell = Callable[[str, Push], int]


class Mismatch(Exception):
    """The name is in use in another mode or with another clock.

    The message has the words of the scripts' error MODE, from the second on.
    """


class Stranger(Exception):
    """The hub is not known, and does not say who it is."""


class Reordered(Exception):
    """The batch before this one has not run."""


class Void(Exception):
    """The call acted before, or may not act any more."""


@dataclass(slots=True)
class Held:
    """A permit in use."""

    expiry_ms: int
    token: int
    permits: int


@dataclass(slots=True)
class Party:
    """A hub, as the semaphore knows it."""

    alive_until: int = 0
    mark: int = 0
    who: str = ""
    deaf: bool = False
    gone: bool = False
    waits: int = 0
    highest: int = 0  # limit that it declares for those who wait
    calls: int = 0  # the highest number of its calls that act once


@dataclass(slots=True)
class Waiter:
    """A request in line."""

    hub: str
    request: Request
    ticket: int
    aside: bool = False  # it could not be served when it was looked at last

    @property
    def id(self) -> str:
        return permit_id(self.hub, self.request.number)

    def asks_for(self, request: Request) -> bool:
        """Whether it is that request, but for whether it waits."""
        return self.request[:-1] == request[:-1]


@dataclass(slots=True)
class Step:
    """What one call works with, and what it has to answer."""

    hub: str
    kind: str
    wall_us: int
    now_us: int
    freed: float = 0
    granted: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    queued: list[Waiter] = field(default_factory=list[Waiter])
    hinted: int = 0
    head_until: int | None = None
    open: bool = True
    keeps: int = 0  # permits of it that the caller tries for itself (zset)
    asks: bool = False  # the caller is told how much room there is (zset)
    passes: bool = False  # what is freed is a hint that is passed on (zset)

    @property
    def now(self) -> int:
        return self.now_us // 1000


def alive_for_ms(lease_ms: int) -> int:
    return math.floor(liveness_timeout(lease_ms / 1000) * 1000 + 1e-6)


def requests_of(call: Acquire) -> list[Request]:
    """The requests of an acquire, one by one."""
    return [
        Request(number, call.lease_ms, call.limit, *call.unusual.get(number, (1, True)))
        for number in call.numbers
    ]


class Model(ABC):
    """Base of the two modes."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.kind: str | None = None
        self.kept_until = 0.0  # ms of the callers' clock: when the key `meta` expires in Redis
        self.last = 0
        self.ahead_us = 0
        self.offset_us = 0  # by which tokens lead the clock
        self.set_limit: int | None = None
        self.holders: dict[str, Held] = {}
        self.parties: dict[str, Party] = {}
        self.name = ""
        self.server = "memory"
        self.recovers = False  # whether those who release recover from losses
        self.kept_by: str | None = None  # the server, as those who recover from losses noted it
        self.lost_at = 0
        self.grace_until = 0
        self.released: set[str] = set()  # in the grace period

    def run(  # noqa: C901 - a branch for each kind of call
        self, address: Address, call: Operation, hub: str, now_us: int
    ) -> AnyReply:
        """Carry *call* out, all at once."""
        if self.kind is not None and self.kind != address.kind:
            raise Mismatch(self._use(now_us))
        self.name = address.name
        step = Step(hub, address.kind, now_us, self._own_clock(address, now_us))
        match call:
            case Acquire():
                answer = self._acquire(step, call)
                self.kind = address.kind
                return answer
            case Release():
                return self._release(step, call)
            case Refresh():
                return self._refresh(step, call)
            case Restore():
                return self._restore(step, call)
            case Confirm():
                return Reply([call.replicas])  # memory has no replicas to lose anything
            case Abandon():
                return self._abandon(step, call)
            case Heartbeat():
                return self._heartbeat(step, call)
            case Adopt():
                return self._adopt(step, call)
            case Detach():
                return self._detach(step, call)
            case Status():
                return self._status(step, call)
            case SetLimit():
                if not self._acted(step, call.call):
                    self.set_limit = call.limit
                    self._note_call(step, call.call)
                    if self.waiting:
                        self._look_at_all()
                self._purge(step)
                room = math.inf if call.limit is None else call.limit - self.used(step.now)
                step.freed = max(0, room)
                self._serve(step)
                return self._reply(step)
            case Reap():
                before = len(self.holders)
                self._purge(step)
                reaped = before - len(self.holders) + self._sweep(step)
                self._bury(step)
                self._serve(step)
                return self._reply(step, [reaped])
            case Clear():
                if not self._acted(step, call.call):
                    self._clear(step, now_us)
                    self._note_call(step, call.call)
                    self._keep(step, self._lead(step) + SLACK_MS)
                return Reply()

    def _own_clock(self, address: Address, wall_us: int) -> int:
        """The server's clock, put ahead by as much as it is seen to have been set back."""
        last = self.last - self.offset_us
        if address.clock == "server" and wall_us + self.ahead_us < last - STEP_US:
            self.ahead_us = last - wall_us
        return wall_us + self.ahead_us

    def lose_everything(self) -> None:
        """As if the server had been flushed."""
        self._forget()
        self.parties.clear()
        self.last = self.kept_until = 0
        self.kept_by = None

    def _clear(self, step: Step, now_us: int) -> None:
        """Forget everything but the numbers that hubs have used."""
        for owner in sorted(self.parties, key=self._alive_until):
            party = self.parties[owner]
            if owner != step.hub and party.alive_until:
                self._tell(owner, Cleared(self.name))
            self.parties[owner] = Party(party.alive_until, party.mark, calls=party.calls)
        self._forget()
        if self.last < now_us:
            self.last = 0  # the clock is ahead of it, and draws none of them again

    def _acted(self, step: Step, number: int) -> bool:
        """Whether the call of that number was carried out, or may not be any more."""
        return number <= self.look_up(step.hub).calls

    def _note_call(self, step: Step, number: int) -> None:
        self.party(step.hub).calls = number
        self._keep_alive(step, 0)

    def _look_at_all(self) -> None:
        """What could not be served may be able to now."""

    def expire(self, now_us: int) -> None:
        """Forget what Redis has let expire by now, because nobody has used it for long.

        `run` leaves that to its caller, because Redis counts expiries by a clock of its own.
        """
        if self.kept_until <= now_us // 1000:
            limit = self.set_limit  # the only key without an expiry
            self._forget()
            self.parties.clear()
            self.set_limit = limit

    def give_to(self, other: "Model") -> None:
        """Hand over what Redis keeps of a name that has no mode: *other* is of another mode."""
        other.last, other.set_limit, other.kept_until = self.last, self.set_limit, self.kept_until
        other.parties = self.parties

    def _use(self, now_us: int) -> str:
        """How the name is used, as the error MODE says it."""
        now = (now_us + self.ahead_us) // 1000
        held = sum(held.expiry_ms > now for held in self.holders.values())
        alive = sum(party.alive_until > now for party in self.parties.values())
        return f"{self.kind} {held} {alive} {max(0, round(self.kept_until - now_us // 1000))}"

    def _forget(self) -> None:
        """Forget everything but the counter, and that this is no loss."""
        self.kind = self.set_limit = None
        self.lost_at = self.grace_until = self.ahead_us = self.offset_us = 0
        self.holders.clear()
        self.released.clear()

    # -- rules of both modes

    def used(self, now: int) -> int:
        return sum(held.permits for held in self.holders.values() if held.expiry_ms > now)

    def _stamp(self, step: Step) -> int:
        """The next token, unless the last was as high."""
        return step.now_us + self.offset_us

    def draw(self, step: Step) -> int:
        self.last = max(self.last + 1, self._stamp(step))
        return self.last

    def _note_time(self, step: Step) -> None:
        """Let the counter follow the clock, so that it shows when that is set back."""
        self.last = max(self.last, self._stamp(step) - 1)

    def _keep(self, step: Step, need_ms: float) -> None:
        """Keep the mode for *need_ms* at least: extended seldom, and never shortened."""
        wall = step.wall_us // 1000
        if self.kept_until - wall < 2 * need_ms:
            self.kept_until = wall + math.ceil(3 * need_ms)

    def _lead(self, step: Step) -> float:
        """By how many ms the counter leads the clock: it must not be forgotten before."""
        return max(0.0, (self.last - step.wall_us) / 1000)

    def _save_counter(self, step: Step, need_ms: float) -> None:
        self.kind = step.kind
        self._note_time(step)
        self._keep(step, need_ms + self._lead(step) + SLACK_MS)

    def _alive_until(self, hub: str) -> tuple[int, str]:
        return self.party(hub).alive_until, hub

    def party(self, hub: str) -> Party:
        return self.parties.setdefault(hub, Party())

    def look_up(self, hub: str) -> Party:
        """What is known of *hub*: nothing, where it was forgotten."""
        return self.parties.get(hub, Party())

    def found(self, identity: str, now: int) -> Holding | None:
        held = self.holders.get(identity)
        if held is None or held.expiry_ms <= now:
            return None
        return Holding(held.token, held.expiry_ms - now)

    def _drop(self, step: Step, ids: Iterable[str]) -> None:
        for identity in ids:
            held = self.holders.pop(identity, None)
            step.freed += held.permits if held else 0

    def _purge(self, step: Step) -> None:
        self._drop(step, [i for i, h in self.holders.items() if h.expiry_ms <= step.now])

    def _touch(self, step: Step, lease_ms: int, hub_info: HubInfo | None) -> None:
        self._know(step, hub_info)
        party = self.party(step.hub)
        self._hear_from(party)
        if hub_info is not None:
            party.who, party.deaf = hub_info.description, hub_info.no_push
            if hub_info.recovers and self.kept_by != self.server:
                self.kept_by = self.server
                self._begin_grace(step, lease_ms)
        self._keep_alive(step, lease_ms)

    def _hear_from(self, party: Party) -> None:
        """It is heard from, after nobody heard a message for it."""
        if party.gone:
            party.gone = False
            self._look_at_all()

    def _begin_grace(self, step: Step, lease_ms: int) -> None:
        """Admit nobody new for one lease, in which those who hold permits put them back."""
        self.lost_at, self.grace_until = step.now, step.now + lease_ms
        self._keep(step, lease_ms + SLACK_MS)

    def _restore(self, step: Step, call: Restore) -> Reply:
        self._touch(step, call.lease_ms, call.hub_info)
        if self.grace_until > step.now:
            self.grace_until = max(self.grace_until, self.lost_at + call.lease_ms)
        answers: list[Answer] = []
        longest = 0
        for number, token, permits in call.permits:
            identity = permit_id(step.hub, number)
            found = self.found(identity, step.now)
            back = found is not None or (
                self.grace_until > step.now and identity not in self.released
            )
            if back:
                self.last = max(self.last, token)
                left = max(call.lease_ms, found.left_ms if found else 0)
                longest = max(longest, left)
                self.holders[identity] = Held(step.now + left, token, permits)
            answers.append(int(back))
        if self.last > self._stamp(step) + STEP_US:
            self.offset_us = self.last - step.now_us
        if any(answers):
            self._save_counter(step, longest)
        self._raise_mark(step, max(number for number, _, _ in call.permits))
        return Reply(answers)

    def _know(self, step: Step, hub_info: HubInfo | None) -> None:
        if hub_info is None and not self.parties.get(step.hub, Party()).who:
            raise Stranger

    def _keep_alive(self, step: Step, lease_ms: int) -> None:
        if self.last < self._stamp(step) - STEP_US:
            self._note_time(step)
        need = alive_for_ms(lease_ms)
        party = self.party(step.hub)
        if party.alive_until < step.now + need:
            party.alive_until = step.now + math.floor(1.25 * need)
            self._keep(step, need + SLACK_MS)
            self._bury(step)

    def _bury(self, step: Step) -> None:
        silent = [h for h, p in self.parties.items() if 0 < p.alive_until <= step.now - SLACK_MS]
        for hub in silent[:10]:
            del self.parties[hub]

    def _raise_mark(self, step: Step, number: int) -> None:
        if number > self.party(step.hub).mark:
            self.party(step.hub).mark = number
            self._keep_alive(step, 0)

    def _release(self, step: Step, call: Release) -> Reply:
        if self.recovers:
            self._know(step, None)
        ids = [permit_id(call.owner, number) for number in call.numbers]
        if self.grace_until > step.now:
            self.released.update(ids)
        held: list[bool] = []
        for identity in ids:  # twice in one call, the second finds nothing
            held.append(self.found(identity, step.now) is not None)
            self._drop(step, [identity])
        if call.owner == step.hub:
            self._raise_mark(step, max(call.numbers))
        elif any(held):
            taken = [n for n, was_held in zip(call.numbers, held, strict=True) if was_held]
            self._tell(call.owner, Revoked(self.name, taken))
        if self.waiting:
            self._purge(step)
            step.freed = max(0, step.freed - call.keep)
            step.keeps = call.keep
            self._serve(step)
        return self._reply(step, [int(was_held) for was_held in held])

    def _refresh(self, step: Step, call: Refresh) -> Reply:
        answers: list[Answer] = []
        for number in call.numbers:
            identity = permit_id(step.hub, number)
            held = self.found(identity, step.now) is not None
            answers.append(int(held))
            if held:
                permit = self.holders[identity]
                permit.expiry_ms = max(permit.expiry_ms, step.now + call.lease_ms)
        if any(answers):
            self._keep(step, call.lease_ms + self._lead(step) + SLACK_MS)
            self._keep_alive(step, call.lease_ms)
        return Reply(answers)

    def _adopt(self, step: Step, call: Adopt) -> AdoptReply:
        self._know(step, call.hub_info)
        old, new = permit_id(call.owner, call.old), permit_id(step.hub, call.new)
        if self._acted(step, call.call) and self.found(new, step.now) is None:
            raise Void
        self._touch(step, call.lease_ms, call.hub_info)
        if (found := self.found(new, step.now)) is not None:
            return AdoptReply(found, self.holders[new].permits)
        self._note_call(step, call.call)
        if self.found(old, step.now) is None:
            return AdoptReply(None)
        if self.grace_until > step.now:
            self.released.add(old)
        held = self.holders.pop(old)
        held.expiry_ms = max(held.expiry_ms, step.now + call.lease_ms)
        self.holders[new] = held
        self._save_counter(step, held.expiry_ms - step.now)
        if call.owner != step.hub:
            self._tell(call.owner, Revoked(self.name, [call.old]))
        return AdoptReply(Holding(held.token, held.expiry_ms - step.now), held.permits)

    def _after_abandon(self, step: Step, call: Abandon) -> None:
        if call.requests:
            self._raise_mark(step, max(request.number for request in call.requests))
        if call.void and not self._acted(step, call.void):
            self._note_call(step, call.void)
        if self.waiting:
            self._purge(step)
            self._serve(step)

    def _detach(self, step: Step, call: Detach) -> Reply:
        if self._acted(step, call.call):
            raise Void
        self._note_call(step, call.call)
        identity = permit_id(step.hub, call.number)
        if self.found(identity, step.now) is None:
            return Reply([0])
        held = self.holders[identity]
        nearer = step.now + call.expires_ms < held.expiry_ms
        held.expiry_ms = step.now + call.expires_ms
        self._save_counter(step, call.expires_ms)
        if nearer:
            any(self._tell(hub, Hint(self.name, 0)) for hub in self._first()[:NUDGED])
        return Reply([1])

    def _status(self, step: Step, call: Status) -> StatusReply:
        live = sorted(
            (held.expiry_ms, identity)
            for identity, held in self.holders.items()
            if held.expiry_ms > step.now
        )
        entries = [
            HeldEntry(i, expiry - step.now, self.holders[i].token, self.holders[i].permits)
            for expiry, i in live[: call.max_entries]
        ]
        waiting, line = self._listing(step, call.max_entries)
        hubs = {entry.id.partition(".")[0] for entry in entries}
        hubs |= {entry.id.partition(".")[0] for entry in line}
        return StatusReply(
            set_limit=self.set_limit,
            held=self.used(step.now),
            waiting=waiting,
            now_us=self._stamp(step),
            holders=entries,
            line=line,
            hubs={hub: self.parties[hub].who if hub in self.parties else "" for hub in hubs},
        )

    def _next_expiry(self, step: Step) -> int | None:
        if self.grace_until > step.now:
            return self.grace_until - step.now
        first = min((held.expiry_ms for held in self.holders.values()), default=None)
        return None if first is None else max(0, first - step.now)

    # -- what differs

    @property
    @abstractmethod
    def waiting(self) -> int:
        """How long the line is."""

    @abstractmethod
    def waiting_hubs(self) -> set[str]:
        """The hubs that have requests in line."""

    @abstractmethod
    def _first(self) -> Sequence[str]:
        """The hubs of those in line who may be served when there is room, in its order."""

    @abstractmethod
    def _acquire(self, step: Step, call: Acquire) -> Reply: ...

    @abstractmethod
    def _abandon(self, step: Step, call: Abandon) -> Reply: ...

    @abstractmethod
    def _heartbeat(self, step: Step, call: Heartbeat) -> Reply: ...

    @abstractmethod
    def _serve(self, step: Step) -> None: ...

    @abstractmethod
    def _sweep(self, step: Step) -> int: ...

    @abstractmethod
    def _reply(self, step: Step, answers: Sequence[Answer] = (), room: int = 0) -> Reply: ...

    @abstractmethod
    def _listing(self, step: Step, most: int) -> tuple[int, list[LineEntry]]: ...


class FairModel(Model):
    """The line holds requests, in ticket order, and a freed permit goes to its head."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(tell)
        self.line: list[Waiter] = []
        self.look_again: int | None = None  # at those who were set aside

    def _forget(self) -> None:
        super()._forget()
        self.line.clear()
        self.look_again = None

    @property
    def waiting(self) -> int:
        return len(self.line)

    def waiting_hubs(self) -> set[str]:
        return {waiter.hub for waiter in self.line}

    def _first(self) -> Sequence[str]:
        return [waiter.hub for waiter in self.line if not waiter.aside]

    def _look_at_all(self) -> None:
        self.look_again = 0

    def _in_line(self, hub: str, request: Request) -> bool:
        return any(waiter.hub == hub and waiter.asks_for(request) for waiter in self.line)

    def _acquire(self, step: Step, call: Acquire) -> Reply:
        self._know(step, call.hub_info)
        known = step.hub in self.parties
        fresh = self.look_up(step.hub).mark
        if fresh < call.after:
            raise Reordered
        self.party(step.hub).mark = max(fresh, *call.numbers)
        self._touch(step, call.lease_ms, call.hub_info)
        self._purge(step)
        self._serve(step)
        most = call.limit if self.set_limit is None else self.set_limit
        answers = [self._ask(step, call, request, fresh, most) for request in requests_of(call)]
        if any(isinstance(answer, int) and answer > 0 for answer in answers):
            self._save_counter(step, call.lease_ms)
        if not known:
            self._leave(step.queued)
        if step.queued:
            self.line += step.queued
            self._save_counter(step, alive_for_ms(call.lease_ms))
        return self._reply(step, answers)

    def _ask(self, step: Step, call: Acquire, request: Request, fresh: int, most: int) -> Answer:
        identity = permit_id(step.hub, request.number)
        if request.number <= fresh:
            found = self.found(identity, step.now)
            return found or (WAITING if self._in_line(step.hub, request) else GONE)
        admits = step.open and self.grace_until <= step.now
        if admits and self.used(step.now) + request.permits <= most:
            token = self.draw(step)
            self.holders[identity] = Held(step.now + request.lease_ms, token, request.permits)
            return token
        if not request.waits:
            return FULL
        if call.max_waiters is not None and len(self.line) + len(step.queued) >= call.max_waiters:
            return QUEUE_FULL
        step.queued.append(Waiter(step.hub, request, self.draw(step)))
        if request.permits <= most:
            step.open = False
        return WAITING

    def _leave(self, queued: Sequence[Waiter]) -> None:
        """Take those of *queued* out that stand there since before their hub was forgotten."""
        self.line = [
            waiter
            for waiter in self.line
            if not any(waiter.hub == new.hub and waiter.asks_for(new.request) for new in queued)
        ]

    def _serve(self, step: Step) -> None:
        """Serve from the head.

        Grants to others are told before they are made: those whom nobody hears for are passed
        over, and what they would have got is given on.
        """
        self._hear_from(self.look_up(step.hub))
        if self.set_limit == 0 or self.grace_until > step.now or not self.line:
            return
        if self.look_again is not None and self.look_again <= step.now:
            self.look_again = None
            for waiter in self.line:
                waiter.aside = False
        while True:
            plan, blocked = self._plan(step)
            silent = self._hand_over(step, plan)
            for waiter in silent:
                self._set_aside(waiter)
            if not silent:
                if blocked is not None:
                    step.open = False
                    step.head_until = self.party(blocked.hub).alive_until
                return

    def _set_aside(self, waiter: Waiter) -> None:
        waiter.aside = True
        alive_until = self.look_up(waiter.hub).alive_until
        again = alive_until if self.look_again is None else self.look_again
        self.look_again = min(again, alive_until)

    def _plan(self, step: Step) -> tuple[list[tuple[Waiter, int]], Waiter | None]:
        plan: list[tuple[Waiter, int]] = []
        used = self.used(step.now)
        for waiter in [waiter for waiter in self.line if not waiter.aside]:
            party = self.parties.get(waiter.hub, Party())
            permits = waiter.request.permits
            most = waiter.request.limit if self.set_limit is None else self.set_limit
            if party.alive_until <= step.now:
                self.line.remove(waiter)
            elif permits > most or party.gone:
                self._set_aside(waiter)
            elif used + permits > most:
                return plan, waiter
            else:
                used += permits
                plan.append((waiter, self.draw(step)))
        return plan, None

    def _hand_over(self, step: Step, plan: Sequence[tuple[Waiter, int]]) -> list[Waiter]:
        silent: list[Waiter] = []
        longest = 0
        for hub in dict.fromkeys(waiter.hub for waiter, _ in plan):
            own = hub == step.hub
            party = self.party(hub)
            grants: list[tuple[int, Holding]] = []
            parts = [(waiter, token) for waiter, token in plan if waiter.hub == hub]
            for waiter, token in parts:
                lease = waiter.request.lease_ms
                if not own:
                    lease = math.floor(handoff_lease(lease / 1000) * 1000 + 1e-6)
                grants.append((waiter.request.number, Holding(token, lease)))
            if not own and not party.deaf and not self._tell(hub, Granted(self.name, grants)):
                party.gone = True
                self._save_counter(step, 0)
                silent += [waiter for waiter, _ in parts]
                continue
            for (waiter, token), (_, holding) in zip(parts, grants, strict=True):
                self.line.remove(waiter)
                expiry = step.now + holding.left_ms
                self.holders[waiter.id] = Held(expiry, token, waiter.request.permits)
                longest = max(longest, holding.left_ms)
                if own:
                    step.granted.append((waiter.request.number, token))
        if longest:
            self._save_counter(step, longest)
        return silent

    def _abandon(self, step: Step, call: Abandon) -> Reply:
        answers: list[Answer] = []
        for request in call.requests:
            held = self.found(permit_id(step.hub, request.number), step.now)
            in_line = self._in_line(step.hub, request)
            answers.append(GAVE_BACK if held else LEFT_LINE if in_line else NOTHING)
        ids = {permit_id(step.hub, request.number) for request in call.requests}
        self._drop(step, ids)
        self.line = [waiter for waiter in self.line if waiter.id not in ids]
        self._after_abandon(step, call)
        return self._reply(step, answers)

    def _heartbeat(self, step: Step, call: Heartbeat) -> Reply:
        self._touch(step, call.lease_ms, call.hub_info)
        self._purge(step)
        self._serve(step)
        answers: list[Answer] = []
        for request in call.requests:
            found = self.found(permit_id(step.hub, request.number), step.now)
            in_line = self._in_line(step.hub, request)
            answers.append(WAITING if in_line else found or GONE)
        return self._reply(step, answers)

    def _sweep(self, step: Step) -> int:
        before = len(self.line)
        self.line = [
            waiter
            for waiter in self.line
            if self.parties.get(waiter.hub, Party()).alive_until > step.now
        ]
        return before - len(self.line)

    def _reply(self, step: Step, answers: Sequence[Answer] = (), room: int = 0) -> Reply:
        moments: list[int] = []
        if self.line:
            expiry = self._next_expiry(step)
            if expiry is not None:
                moments.append(expiry)
            if step.head_until is not None:
                moments.append(max(0, step.head_until - step.now))
        return Reply(
            answers=answers,
            next_ms=min(moments, default=None),
            waiting=len(self.line),
            granted=step.granted,
        )

    def _listing(self, step: Step, most: int) -> tuple[int, list[LineEntry]]:
        first = self.line[:most]
        entries = [LineEntry(waiter.id, waiter.ticket, waiter.request.permits) for waiter in first]
        return len(self.line), entries


class ZsetModel(Model):
    """The line holds the processes that wait, and a release hints as many as it freed permits."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(tell)
        self.line: dict[str, int] = {}  # hub -> its turn

    def _forget(self) -> None:
        super()._forget()
        self.line.clear()

    @property
    def waiting(self) -> int:
        return len(self.line)

    def waiting_hubs(self) -> set[str]:
        return set(self.line)

    def _first(self) -> Sequence[str]:
        return self._turns()

    def _turns(self) -> list[str]:
        return sorted(self.line, key=lambda hub: (self.line[hub], hub))

    def _acquire(self, step: Step, call: Acquire) -> Reply:
        self._know(step, call.hub_info)
        fresh = self.party(step.hub).mark
        self.party(step.hub).mark = max(fresh, *call.numbers)
        self._touch(step, call.lease_ms, call.hub_info)
        self._purge(step)
        most = call.limit if self.set_limit is None else self.set_limit
        answers: list[Answer] = []
        waits, taken = call.waits, 0
        for request in requests_of(call):
            identity = permit_id(step.hub, request.number)
            if request.number <= fresh:
                answers.append(self.found(identity, step.now) or GONE)
            elif self.grace_until <= step.now and self.used(step.now) + request.permits <= most:
                taken += request.permits
                token = self.draw(step)
                expiry = step.now + request.lease_ms
                self.holders[identity] = Held(expiry, token, request.permits)
                answers.append(token)
            else:
                answers.append(FULL)
                waits += request.waits
        if taken:
            self._save_counter(step, call.lease_ms)
        room = most - self.used(step.now)
        step.asks, step.passes = True, step.freed == 0
        step.freed = max(0, step.freed + call.hinted - taken)
        if max(call.numbers) > fresh:
            self._announce(step, waits, max(call.highest, call.limit))
        self._serve(step)
        return self._reply(step, answers, room if self.grace_until <= step.now else 0)

    def _announce(self, step: Step, count: int, highest: int) -> None:
        if count == 0 and not self.line:
            return
        party = self.party(step.hub)
        party.waits, party.highest = count, highest
        if count == 0:
            self.line.pop(step.hub, None)
        elif step.hub not in self.line:
            self.line[step.hub] = self.draw(step)
            self._save_counter(step, 0)

    def _serve(self, step: Step) -> None:
        if step.keeps and step.hub in self.line:
            self.line[step.hub] = self.draw(step)  # that was its turn
            self._save_counter(step, 0)
        paused = self.set_limit is not None and self.set_limit <= (
            self.used(step.now) + step.keeps
        )
        if paused or self.grace_until > step.now:
            return
        own = self.line.get(step.hub) if step.passes else None
        for hub in self._turns():
            if step.freed <= 0 or (own is not None and self.line[hub] >= own):
                return
            party = self.look_up(hub)
            most = party.highest if self.set_limit is None else self.set_limit
            room = most - self.used(step.now) - step.keeps
            share = int(min(step.freed, party.waits, room))
            if party.alive_until <= step.now or party.waits <= 0:
                del self.line[hub]
            elif share <= 0:
                continue
            elif hub == step.hub:
                if not step.asks:
                    step.hinted = share
                    self._turn(step, hub, share)
            elif party.deaf:
                continue
            elif self._tell(hub, Hint(self.name, share)):
                self._turn(step, hub, share, own)
            else:
                del self.line[hub]

    def _turn(self, step: Step, hub: str, share: int, turn: int | None = None) -> None:
        self.line[hub] = self.draw(step) if turn is None else turn
        self._save_counter(step, 0)
        step.freed -= share

    def _abandon(self, step: Step, call: Abandon) -> Reply:
        ids = [permit_id(step.hub, request.number) for request in call.requests]
        answers: list[Answer] = [
            GAVE_BACK if self.found(identity, step.now) else NOTHING for identity in ids
        ]
        self._drop(step, ids)
        self._after_abandon(step, call)
        return self._reply(step, answers)

    def _heartbeat(self, step: Step, call: Heartbeat) -> Reply:
        self._touch(step, call.lease_ms, call.hub_info)
        self._purge(step)
        step.asks, step.passes = True, step.freed == 0
        if call.number > self.party(step.hub).mark:
            self._raise_mark(step, call.number)
            step.freed += call.hinted
            self._announce(step, call.waits, call.limit)
        self._serve(step)
        most = call.limit if self.set_limit is None else self.set_limit
        room = most - self.used(step.now) if self.grace_until <= step.now else 0
        return self._reply(step, room=room)

    def _sweep(self, step: Step) -> int:
        for hub in self._turns():
            if self.look_up(hub).alive_until <= step.now:
                del self.line[hub]
        return 0

    def _reply(self, step: Step, answers: Sequence[Answer] = (), room: int = 0) -> Reply:
        return Reply(
            answers=answers,
            next_ms=self._next_expiry(step) if self.line else None,
            waiting=len(self.line),
            hinted=step.hinted,
            room=room,
        )

    def _listing(self, step: Step, most: int) -> tuple[int, list[LineEntry]]:
        live = [hub for hub in self._turns() if self.look_up(hub).alive_until > step.now]
        entries = [LineEntry(hub, 0, self.look_up(hub).waits) for hub in live]
        return sum(entry.permits for entry in entries), entries[:most]
