"""The keys of a semaphore, rebuilt from the writes in the journal, and the rules for keys.

The specification has no keys. This file knows their layout, and nothing of how scripts decide.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

from redsem_async._protocol.operations import Acquire
from redsem_async.testing._spec.records import HolderRecord
from tests.scripts.recording import Record, Write
from tests.scripts.violations import Findings

EXPIRY_SLACK = 5  # ms by which an expiry may differ: before 8.0 TIME goes on while a script runs
KINDS = ("holders", "tokens", "meta", "hubs", "extra", "limit", "queue", "marker", "released")
STAYING = ("limit", "marker", "key-limits")  # keys without an expiry
BAND = 2**42  # `extra` has '<id>:<power>' -> expiry + power * BAND: 2**power permits of id

Held = Mapping[str, HolderRecord]


class Changes(NamedTuple):
    """What one record changed.

    Attributes:
        gone: kinds of keys that had expired before it.
        grants: of those added, what was granted, and neither adopted nor put back.
    """

    gone: Sequence[str]
    added: Held
    renewed: Held
    removed: Held
    grants: Held


class Keys:
    """The keys of one semaphore, as the journal's writes made them."""

    def __init__(self, base: str, findings: Findings) -> None:
        self.holders: dict[str, float] = {}
        self.tokens: dict[str, str] = {}
        self.meta: dict[str, str] = {}
        self.hubs: dict[str, float] = {}
        self.extra: dict[str, float] = {}
        self.queue: dict[str, float] = {}
        self.released: dict[str, float] = {}
        self.texts: dict[str, str] = {}  # the set limit, and the marker
        self.keys: dict[str, float] = {}  # see the keyed prelude
        self.key_limits: dict[str, str] = {}
        self.slots: dict[str, str] = {}  # see the slots prelude
        self.now = 0  # of the semaphore's clock, in ms, when the last record was written
        self.highest = 0  # fencing token granted so far
        self._deadlines: dict[str, int] = {}  # of a key: when it expires, in ms
        self._base = base
        self._findings = findings

    # -- following the journal

    def follow(self, record: Record) -> Changes:
        """Apply a record, and see that the rules hold after it."""
        self.now = self._clock(record)
        gone = self._expired(record)
        before, line = self.held(), self.queue.copy()
        touched = {kind for write in record.writes for kind in self._apply(write, record)}
        after = self.held()
        added = {i: holder for i, holder in after.items() if i not in before}
        changes = Changes(
            gone,
            added,
            {i: h for i, h in after.items() if i in before and h.expiry_ms != before[i].expiry_ms},
            {i: holder for i, holder in before.items() if i not in after},
            {} if record.operation in ("adopt", "restore") else added,
        )
        self._check_expiries(record, touched, changes)
        self._check_leaks(changes)
        left = [member for member in line if member not in self.queue]
        self._check_grants(record, changes.grants, left)
        return changes

    def held(self) -> dict[str, HolderRecord]:
        """Every holder, the expired among them."""
        held = {
            i: HolderRecord(int(expiry), int(self.tokens.get(i, 0)), 1)
            for i, expiry in self.holders.items()
        }
        for member in self.extra:
            identity, _, power = member.rpartition(":")
            if identity in held:
                held[identity].permits += 2 ** int(power)
        for identity, key in self.keys_of_holders().items():
            if identity in held:
                held[identity].key = key
        for identity, slots in self.slots.items():
            if identity in held:
                held[identity].slots = tuple(map(int, slots.split("+")))
        return held

    def keys_of_holders(self) -> dict[str, str]:
        """The key of each holder that has one."""
        texts = (text.split(":") for text in self.keys if text.startswith("i:"))
        return {identity: unquote(key) for _, identity, _, key in texts if key}

    def ready(self) -> dict[str, int]:
        """The ticket of the first request of each key that is ready."""
        texts = (text.split(":") for text in self.keys if text.startswith("r:"))
        return {unquote(key): int(ticket) for _, ticket, key in texts}

    def _clock(self, record: Record) -> int:
        """The semaphore's clock, which is ahead where the server's was set back."""
        ahead = int(self.meta.get("ahead", 0))
        for write in record.writes:
            if write.command == "HSET" and write.arguments[0] == "ahead":
                ahead = int(write.arguments[1])
        return (record.now_us + ahead) // 1000

    def _contents(self, kind: str) -> dict[str, str] | dict[str, float]:
        contents: dict[str, str] | dict[str, float]
        if kind == "key-limits":
            contents = self.key_limits
        elif kind in STAYING:
            contents = {kind: self.texts[kind]} if kind in self.texts else {}
        else:
            contents = getattr(self, kind)
        return contents

    def _expired(self, record: Record) -> list[str]:
        """Keys that expired since the last record: in their time, with nothing live in them."""
        gone: list[str] = []
        now = record.server_us // 1000
        kinds = *map(self._kind, record.address.first_keys), *KINDS
        for kind, there in zip(kinds, record.present, strict=False):
            known = self._contents(kind)
            if there == "1" and not known:
                self._broken("the journal is complete", f"{kind} came from nowhere")
            if there == "1" or not known:
                continue
            gone.append(kind)
            deadline = self._deadlines.get(kind)
            if deadline is None or deadline > now + EXPIRY_SLACK:
                detail = f"{kind} was gone at {now}, its expiry was {deadline}"
                self._broken("keys end with their expiry", detail)
            if kind in ("holders", "tokens", "extra"):
                # A command that says what time it is may have been on its way for long.
                latest = max(now, self.now) if record.arguments[1] else self.now
                live = {i for i, holder in self.held().items() if holder.expiry_ms > latest}
                if kind == "extra":
                    live &= {member.rpartition(":")[0] for member in self.extra}
                if live:
                    self._broken("keys outlive their leases", f"{kind} was gone before {live}")
            self._delete(kind)
        return gone

    def _apply(self, write: Write, record: Record) -> list[str]:
        """Apply a write. Returns the kinds of keys that it is for."""
        arguments = write.arguments
        kind = self._kind(write.key)
        match write.command:
            case "PUBLISH" | "SPUBLISH":
                return []
            case "DEL" | "UNLINK":
                kinds = [kind, *map(self._kind, arguments)]
                for each in kinds:
                    self._delete(each)
                return kinds
            case "ZADD":
                for score, member in zip(arguments[::2], arguments[1::2], strict=True):
                    self._zadd(kind, member, float(score))
            case "ZREM" | "HDEL":
                contents = self._contents(kind)
                for member in arguments:
                    contents.pop(member, None)
            case "HSET":
                pairs = zip(arguments[::2], arguments[1::2], strict=True)
                self._fields(kind).update(pairs)
            case "SET":
                self.texts[kind] = arguments[0]
            case "PEXPIRE":
                self._pexpire(kind, record.server_us // 1000 + int(arguments[0]))
            case _:
                raise AssertionError(f"a script wrote what is not known here: {write}")
        if not self._contents(kind):
            self._deadlines.pop(kind, None)
        return [kind]

    def _kind(self, key: str) -> str:
        return key.removeprefix(self._base)

    def _fields(self, kind: str) -> dict[str, str]:
        fields: dict[str, str] = self.key_limits if kind == "key-limits" else getattr(self, kind)
        return fields

    def _zadd(self, kind: str, member: str, score: float) -> None:
        getattr(self, kind)[member] = score
        if kind == "extra":
            power = int(member.rpartition(":")[2])
            if not power * BAND < score < (power + 1) * BAND:
                self._broken("an entry is in its band", f"{member}: {score:.0f}")

    def _delete(self, kind: str) -> None:
        if kind in STAYING and kind != "key-limits":
            self.texts.pop(kind, None)
        else:
            self._contents(kind).clear()
        self._deadlines.pop(kind, None)

    def _pexpire(self, kind: str, deadline: int) -> None:
        if not self._contents(kind):
            return
        old = self._deadlines.get(kind)
        if old is not None and deadline < old - EXPIRY_SLACK:
            self._broken("an expiry is never shortened", f"{kind}: {old} to {deadline}")
        self._deadlines[kind] = deadline

    # -- what has to hold

    def _broken(self, rule: str, detail: str) -> None:
        self._findings.add(rule, self._base, detail)

    def _check_expiries(self, record: Record, touched: set[str], changes: Changes) -> None:
        for kind in touched:
            if kind not in (*STAYING, *self._deadlines) and self._contents(kind):
                self._broken("every key expires but a set limit", f"{kind} after {record.call}")
        if record.arguments[1]:
            return  # by a local clock, which is not that of the keys' expiries
        leases = [*changes.added.values(), *changes.renewed.values()]
        longest = max((holder.expiry_ms for holder in leases), default=0)
        for kind in ("holders", "tokens", "meta"):
            if self._deadlines.get(kind, 0) < longest - EXPIRY_SLACK:
                detail = f"{kind} ends at {self._deadlines.get(kind)}, a lease at {longest}"
                self._broken("keys outlive their leases", detail)

    def _check_leaks(self, changes: Changes) -> None:
        heavy = {member.rpartition(":")[0] for member in self.extra}
        keyed = {text.split(":")[-1] for text in self.keys if text.startswith("u:")}
        keyed |= self.keys_of_holders().keys()
        for identity in changes.removed if self.holders else ():
            if identity in {*self.tokens, *heavy, *keyed, *self.slots}:
                self._broken("nothing leaks", f"a part of {identity} stayed behind")

    def _check_grants(self, record: Record, grants: Held, left: Sequence[str]) -> None:
        """Tokens grow, and no limit is exceeded: not even where the specification agrees."""
        call = record.call
        own = call.limit if isinstance(call, Acquire) else 0
        declared = {m.partition(":")[0]: int(m.split(":")[2]) for m in left if ":" in m}
        live = [holder for holder in self.held().values() if holder.expiry_ms > self.now]
        used = sum(h.permits for h in live) - sum(grant.permits for grant in grants.values())
        for identity, grant in sorted(grants.items(), key=lambda item: item[1].token):
            if grant.token <= self.highest:
                detail = f"{identity} was granted {grant.token} after {self.highest}"
                self._broken("fencing tokens grow", detail)
            self.highest = max(self.highest, grant.token)
            used += grant.permits
            its_own = declared.get(identity, own)
            most = int(self.texts.get("limit", str(its_own)).split()[0])
            if record.address.slotted:
                most = min(most, its_own)
                self._check_slots(identity, grant)
            self._check_key(record, identity, grant, left)
            if used > most:
                detail = f"{used} of {most} permits in use with {identity}"
                self._broken("never more than the limit", detail)

    def _check_slots(self, identity: str, grant: HolderRecord) -> None:
        """Nobody else has a slot of *grant*, and it has one for each permit."""
        if len(grant.slots) != grant.permits:
            self._broken("a permit has its slots", f"{identity} has {grant.slots}")
        for other, held in self.held().items():
            if other != identity and held.expiry_ms > self.now and {*held.slots} & {*grant.slots}:
                detail = f"{identity} was granted {grant.slots}, {other} has {held.slots}"
                self._broken("no slot is given twice", detail)

    def _check_key(
        self, record: Record, identity: str, grant: HolderRecord, left: Sequence[str]
    ) -> None:
        """No key has more than its limit in use."""
        if grant.key is None:
            return
        call = record.call
        limit = next((m.split(":")[-4] for m in left if m.startswith(f"{identity}:")), None)
        if limit is None and isinstance(call, Acquire):
            asked = call.options[int(identity.rpartition(".")[2])].key
            limit = "" if asked is None or asked.limit is None else str(asked.limit)
        most = self.key_limits.get(quote(grant.key, safe=""), limit)
        held = self.held().values()
        used = sum(h.permits for h in held if h.key == grant.key and h.expiry_ms > self.now)
        if most and used > int(most):
            detail = f"{used} of {most} permits of {grant.key!r} in use with {identity}"
            self._broken("no key has more than its limit", detail)
