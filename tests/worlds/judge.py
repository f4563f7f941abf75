"""What has to hold, whoever keeps the semaphore: stated once, over what happens to it.

Each call runs between two looks at the keys of the semaphore. What scripts keep there so that they
need not look at every request is what they are checked for.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from typing import NamedTuple

import redsem_async._protocol.operations as op
from redsem_async._core.keys import permit_id
from redsem_async._protocol.operations import QueuedRequest
from redsem_async._protocol.replies import FULL, FULL_FOR_KEY, WAITING_FOR_KEY, Holding, Reply
from tests.worlds.look import (
    BackOff,
    Look,
    Permit,
    Ran,
    Room,
    Waiter,
    costs_in,
    key_of,
    lets_go,
    patience_ends,
    ready,
    requests_of,
)

YOUNG_US = 50_000  # for so long the oldest request lets those of the releasing hub pass (zset)
SERVING = op.Acquire, op.Abandon, op.StartBackOff, op.Heartbeat, op.Reap, op.Release, op.SetLimit
ROUNDED = 2  # milliseconds, of times that are rounded
EXPIRY_SLACK = 5  # milliseconds: before 8.0 TIME goes on while a script runs
STAYING = "limit", "key-limits"  # keys that do not expire
OF_HOLDERS = "holders", "facts", "uses", "meta"  # that live for as long as a permit is held

FIRST_PAUSE, LONGEST_PAUSE = 500, 2000  # milliseconds, where nothing is left to cut
SHORTEST_REST, LONGEST_REST = 100, 30_000  # milliseconds at what was found

LIMIT = "never more than the limit"
KEY_LIMIT = "no key has more than its limit"
TOKENS = "fencing tokens grow"
SLOTS = "no slot is given twice"
ASKED = "a grant is what was asked for"
KEPT = "a permit is its holder's"
ONCE = "a number is granted once"
ANSWERS = "the answer is what happened"
RATE = "nothing above a rate, and each cost once"
ORDER = "nobody is passed whose turn it is"
BACK_OFF = "one overload is one cut, and what is told and found is kept"
MEET = "a free permit and a waiter meet"
REFUSED = "a call that is sent back changes nothing"
TRUST = "trust ends before the server lets go"
TOLD = "who is granted is told"
LEFT = "every key ends, and not before its time"


class Broken(NamedTuple):
    """A rule that was not kept."""

    rule: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"


Trusted = Collection[tuple[str, Permit]]  # by id, which two may have that should not


class Judge:
    """Judges calls, one after another.

    Attributes:
        last_token: the highest that was granted.
        granted_ms: when each token was.
        sums: for each rate, what it granted and settled in a time, less that time's length: the
            most of all times that end at *summed_us*, in microseconds. No script has a part in it.
        taken: permits that the server forgot, or somebody else than their holders ended, as they
            were, by id and token: a late duplicate is granted once more, and may be forgotten.
    """

    def __init__(self) -> None:
        self.last_token = 0
        self.granted_ms: dict[int, int] = {}
        self.sums: Sequence[int] = ()
        self.summed_us = 0
        self.taken: dict[tuple[str, int], Permit] = {}

    def ran(self, ran: Ran, trusted: Trusted = ()) -> Iterator[Broken]:
        """What is wrong with what a call did."""
        before, call, hub, answer, after, told = ran
        if not ran.done:
            # But that the semaphore's clock does not follow the server's back.
            if replace(before, now_us=after.now_us) != after:
                yield Broken(REFUSED, f"{call} by {hub}")
            return
        self._note_taken(ran)
        yield from self._of_all(after)
        yield from self._of_those_gone(ran)
        yield from self._of_those_kept(ran)
        if isinstance(call, op.Delete):
            self.sums = ()
        else:
            yield from self._of_back_offs(ran)
        if isinstance(call, op.Adopt):
            yield from self._of_adopted(call, ran)
        yield from self._of_granted(ran)
        heard = {*ran.granted} if told is None else {*told}
        for identity in ran.granted:
            owner = identity.partition(".")[0]
            if owner != hub and identity not in heard and owner not in after.silent:
                yield Broken(TOLD, f"{identity} was granted by {call}, and nobody heard of it")
        yield from self.trust(trusted, after.holders)
        if not isinstance(answer, Reply):
            return
        yield from self._of_answers(answer, ran)
        ended_early = answer.next_ms == 0  # its caller calls again
        if isinstance(call, SERVING) and not ended_early and (waits := forgotten(after)):
            yield Broken(MEET, f"{waits.id} waits, and its limits have room ({call})")

    def trust(self, trusted: Trusted, holders: Mapping[str, Permit]) -> Iterator[Broken]:
        """What clients trust is held for at least as long, or was taken from them.

        It may be both under one id: a server that forgot all grants a late duplicate once more.
        And a lease is used for one permit at a time.
        """
        used: set[str] = set()
        for identity, permit in trusted:
            known = holders.get(identity), self.taken.get((identity, permit.token))
            either = [held for held in known if held]
            same = any(held[1:] == permit[1:] for held in either)
            if not same or max(held.expiry_ms for held in either) < permit.expiry_ms:
                yield Broken(TRUST, f"{identity} is trusted as {permit}, and held as {either}")
            if identity in used:
                yield Broken(TRUST, f"{identity} is used for two permits")
            used.add(identity)

    def forgot(self, before: Look, after: Look) -> None:
        """The server forgot some of what it kept, or everything."""
        known = {(i, held.token): held for i, held in before.live.items() if held.token}
        self.taken |= {i: held for i, held in known.items() if after.holders.get(i[0]) != held}
        self.sums = self.sums if after.rates else ()

    def _note_taken(self, ran: Ran) -> None:
        """Whose permit was taken by right may trust it until it learns of that."""
        before, call, hub, _, after, _ = ran
        by_others = isinstance(call, op.Delete | op.Adopt) or (
            isinstance(call, op.Release) and call.owner != hub
        )
        if by_others:
            known = {i: was for i, was in self.taken.items() if was.expiry_ms > before.now}
            lost = {i: was for i, was in before.live.items() if was.token and i not in after.live}
            self.taken = known | {(i, was.token): was for i, was in lost.items()}

    def _of_all(self, after: Look) -> Iterator[Broken]:
        known = {identity for identity, held in after.live.items() if held.token}
        both = known & {waiter.id for waiter in after.line}
        if both:
            yield Broken(ASKED, f"{both} hold and wait")
        expiries = [(held.expiry_ms, held.token) for held in after.live.values()]
        longest = max((expiry for expiry, _ in expiries), default=0)
        counted = max((expiry for expiry, token in expiries if token), default=0)
        for kind, ends in after.ends.items():
            last = counted if kind == "uses" else longest
            if ends is None and kind not in STAYING:
                yield Broken(LEFT, f"{kind} never expires")
            elif after.by_server and kind in OF_HOLDERS and (ends or 0) < last - EXPIRY_SLACK:
                yield Broken(LEFT, f"{kind} expires at {ends}, and a lease at {last}")
        if after.slotted:
            for identity, held in after.live.items():
                if held.token and len(held.slots) != held.permits:
                    yield Broken(SLOTS, f"{identity} has {held.slots} for {held.permits}")
            yield from twice({identity: held.slots for identity, held in after.live.items()})

    def _of_those_gone(self, ran: Ran) -> Iterator[Broken]:
        """Only a release, an abandon, an adoption and a deletion take live permits away."""
        before, call, _, _, after, _ = ran
        takes = isinstance(call, op.Release | op.Abandon | op.Adopt)
        allowed = ran.own if takes else set[str]()
        if not isinstance(call, op.Delete):
            for identity in before.live.keys() - after.live.keys() - allowed:
                yield Broken(KEPT, f"{identity} was taken by {call}")
        if stayed := after.leaked & (before.holders.keys() - after.holders.keys()):
            yield Broken(LEFT, f"the facts of {stayed} stayed behind")

    def _of_those_kept(self, ran: Ran) -> Iterator[Broken]:
        """Only a refresh and a detach change a permit, and only the caller's own."""
        before, call, _, _, after, _ = ran
        own = ran.own
        for identity, was in before.live.items():
            now = after.live.get(identity)
            if now is None or now == was:
                continue
            expiry_ms = was.expiry_ms
            bound: int | None = None
            if identity in own and isinstance(call, op.Refresh):
                expiry_ms, bound = max(expiry_ms, after.now + call.lease_ms), call.max_hold_ms
            elif identity in own and isinstance(call, op.Detach):
                expiry_ms, bound = after.now + call.expires_ms, call.max_hold_ms
            if bound is not None and was.token in self.granted_ms:
                cut = min(expiry_ms, self.granted_ms[was.token] + bound)
                expiry_ms = cut if isinstance(call, op.Detach) else max(was.expiry_ms, cut)
                if abs(now.expiry_ms - expiry_ms) <= ROUNDED:
                    expiry_ms = now.expiry_ms
            if now != was._replace(expiry_ms=expiry_ms):
                yield Broken(KEPT, f"{identity} became {now} by {call}, having been {was}")

    def _of_back_offs(self, ran: Ran) -> Iterator[Broken]:
        """One that runs changes by a call that is for it."""
        before, call, _, answer, after, _ = ran
        for key, was in before.back_offs.items():
            ordered = isinstance(call, op.StartBackOff) and call.key == key
            if was.ramp(after.now) and not ordered and after.back_offs.get(key) != was:
                yield Broken(BACK_OFF, f"{was} of {key or 'all'} is changed by {call}")
        if isinstance(call, op.StartBackOff) and isinstance(answer, Reply):
            old, new = (running(look, call.key, after.now) for look in (before, after))
            begins, right = _of_ordered(call, old, new, ran)
            if not right or answer.answers != [new.kept if new and begins else 0]:
                yield Broken(BACK_OFF, f"{old} became {new} by {call}, answered {answer.answers}")

    def _of_adopted(self, call: op.Adopt, ran: Ran) -> Iterator[Broken]:
        after = ran.after
        old = ran.before.live.get(permit_id(call.owner, call.old))
        for identity in ran.new:
            if identity != permit_id(ran.hub, call.new) or old is None:
                yield Broken(KEPT, f"{identity} was adopted without a holder to adopt from")
            elif after.live[identity][1:] != old[1:]:
                yield Broken(KEPT, f"{identity} was adopted, and is not the same: {old}")

    def _of_granted(self, ran: Ran) -> Iterator[Broken]:
        """Tokens grow, limits hold, and who is granted has asked for that, in its turn."""
        (before, call, hub, _, after, _), granted = ran, ran.granted
        known = {waiter.id: waiter for waiter in before.line}
        asked = {identity: waiter.request for identity, waiter in known.items()}
        if isinstance(call, op.Acquire):
            asked |= {permit_id(hub, r.number): r for r in requests_of(call)} | asked
        room = after.room(without=granted)
        if granted and after.has_lost_facts:
            yield Broken(LIMIT, f"{granted} were granted, and what others hold is not known")
        for identity in granted:
            permit, request = after.live[identity], asked.get(identity)
            if permit.token <= self.last_token:
                detail = f"{identity} was granted {permit.token} after {self.last_token}"
                yield Broken(TOKENS, detail)
            self.last_token = max(self.last_token, permit.token)
            self.granted_ms.setdefault(permit.token, after.now)
            if request is None:
                yield Broken(ASKED, f"{identity} was granted and had not asked")
                continue
            if identity not in known and request.number <= before.marks.get(hub, 0):
                yield Broken(ONCE, f"{identity} was granted, and its number was used before")
            right = (permit.permits, permit.key) == (request.permits, key_of(request))
            if not right or permit.expiry_ms != after.now + request.lease_ms:
                yield Broken(ASKED, f"{identity} was granted {permit}, having asked {request}")
            if room.backs_off(request):
                yield Broken(BACK_OFF, f"{identity} was granted, and {room} has it back off")
            room.uses[permit.key] += permit.permits
            used, limit = room.uses.total(), room.common_limit(request)
            if used > limit:
                yield Broken(LIMIT, f"{used} of {limit} permits in use with {identity}")
            used, most = room.uses[permit.key], room.key_limit(request)
            if used > most:
                detail = f"{used} of {most} permits of {permit.key!r} in use with {identity}"
                yield Broken(KEY_LIMIT, detail)
        all_asked = all(identity in asked for identity in granted)
        if granted and all_asked and (wrong := broken_turn(before, grants_of(ran), after)):
            yield Broken(ORDER, f"{wrong} ({call})")
        if all_asked and not isinstance(call, op.Delete):
            yield from self._of_rates(ran, [asked[identity] for identity in granted])

    def _of_rates(self, ran: Ran, granted: Iterable[op.QueuedRequest]) -> Iterator[Broken]:
        """Nothing is granted above a rate, and what is spent is what was granted and settled."""
        before, call, hub, _, after, _ = ran
        buckets, now = before.rates, after.now_us
        changes = list[tuple[Sequence[int], float, op.QueuedRequest | None]]()
        for request in call.requests if isinstance(call, op.Abandon) else ():
            had = before.live.get(permit_id(hub, request.number))
            if had and had.token and request.costs:  # its caller never had it
                changes.append(([-us for us, _ in costs_in(request)], had.token, None))
        if isinstance(call, op.Release):
            for number, more in call.settled.items():
                held = before.live.get(permit_id(call.owner, number))
                if held and held.token:
                    changes.append(([*map(int, more.split("+"))], held.token, None))
        changes += [([us for us, _ in costs_in(each)], math.inf, each) for each in granted]
        passed, self.summed_us = max(0, now - self.summed_us), now
        self.sums = [max(0, each - passed) for each in self.sums]
        for by, token, asked in changes:
            for full_in in ([tat - now for tat, _ in buckets], self.sums):
                if asked and not lets_go(full_in, asked):
                    yield Broken(RATE, f"{asked} was granted, and {full_in} us are spent")
            buckets = spent(buckets, by, now, token)
            self.sums = [sum(pair) for pair in zip_longest(self.sums, by, fillvalue=0)]
        due, found = ([max(tat, now) for tat, _ in rates] for rates in (buckets, after.rates))
        if any(one != other for one, other in zip_longest(due, found, fillvalue=now)):
            yield Broken(RATE, f"the rates are full at {found}, and not at {due}, after {call}")

    def _of_answers(self, answer: Reply, ran: Ran) -> Iterator[Broken]:
        before, call, hub, _, after, _ = ran
        match call:
            case op.Release() | op.Refresh():
                owner = call.owner if isinstance(call, op.Release) else hub
                ids = [permit_id(owner, number) for number in call.numbers]
                found = [before.live.get(identity) for identity in ids]
                asks = isinstance(call, op.Refresh)  # and is told no where the facts were lost
                held = [int(one is not None and (one.token > 0 or not asks)) for one in found]
                if isinstance(call, op.Release):  # twice in one call, the second finds nothing
                    held = [one * (ids.index(ids[k]) == k) for k, one in enumerate(held)]
                    ended = {i for i, one in zip(ids, held, strict=True) if one}
                    if still := ended & after.live.keys():
                        yield Broken(ANSWERS, f"{still} are held after {call}")
                said = [int(bool(one)) for one in answer.answers]
                if said != held:
                    yield Broken(ANSWERS, f"{answer.answers} to {call}")
            case op.Acquire():
                told = zip(requests_of(call), answer.answers, strict=True)
                yield from self._of_told(before, hub, told, after)
            case _:
                pass
        for number, token in answer.granted:
            permit = after.live.get(permit_id(hub, number))
            if permit is None or permit.token != token:
                yield Broken(ANSWERS, f"{number} of {hub} was served {token}, and has {permit}")

    def _of_told(
        self, before: Look, hub: str, told: Iterable[tuple[QueuedRequest, object]], after: Look
    ) -> Iterator[Broken]:
        """Who is told of a grant has it, and who is told that all is full finds no room."""
        room, empty = after.room(), not (before.line or after.line or after.has_lost_facts)
        for request, said in told:
            identity = permit_id(hub, request.number)
            token = said.token if isinstance(said, Holding) else said
            assert isinstance(token, int)
            permit = after.live.get(identity)
            if token > 0 and (permit is None or permit.token != token):
                yield Broken(ANSWERS, f"{identity} was answered {said}, and has {permit}")
            if 0 > token != WAITING_FOR_KEY and identity in {waiter.id for waiter in after.line}:
                yield Broken(ANSWERS, f"{identity} was refused, and waits")
            if empty and said == FULL_FOR_KEY and room.fits_key(request):
                yield Broken(ANSWERS, f"{identity} was answered full, and its key has room")
            if empty and said == FULL and room.fits(request):
                yield Broken(ANSWERS, f"{identity} was answered full, and there is room")


