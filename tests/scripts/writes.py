"""The keys, rebuilt from the writes in the journal, and the promises that they have to keep.

This knows the layout of the keys and nothing of how scripts come to their decisions: it sees
what each wrote, and asks of that what has to hold "after every script". The work for a record
is bounded by what the record changed, and by the line where a grant passed somebody by.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from redsem_async._core.keys import permit_id
from redsem_async._protocol.operations import (
    Abandon,
    Acquire,
    Adopt,
    Detach,
    Heartbeat,
    Operation,
    Reap,
    Refresh,
    Release,
    Restore,
    SetLimit,
)
from tests.scripts.recording import Record, Write
from tests.scripts.violations import Findings

EXPIRY_SLACK = 5  # ms by which an expiry may differ: before 8.0 TIME goes on while a script runs
KINDS = ("holders", "tokens", "meta", "hubs", "extra", "limit", "line", "marker", "released")
SERVING = (Acquire, Abandon, Heartbeat, Reap, Release, SetLimit)
STAYING = ("limit", "marker")  # keys without an expiry
BAND = 2**42  # `extra` has '<id>:<power>' -> expiry + power * BAND: 2**power permits of id
ASIDE = 2**52  # the score of a request that was set aside is its ticket less this


@dataclass(slots=True)
class Changes:
    """What one record changed."""

    added: dict[str, float] = field(default_factory=dict[str, float])  # id -> expiry
    extended: dict[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )
    removed: dict[str, tuple[float, str, int]] = field(
        default_factory=dict[str, tuple[float, str, int]]
    )  # id -> expiry, token, permits
    tokens: dict[str, int] = field(default_factory=dict[str, int])
    joined: dict[str, float] = field(default_factory=dict[str, float])  # member -> ticket
    left: dict[str, float] = field(default_factory=dict[str, float])
    touched: set[str] = field(default_factory=set[str])  # kinds of keys
    cleared: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """A permit given to somebody who had none."""

    id: str
    token: int
    permits: int
    expiry: float


class Keys:
    """The keys of one semaphore, as the journal's writes made them."""

    def __init__(self, base: str, fair: bool, findings: Findings) -> None:
        self.holders: dict[str, float] = {}
        self.tokens: dict[str, str] = {}
        self.meta: dict[str, str] = {}
        self.hubs: dict[str, float] = {}
        self.extra: dict[str, float] = {}
        self.weights: dict[str, int] = {}  # permits beyond one, which `extra` adds up to
        self.line: dict[str, float] = {}
        self.released: dict[str, float] = {}
        self.texts: dict[str, str] = {}  # the set limit, and the marker
        self.now = 0  # of the semaphore's clock, in ms, when the last record was written
        self.deadlines: dict[str, int] = {}  # of a key: when it expires, in ms
        self.highest = 0  # fencing token granted so far
        self.grants: list[Grant] = []  # of the last record
        self._in_use = 0  # permits of all holders, the expired among them
        self._line_ids: dict[str, str] = {}
        self._base = base
        self._fair = fair
        self._findings = findings

    # -- following the journal

    def follow(self, record: Record) -> tuple[list[str], Changes]:
        """Apply a record. Returns which kinds of keys had expired before, and what changed."""
        self.now = self._clock(record)
        gone = self._vanished(record)
        marks = {record.hub: int(self.meta.get(record.hub, 0))}
        before = dict(self.holders) if record.operation == "clear" else {}
        changes = Changes()
        for write in record.writes:
            self._apply(write, record, changes)
        changes.removed = {
            i: facts for i, facts in changes.removed.items() if i not in self.holders
        }
        for identity, expiry in before.items():
            changes.removed.setdefault(identity, (expiry, "", 0))
        self._check(record, changes, marks)
        return gone, changes

    def _clock(self, record: Record) -> int:
        """The semaphore's clock, which is ahead where the server's was set back."""
        ahead = int(self.meta.get("ahead", 0))
        for write in record.writes:
            if write.command == "HSET" and write.arguments[0] == "ahead":
                ahead = int(write.arguments[1])
        return (record.now_us + ahead) // 1000

    @property
    def cap(self) -> int | None:
        """The set limit, if any."""
        return int(self.texts["limit"]) if "limit" in self.texts else None

    def _exists(self, kind: str) -> bool:
        return kind in self.texts if kind in STAYING else bool(getattr(self, kind))

    def _vanished(self, record: Record) -> list[str]:
        """Keys that expired since the last record: in their time, with nothing live in them."""
        gone: list[str] = []
        now = record.server_us // 1000
        for kind, there in zip(KINDS, record.present, strict=False):
            known = self._exists(kind)
            if there == "1" and not known:
                self._broken("the journal is complete", f"{kind} came from nowhere")
            if there == "1" or not known:
                continue
            gone.append(kind)
            deadline = self.deadlines.pop(kind, None)
            if deadline is None or deadline > now + EXPIRY_SLACK:
                detail = f"{kind} was gone at {now}, its expiry was {deadline}"
                self._broken("keys end with their expiry", detail)
            if kind in ("holders", "tokens", "extra"):
                # A command that says what time it is may have been on its way for long.
                latest = max(now, self.now) if record.arguments[1] else self.now
                live = {i for i, expiry in self.holders.items() if expiry > latest}
                if kind == "extra":
                    live &= self.weights.keys()
                if live:
                    self._broken("keys outlive their leases", f"{kind} was gone before {live}")
            self._drop_key(kind)
        return gone

    def _drop_key(self, kind: str) -> None:
        if kind in STAYING:
            self.texts.pop(kind, None)
            return
        getattr(self, kind).clear()
        if kind == "line":
            self._line_ids.clear()
        if kind == "extra":
            self.weights.clear()
        if kind in ("holders", "extra"):
            self._count()

    def _count(self) -> None:
        self._in_use = sum(map(self._permits, self.holders))

    def _permits(self, identity: str) -> int:
        return 1 + self.weights.get(identity, 0)

    def _apply(self, write: Write, record: Record, changes: Changes) -> None:
        if write.command in ("PUBLISH", "SPUBLISH"):
            return
        if write.command in ("DEL", "UNLINK"):
            for key in (write.key, *write.arguments):
                self._delete(self._kind(key), changes)
            return
        kind = self._kind(write.key)
        arguments = write.arguments
        match write.command:
            case "ZADD":
                pairs = zip(arguments[1::2], map(float, arguments[::2]), strict=True)
                self._zadd(kind, pairs, changes)
            case "ZREM":
                self._zrem(kind, arguments, changes)
            case "HSET":
                mapping = dict(zip(arguments[::2], arguments[1::2], strict=True))
                if kind == "tokens":
                    changes.tokens.update({i: int(token) for i, token in mapping.items()})
                getattr(self, kind).update(mapping)
            case "HDEL":
                for name in arguments:
                    self._hdel(kind, name, changes)
            case "SET":
                self.texts[kind] = arguments[0]
            case "PEXPIRE":
                self._pexpire(kind, int(arguments[0]), record)
            case _:
                raise AssertionError(f"a script wrote what is not known here: {write}")
        changes.touched.add(kind)
        if not self._exists(kind):
            self.deadlines.pop(kind, None)

    def _kind(self, key: str) -> str:
        kind = key.removeprefix(self._base)
        return "line" if kind in ("queue", "waiting") else kind

    def _zadd(self, kind: str, pairs: Iterable[tuple[str, float]], changes: Changes) -> None:
        zset: dict[str, float] = getattr(self, kind)
        for member, score in pairs:
            old = zset.get(member)
            zset[member] = score
            if kind == "holders":
                if old is None:
                    changes.added[member] = score
                    self._in_use += self._permits(member)
                elif member not in changes.added:
                    first = changes.extended.get(member, (old, 0))[0]
                    changes.extended[member] = (first, score)
            elif kind == "line":
                if old is None:
                    changes.joined[member] = score
                    self._line_ids[_id_of(member)] = member
                elif self._fair and _ticket(old) != _ticket(score):
                    self._broken("a place is kept", f"{member}: {old:.0f} to {score:.0f}")
            elif kind == "extra":
                power = int(member.rpartition(":")[2])
                if not power * BAND < score < (power + 1) * BAND:
                    self._broken("an entry is in its band", f"{member}: {score:.0f}")
                if old is None:
                    self._weigh(member, 1)

    def _weigh(self, member: str, sign: int) -> None:
        """An entry of `extra` has come (1) or gone (-1)."""
        identity, _, power = member.rpartition(":")
        permits = sign * 2 ** int(power)
        self.weights[identity] = self.weights.get(identity, 0) + permits
        if not self.weights[identity]:
            del self.weights[identity]
        if identity in self.holders:
            self._in_use += permits

    def _zrem(self, kind: str, members: Sequence[str], changes: Changes) -> None:
        zset: dict[str, float] = getattr(self, kind)
        for member in members:
            old = zset.pop(member, None)
            if old is None:
                continue
            if kind == "holders":
                self._in_use -= self._permits(member)
                # One that was never given a token may have lost it to an eviction. What it has
                # beyond one permit is taken out after it.
                changes.removed[member] = (old, self.tokens.get(member, ""), 1)
            elif kind == "extra":
                identity = member.rpartition(":")[0]
                if identity in changes.removed:
                    expiry, token, permits = changes.removed[identity]
                    more = 2 ** int(member.rpartition(":")[2])
                    changes.removed[identity] = (expiry, token, permits + more)
                self._weigh(member, -1)
            elif kind == "line":
                changes.left[member] = _ticket(old)
                self._line_ids.pop(_id_of(member), None)

    def _hdel(self, kind: str, name: str, changes: Changes) -> None:
        mapping: dict[str, str] = getattr(self, kind)
        old = mapping.pop(name, None)
        if old is None or kind != "tokens":
            return
        if name in changes.removed:
            expiry, _, permits = changes.removed[name]
            changes.removed[name] = (expiry, old, permits)
        else:
            # The quick path takes the token before the holder.
            changes.tokens.pop(name, None)

    def _delete(self, kind: str, changes: Changes) -> None:
        if kind == "line":
            changes.left.update({member: _ticket(score) for member, score in self.line.items()})
        if kind == "holders":
            changes.cleared = True
        changes.touched.add(kind)
        self._drop_key(kind)
        self.deadlines.pop(kind, None)

    def _pexpire(self, kind: str, ms: int, record: Record) -> None:
        if not self._exists(kind):
            return
        deadline = record.server_us // 1000 + ms
        old = self.deadlines.get(kind)
        if old is not None and deadline < old - EXPIRY_SLACK:
            self._broken("an expiry is never shortened", f"{kind}: {old} to {deadline}")
        self.deadlines[kind] = deadline

    # -- what has to hold

    def _broken(self, rule: str, detail: str) -> None:
        self._findings.add(rule, self._base, detail)

    def _check(self, record: Record, changes: Changes, marks: dict[str, int]) -> None:
        moved = self._check_ids(record, changes, marks)
        self.grants = [
            Grant(i, int(self.tokens.get(i, 0)), self._permits(i), expiry)
            for i, expiry in changes.added.items()
            if i not in moved
        ]
        self.grants.sort(key=lambda grant: grant.token)
        if self._fair and isinstance(record.call, SERVING):
            self._check_that_all_are_served(record)
        if self.grants:
            if int(self.meta.get("grace", 0)) > self.now:
                self._broken("nobody new in a grace period", f"{self.grants}")
            self._check_tokens()
            self._check_limit(record, changes)
            if self._fair:
                self._check_order(record, changes)
        self._check_expiries(record, changes)
        for identity in changes.removed:
            for kind in ("tokens", "weights"):
                if identity in getattr(self, kind) and self.holders:
                    self._broken("nothing leaks", f"{kind} of {identity} stayed behind")
        for identity in (*changes.added, *map(_id_of, changes.joined)):
            if self._fair and identity in self.holders and identity in self._line_ids:
                self._broken("held or waiting, not both", identity)

    def _check_ids(self, record: Record, changes: Changes, marks: dict[str, int]) -> set[str]:
        """A script touches the ids it was given, those in line, and those that expired.

        Returns the ids that took a permit over.
        """
        call, hub = record.call, record.hub
        moved = set[str]()
        if isinstance(call, Adopt):
            moved = self._check_adopted(call, hub, changes)
        elif isinstance(call, Restore):
            moved = self._check_restored(call, hub, changes)
        own = _own_ids(call, hub)
        waited = {_id_of(member) for member in changes.left}
        may_end = own if isinstance(call, Release | Abandon | Adopt) else set[str]()
        for identity, (expiry, _, _) in changes.removed.items():
            if expiry > self.now and identity not in may_end and not changes.cleared:
                self._broken("only its own permits end", f"{call} took {identity} away")
        for identity in changes.added.keys() - moved:
            asked = isinstance(call, Acquire) and identity in own
            if not asked and identity not in waited:
                self._broken("only who asked is granted", f"{call} granted {identity}")
            elif identity not in waited and _number(identity) <= marks[hub]:
                self._broken("what ended does not come back", f"{call} granted {identity} again")
        for identity, (old, new) in changes.extended.items():
            if not isinstance(call, Refresh | Restore | Detach) or identity not in own:
                self._broken("only its own lease is renewed", f"{call} renewed {identity}")
            if old <= self.now:
                self._broken("what ended does not come back", f"{call} renewed {identity}")
            if new < old and not isinstance(call, Detach):
                self._broken("a refresh never shortens", f"{identity}: {old} to {new}")
        if self._fair and not changes.cleared:
            self._check_line(call, own, changes, marks[hub])
        return moved

    def _check_line(self, call: Operation, own: set[str], changes: Changes, mark: int) -> None:
        for member in changes.joined:
            identity = _id_of(member)
            if not isinstance(call, Acquire) or identity not in own:
                self._broken("only who asked waits", f"{call} put {identity} in line")
            elif _number(identity) <= mark:
                self._broken("what ended does not come back", f"{call} queued {identity} again")
        for member in changes.left:
            identity = _id_of(member)
            left_itself = isinstance(call, Abandon) and identity in own
            if identity in changes.added or left_itself or self._dead(member, self.now):
                continue
            self._broken("nobody loses a place", f"{call} took {identity} out of the line")

    def _check_adopted(self, call: Adopt, hub: str, changes: Changes) -> set[str]:
        old, new = permit_id(call.owner, call.old), permit_id(hub, call.new)
        if new not in changes.added:
            return set()
        expiry, token, permits = changes.removed.get(old, (0, "", 0))
        if (token, permits) != (self.tokens.get(new), self._permits(new)):
            self._broken("adoption moves a permit", f"{old}, {token} became {new}: {expiry}")
        changes.tokens.pop(new, None)
        return {new}

    def _check_restored(self, call: Restore, hub: str, changes: Changes) -> set[str]:
        """A holder puts back what it was granted once, while nobody new is admitted."""
        given = {permit_id(hub, number): token for number, token, _ in call.permits}
        for identity in changes.added:
            token = int(self.tokens.get(identity, 0))
            if token != given.get(identity) or token > self.highest:
                self._broken("what is put back was granted", f"{identity} with token {token}")
            if int(self.meta.get("grace", 0)) <= self.now:
                self._broken("nothing is put back later", f"{identity} at {self.now}")
            if identity in self.released:
                self._broken("what ended does not come back", f"{call} put back {identity}")
        return set(changes.added)

    def _check_tokens(self) -> None:
        for grant in self.grants:
            if grant.token <= self.highest:
                detail = f"{grant.id} was granted {grant.token} after {self.highest}"
                self._broken("fencing tokens grow", detail)
            self.highest = max(self.highest, grant.token)

    def _check_limit(self, record: Record, changes: Changes) -> None:
        most = self._limits(record, changes)
        if self._in_use <= min(most.values()):
            return
        live = sum(self._permits(i) for i, expiry in self.holders.items() if expiry > self.now)
        in_use = live - sum(grant.permits for grant in self.grants)
        for grant in self.grants:
            in_use += grant.permits
            if in_use > most[grant.id]:
                detail = f"{in_use} of {most[grant.id]} permits in use with {grant.id}"
                self._broken("never more than the limit", detail)

    def _limits(self, record: Record, changes: Changes) -> dict[str, int]:
        """The limit in force for each grant: the set one, or its own."""
        call = record.call
        declared = {_id_of(member): _limit_of(member) for member in changes.left if self._fair}
        own = call.limit if isinstance(call, Acquire) else 0
        if self.cap is not None:
            return {grant.id: self.cap for grant in self.grants}
        return {grant.id: declared.get(grant.id, own) for grant in self.grants}

    def _check_order(self, record: Record, changes: Changes) -> None:
        """No grant while an older waiter waits, who is there and whose request can be served."""
        tickets = {_id_of(member): ticket for member, ticket in changes.left.items()}
        newest = max(tickets.get(grant.id, float(grant.token)) for grant in self.grants)
        for member, score in self.line.items():
            ticket = _ticket(score)
            if ticket >= newest or self._dead(member, self.now):
                continue
            hub = member.partition(".")[0]
            most = _limit_of(member) if self.cap is None else self.cap
            silent = f"{hub}:gone" in self.meta and hub != record.hub
            if not silent and _weight_of(member) <= most:
                detail = f"{member} waits with ticket {ticket:.0f}, and {newest:.0f} was served"
                self._broken("first come, first served", detail)

    def _check_that_all_are_served(self, record: Record) -> None:
        """A free permit and a live waiter meet, unless the call says that it stopped early."""
        reply = record.reply
        if isinstance(reply, Exception) or (len(reply) > 1 and reply[1] == 0):
            return
        if not self.line or self.cap == 0 or int(self.meta.get("grace", 0)) > self.now:
            return
        in_use = sum(self._permits(i) for i, expiry in self.holders.items() if expiry > self.now)
        for member, score in self.extra.items():
            identity, _, power = member.rpartition(":")
            if identity not in self.holders and score - int(power) * BAND > self.now:
                in_use += 2 ** int(power)  # its holder was evicted
        turns = sorted((_ticket(score), member) for member, score in self.line.items())
        for _, member in turns:
            hub = member.partition(".")[0]
            most = _limit_of(member) if self.cap is None else self.cap
            if (
                self._dead(member, self.now)
                or f"{hub}:gone" in self.meta
                or _weight_of(member) > most
            ):
                continue
            if in_use + _weight_of(member) <= most:
                self._broken(
                    "a free permit and a live waiter meet", f"{member} after {record.call}"
                )
            return

    def _check_expiries(self, record: Record, changes: Changes) -> None:
        for kind in changes.touched:
            staying = kind in STAYING or not self._exists(kind)
            if not staying and kind not in self.deadlines:
                self._broken("every key expires but a set limit", f"{kind} after {record.call}")
        if record.arguments[1]:
            return  # by a local clock, which is not that of the keys' expiries
        longest = max(
            (*changes.added.values(), *(new for _, new in changes.extended.values())), default=0
        )
        for kind in ("holders", "tokens", "meta"):
            if self.deadlines.get(kind, 0) < longest - EXPIRY_SLACK:
                detail = f"{kind} ends at {self.deadlines.get(kind)}, a lease at {longest:.0f}"
                self._broken("keys outlive their leases", detail)

    def _dead(self, member: str, now: int) -> bool:
        return float(self.meta.get(f"{member.partition('.')[0]}:until", 0)) <= now


def _own_ids(call: object, hub: str) -> set[str]:
    match call:
        case Acquire():
            return {permit_id(hub, number) for number in call.numbers}
        case Release():
            return {permit_id(call.owner, number) for number in call.numbers}
        case Refresh():
            return {permit_id(hub, number) for number in call.numbers}
        case Restore():
            return {permit_id(hub, number) for number, _, _ in call.permits}
        case Abandon():
            return {permit_id(hub, request.number) for request in call.requests}
        case Adopt():
            return {permit_id(call.owner, call.old)}
        case Detach():
            return {permit_id(hub, call.number)}
        case _:
            return set()


def _id_of(member: str) -> str:
    return member.partition(":")[0]


def _ticket(score: float) -> float:
    return score + ASIDE if score < 0 else score


def _number(identity: str) -> int:
    return int(identity.rpartition(".")[2])


def _limit_of(member: str) -> int:
    return int(member.split(":")[2])


def _weight_of(member: str) -> int:
    return int(member.split(":")[3])
