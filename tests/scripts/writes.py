"""The keys of a semaphore, rebuilt from the writes in the journal, and the rules for keys."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from redsem_async._core.keys import permit_id
from redsem_async._protocol.pushes import Granted, push_of
from tests.scripts.recording import Record, Write
from tests.scripts.violations import Findings
from tests.worlds.look import Look, Permit, holders_in, look_of

EXPIRY_SLACK = 5  # ms by which an expiry may differ: before 8.0 TIME goes on while a script runs
PUBLISH = ("PUBLISH", "SPUBLISH")
STAYING = ("limit", "key-limits")  # keys without an expiry
OF_HOLDERS = ("holders", "facts", "uses")  # keys that live for as long as a permit is held

Held = Mapping[str, Permit]


class Changes(NamedTuple):
    """What one record changed.

    Attributes:
        gone: kinds of keys that had expired before it.
    """

    gone: Sequence[str]
    before: Look
    after: Look
    added: Held
    renewed: Held
    removed: Held


class Keys(defaultdict[str, dict[str, Any]]):
    """The keys of one semaphore by kind, as the journal's writes made them.

    Scores and fields by member. A text, as the set limit is one, is the field "" of its kind.
    """

    def __init__(self, base: str, findings: Findings) -> None:
        super().__init__(dict)
        self.now = 0  # of the semaphore's clock, in ms, when the last record was written
        self._last: Look | None = None
        self._deadlines: dict[str, int] = {}  # of a key: when it expires, in ms
        self._base = base
        self._findings = findings

    # -- following the journal

    def follow(self, record: Record) -> Changes:
        """Apply a record, and see that the rules for keys hold after it."""
        lead = int(self["meta"].get("lead", 0))
        for write in record.writes:
            if write.command == "HSET" and write.arguments[0] == "lead":
                lead = int(write.arguments[1])
        now_us = record.now_us + lead  # where the server's clock was set back
        self.now = now_us // 1000
        gone = self._expired(record)
        if gone or self._last is None:
            before = look_of(self, record.address, now_us)
        else:  # nothing has changed since
            before = replace(self._last, now_us=now_us)
        touched = {kind for write in record.writes for kind in self._apply(write, record)}
        after = self._last = look_of(self, record.address, now_us)
        old, new = before.holders, after.holders
        changes = Changes(
            *(gone, before, after),
            {i: holder for i, holder in new.items() if i not in old},
            {i: h for i, h in new.items() if i in old and h.expiry_ms != old[i].expiry_ms},
            {i: holder for i, holder in old.items() if i not in new},
        )
        self._check_expiries(record, touched, changes)
        self._check_leaks(changes)
        self._check_told(record, changes)
        return changes

    def _expired(self, record: Record) -> list[str]:
        """Keys that expired since the last record: in their time, with nothing live in them."""
        gone: list[str] = []
        now = record.server_us // 1000
        address = record.address
        keys = address.held_keys if record.operation == "refresh" else address.keys
        for kind, there in zip(map(self._kind, keys), record.present, strict=True):
            known = self[kind]
            if there == "1" and not known:
                self._broken("the journal is complete", f"{kind} came from nowhere")
            if there == "1" or not known:
                continue
            gone.append(kind)
            deadline = self._deadlines.get(kind)
            if deadline is None or deadline > now + EXPIRY_SLACK:
                detail = f"{kind} was gone at {now}, its expiry was {deadline}"
                self._broken("keys end with their expiry", detail)
            if kind in OF_HOLDERS:
                # A command that says what time it is may have been on its way for long.
                latest = max(now, self.now) if record.arguments[1] else self.now
                live = {i for i, holder in holders_in(self).items() if holder.expiry_ms > latest}
                if live:
                    self._broken("keys outlive their leases", f"{kind} was gone before {live}")
            self._delete(kind)
        return gone

    def _apply(self, write: Write, record: Record) -> list[str]:
        """Apply a write. Returns the kinds of keys that it is for."""
        arguments = write.arguments
        kind = self._kind(write.key)
        match write.command:
            case command if command in PUBLISH:
                return []
            case "DEL" | "UNLINK":
                kinds = [kind, *map(self._kind, arguments)]
                for each in kinds:
                    self._delete(each)
                return kinds
            case "ZADD":
                for score, member in zip(arguments[::2], arguments[1::2], strict=True):
                    self[kind][member] = float(score)
            case "ZREM" | "HDEL":
                for member in arguments:
                    self[kind].pop(member, None)
            case "HSET":
                self[kind].update(zip(arguments[::2], arguments[1::2], strict=True))
            case "SET":
                self[kind][""] = arguments[0]
            case "PEXPIRE":
                self._pexpire(kind, record.server_us // 1000 + int(arguments[0]))
            case _:
                raise AssertionError(f"a script wrote what is not known here: {write}")
        if not self[kind]:
            self._deadlines.pop(kind, None)
        return [kind]

    def _kind(self, key: str) -> str:
        return key.removeprefix(self._base)

    def _delete(self, kind: str) -> None:
        self[kind].clear()
        self._deadlines.pop(kind, None)

    def _pexpire(self, kind: str, deadline: int) -> None:
        if not self[kind]:
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
            if kind not in (*STAYING, *self._deadlines) and self[kind]:
                self._broken("every key expires but a set limit", f"{kind} after {record.call}")
        if record.arguments[1]:
            return  # by a local clock, which is not that of the keys' expiries
        leases = [*changes.added.values(), *changes.renewed.values()]
        longest = max((holder.expiry_ms for holder in leases), default=0)
        for kind in (*OF_HOLDERS[: 2 + record.address.keyed], "meta"):
            if self._deadlines.get(kind, 0) < longest - EXPIRY_SLACK:
                detail = f"{kind} ends at {self._deadlines.get(kind)}, a lease at {longest}"
                self._broken("keys outlive their leases", detail)

    def _check_leaks(self, changes: Changes) -> None:
        for identity in changes.removed if self["holders"] else ():
            if identity in self["facts"]:
                self._broken("nothing leaks", f"the facts of {identity} stayed behind")

    def _check_told(self, record: Record, changes: Changes) -> None:
        """Whoever is granted a permit by another's call is told, as far as that is known."""
        told: set[str] = set()
        for write in record.writes:
            hub = write.key.rpartition(":@")[2]
            if write.command in PUBLISH and (
                write.receivers or self["meta"].get(f"{hub}:no_push") == "2"
            ):
                push = push_of(write.arguments[0].encode())
                if isinstance(push, Granted):
                    told |= {permit_id(hub, number) for number, _ in push.grants}
        for identity in changes.added.keys() - told:
            hub = identity.partition(".")[0]
            if hub != record.hub and hub not in changes.after.silent:
                self._broken("who is granted is told", f"{identity} by {record.call}")