def twice(slots: Mapping[str, Sequence[int]]) -> Iterator[Broken]:
    """No two permits have one slot, held or trusted."""
    owners: dict[int, str] = {}
    for identity, its in slots.items():
        for slot in its:
            other = owners.setdefault(slot, identity)
            if other != identity:
                yield Broken(SLOTS, f"{identity} and {other} have one slot: {slot}")


# -- rates


Buckets = Sequence[tuple[int, int]]  # when each is full, and when it was last seen full, in us


def spent(buckets: Buckets, by: Sequence[int], now: int, token: float = math.inf) -> Buckets:
    """*buckets* after *by* was taken, or came back of a permit that was granted as *token*."""
    after: list[tuple[int, int]] = []
    for i, us in enumerate(by):
        tat, full = buckets[i] if i < len(buckets) else (now, now)
        if tat <= now:
            tat = full = now
        counts = us > 0 or token >= full
        after.append((max(now, tat + us * counts), full))
    return after


# -- back-offs


def running(look: Look, key: str | None, now: int) -> BackOff | None:
    found = look.back_offs.get(key)
    return found if found and found.ramp(now) else None


def _of_ordered(
    call: op.StartBackOff, was: BackOff | None, new: BackOff | None, ran: Ran
) -> tuple[bool, bool]:
    """Whether a back-off begins by *call*, and whether what runs then is right."""
    now = ran.after.now
    if call.call <= ran.before.changes.get(ran.hub, 0):
        return False, new == was
    if call.token is None and not call.pause_ms:
        return False, new is None
    if was and call.token is not None and call.token <= was.began:  # it is the same overload
        told = now + call.pause_ms if call.pause_ms else 0
        return False, new == was._replace(ends=max(was.ends, told))
    if new is None or not SHORTEST_REST <= new.rest <= LONGEST_REST:
        return True, False
    used = ran.before.room(now).uses
    kept, ends = begun(call, was, used.total() if call.key is None else used[call.key], now)
    if ran.before.has_lost_facts:
        kept = new.kept  # it is not known what is in use
    in_force = new.ends == ends if ends > now else limit_in(new, now) == kept
    return True, new.kept == kept and in_force


def limit_in(back_off: BackOff, now: int) -> float:
    ramp = back_off.ramp(now)
    return ramp.permits if ramp else math.inf


def begun(call: op.StartBackOff, was: BackOff | None, used: int, now: int) -> tuple[int, int]:
    """What a back-off that begins keeps of *used* permits, and when its pause ends.

    An operator's cuts nothing. A cut is small where what *was* found is in force. Where there is
    nothing to cut any more, the fleet pauses although no time is told.
    """
    if was is None:
        return max(1, used // 2) if call.token is not None else 1, now + call.pause_ms
    kept, ends = was.kept, max(was.ends, now + call.pause_ms)
    if call.token is None:
        return kept, ends
    in_force = limit_in(was, now)
    found = in_force >= kept
    used = min(used, int(min(in_force, used)) or kept)  # one heavy permit may be more than that
    if ends == now and kept == 1 and used <= 1:
        ends += min(max(FIRST_PAUSE, 2 * (was.ends - was.began // 1000)), LONGEST_PAUSE)
    return max(1, used * 9 // 10 if found else used // 2), ends


# -- whose turn it is


def next_in_turn(look: Look, room: Room) -> list[Waiter]:
    """Whose turn it may be; several where only their virtual times tell, which are not known."""
    if look.passes_over:
        return [*islice((w for w in look.eligible(room) if room.fits_limit(w.request)), 1)]
    heads = ready(look.eligible(room), room)
    if not heads or not look.shares:
        return heads[:1]
    ends = min(head.patience_ends for head in heads)
    if ends < look.now_us:
        return [head for head in heads if head.patience_ends == ends]
    least = min(room.share(head.request) for head in heads)
    return [head for head in heads if room.share(head.request) == least]


def forgotten(look: Look) -> Waiter | None:
    """A request that waits although its limits have room, and nothing has precedence over it."""
    if not look.line or look.has_lost_facts:
        return None
    room = look.room()
    turns = next_in_turn(look, room)
    return turns[0] if turns and all(room.fits(head.request) for head in turns) else None


class Grant(NamedTuple):
    """A grant of a call, in the order of tokens."""

    id: str
    request: QueuedRequest
    ticket: float  # of one that was not in line, as if it had come last
    may_pass: bool = False  # older ones: the releasing process asked for it, and the head is young


def grants_of(ran: Ran) -> list[Grant]:
    """What a call granted: what was in line before, or is asked for by it."""
    before, call, hub, _, after, _ = ran
    asked = {waiter.id: Grant(waiter.id, waiter.request, waiter.ticket) for waiter in before.line}
    if isinstance(call, op.Release) and call.own and after.by_server:
        oldest = min((waiter.ticket for waiter in before.line), default=math.inf)
        if 0 <= after.now_us - oldest <= YOUNG_US:
            named = {permit_id(hub, request.number) for request in call.own} & asked.keys()
            asked |= {identity: asked[identity]._replace(may_pass=True) for identity in named}
    if isinstance(call, op.Acquire):
        every = call.options.values()
        overtakes = after.shares or any(each.ahead_ms or each.asked_us for each in every)
        for request in requests_of(call):
            identity = permit_id(hub, request.number)
            # Where one may come before older ones, they join the line before it is served.
            options = call.options.get(request.number, op.DEFAULT_OPTIONS)
            ticket = after.now_us - 1000 * options.ahead_ms if overtakes else math.inf
            if options.asked_us is not None:
                ticket = min(after.now_us, after.offsets.get(hub, 0) + options.asked_us)
            asked.setdefault(identity, Grant(identity, request, ticket))
    return [asked[identity] for identity in ran.granted]


def broken_turn(before: Look, grants: Sequence[Grant], after: Look) -> str | None:
    """Who was passed by the grants of a call.

    Of those who wait it goes by those who were in line before: a request that came with the call
    may have come too late for its first grants. A grant that nobody received was in the way of
    others until that was known. Which of the requests of its process it was is not known, and any
    of them may have been the first of its key. So may one that was granted later.
    """
    left = {waiter.id for waiter in after.line} | {grant.id for grant in grants}
    undelivered = Counter[str | None]()
    for waiter in before.line:
        if waiter.alive_until > after.now and waiter.id not in left:
            undelivered[waiter.key] += waiter.request.permits
    counted = _passed(before, grants, after, undelivered)
    return counted and _passed(before, grants, after, Counter())


def _passed(
    before: Look, grants: Sequence[Grant], after: Look, undelivered: Counter[str | None]
) -> str | None:
    """Who was passed, if *undelivered* permits of each key counted as in use."""
    room, old = after.room(), {waiter.id for waiter in before.line}
    room.uses.update(undelivered)
    standing = list(after.eligible(room))
    # Of those that are too heavy it is not known whether their key held them up before.
    waiting = [w for w in standing if w.id in old and not room.is_too_heavy(w.request)]
    heads = ready(standing, room)
    ends: dict[str, float] = {}
    of_keys: dict[str | None, float] = defaultdict(float)
    for grant in grants:
        key = key_of(grant.request)
        of_keys[key] = max(of_keys[key], patience_ends(grant.request, grant.ticket))
    for waiter in after.line:
        ends[waiter.id] = of_keys[waiter.key] = max(of_keys[waiter.key], waiter.patience_ends)
    for grant in grants:
        room.uses[key_of(grant.request)] -= grant.request.permits
    for nth, grant in enumerate(grants, 1):
        key = key_of(grant.request)
        behind = {*undelivered, *(key_of(later.request) for later in grants[nth:])}
        for waiter in waiting:
            if grant.may_pass:
                continue
            passed = waiter.ticket < grant.ticket and not after.passes_over
            if passed and waiter.key == key:
                return f"{waiter.id} was in line before {grant.id}, of the same key"
            of_other = waiter.key != key and waiter.key not in behind
            other = after.passes_over or (of_other and waiter in heads)
            if other and _has_precedence(after, room, waiter, ends[waiter.id], grant):
                return f"{waiter.id} was in line before those who were granted"
        room.uses[key] += grant.request.permits
    return None


def _has_precedence(look: Look, room: Room, waiter: Waiter, ends: float, grant: Grant) -> bool:
    """Whether *waiter*, which only the common limit held up, was to be served before.

    Its patience *ends* no sooner than that of those before it, of the same key: the call served
    them, or they are of processes that are gone, as nobody had seen.
    """
    passed = waiter.ticket < grant.ticket
    if look.passes_over:
        return passed and room.fits_limit(waiter.request)
    if not look.shares or grant.ticket == math.inf:
        return passed
    its = patience_ends(grant.request, grant.ticket)
    if min(its, ends) < look.now_us:
        return ends < its
    return room.share(waiter.request) < room.share(grant.request)
