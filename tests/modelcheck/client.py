"""A client as an automaton: what `_lane.py`, `_fair.py`, `_zset.py` and `_batches.py` decide.

Written by hand after those files and small enough to be read beside them; method names are theirs
where they do the same.

What is left out or made simpler:

- All that a client has to write, it writes at once: there is no window, no batch is full, and
  nobody is held back. Requests wait for ever or are cancelled; a deadline is a cancellation.
- Every command introduces its hub, and a SUBSCRIBE takes effect with the first command behind it.
- Time goes in ticks, for everybody at once, and the margin of trust is the difference between
  just before a tick and just after. A timer that a reply sets counts from when the server
  answered. Whether a refresh is due is a matter of choice; the ones that a grant demands are sent.
- A lost permit's block ends at once, and releases. Tokens, labels, errors that leave nothing
  changed (BUSY, OOM), adopt, detach, status, a set limit, grace periods, replicas and hubs that
  hear nothing are not there.
- A zset lane keeps a freed permit for itself once in a row, not sixteen times.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from redsem_async._protocol import GONE, Holding

from .scenario import Terms
from .wire import Command, Said, Told

RUNS, STOPPED, DEAD = "runs", "stopped", "dead"
NEW, SENT, WAITING, HELD, ENDED = "new", "sent", "waiting", "held", "ended"
MOST_KEPT = 1  # 16 in the lane


class Claim(NamedTuple):
    """A request. Trust is counted in ticks from now."""

    key: int  # which acquire of the client's program
    permits: int
    state: str = NEW
    number: int = 0
    trust: int = 0
    confirming: bool = False
    tried: bool = False


@dataclass(slots=True)
class Client:
    """One process with its hub, its lane and the tasks that use it."""

    terms: Terms
    program: tuple[int, ...]
    life: str = RUNS
    begun: int = 0  # acquires begun
    drawn: int = 0  # numbers drawn
    claims: tuple[Claim, ...] = ()
    new: tuple[int, ...] = ()  # keys, in the order in which they are written
    waiting: tuple[int, ...] = ()
    returned: tuple[tuple[int, int], ...] = ()  # number and permits
    leaving: tuple[tuple[int, int], ...] = ()
    renewals: tuple[int, ...] = ()
    beat_due: bool = False
    beating: bool = False
    hinted: int = 0
    streak: int = 0
    others_wait: bool = False
    moment: int | None = None  # ticks until something may change by itself
    beat_at: int | None = None
    # -- the link
    linked: bool = True
    heard: bool = False  # its subscription is in force
    lingers: bool = False  # the server believes that a link is there which is not
    fresh: int | None = None  # ticks since the newest answered command was sent
    going: tuple[Command, ...] = ()
    coming: tuple[Said | Told, ...] = ()
    late: tuple[Command, ...] = ()  # sent on links that are closed, and not run yet

    # -- what the tasks do

    def begin(self) -> None:
        """A task asks for a permit."""
        claim = Claim(self.begun, self.program[self.begun])
        self.begun += 1
        self.claims += (claim,)
        if self.terms.mode == "zset" and self.waiting:
            self._must_wait([claim])
            self._try(claim.permits)
        else:
            self.new += (claim.key,)

    def cancel(self, key: int) -> None:
        """A task leaves before it was told of a permit; a grant may have arrived all the same."""
        claim = self.claim(key)
        was_waiting = key in self.waiting
        self.waiting = tuple(k for k in self.waiting if k != key)
        self.new = tuple(k for k in self.new if k != key)
        if claim.state == HELD:
            self._give_back(claim)
        elif claim.state == SENT or (claim.number and claim.state in {NEW, WAITING}):
            self.leaving += ((claim.number, claim.permits),)
            self._change(claim, state=ENDED)
        else:
            self._forget(claim)
        if self.terms.mode == "zset" and was_waiting and not self.waiting:
            self.beat_due = True

    def release(self, key: int) -> None:
        """A task is done with its permit."""
        self._give_back(self.claim(key))

    def refresh(self, key: int) -> None:
        """A refresh is due."""
        number = self.claim(key).number
        if number not in self.renewals:
            self.renewals += (number,)

    # -- what time brings

    def tick(self) -> None:
        """A tick passes. Trust ends before the server's time has moved on."""
        most = self.terms.lease
        self.going = tuple(c._replace(age=min(c.age + 1, most)) for c in self.going)
        self.coming = tuple(_older(item, most) for item in self.coming)
        if self.life == DEAD:
            return
        self.fresh = None if self.fresh is None else min(self.fresh + 1, most)
        self.moment = None if self.moment is None else max(0, self.moment - 1)
        self.beat_at = None if self.beat_at is None else max(0, self.beat_at - 1)
        for claim in self.claims:
            if claim.state == HELD:
                self._change(claim, trust=max(0, claim.trust - 1))
        if self.life == RUNS:
            self._see_to_trust()

    def beat(self) -> None:
        """The timer of the lane fires."""
        self.moment = self.beat_at = None
        if self.waiting and not self.beating:
            self.beat_due = True

    def go_on(self) -> None:
        """A stopped process is continued."""
        self.life = RUNS
        self._see_to_trust()

    def _see_to_trust(self) -> None:
        for claim in self.claims:
            if claim.state == HELD and claim.trust == 0 and not claim.confirming:
                self._give_back(claim)  # lost: its block ends, and releases

    # -- what happens to the link

    def cut(self, *, noticed: bool) -> None:
        """The link breaks. What was sent on it may still be run."""
        on_way = [item.command for item in self.coming if isinstance(item, Said)]
        on_way += self.going
        self._close(noticed=noticed)
        for command in reversed(on_way):
            self._write_again(command)

    def _close(self, *, noticed: bool) -> None:
        self.late += tuple(command._replace(age=0) for command in self.going)
        self.going, self.coming = (), ()
        self.lingers = (self.lingers or self.heard) and not noticed
        self.linked = self.heard = False
        self.fresh = None

    def _write_again(self, command: Command) -> None:
        if command.kind == "acquire":
            self.hinted += command.hinted
            again = [c for c in self._numbered(command) if c.state == SENT]
            self._ask_again(again)
        elif command.kind == "release":
            units = tuple(zip(command.numbers, command.weights, strict=True))
            self.returned = units + self.returned
        elif command.kind == "abandon":
            self.leaving = tuple(zip(command.numbers, command.weights, strict=True)) + self.leaving
        elif command.kind == "refresh":
            held = tuple(c.number for c in self._numbered(command) if c.state == HELD)
            self.renewals += tuple(n for n in held if n not in self.renewals)
        else:
            self.beating = False
            self.hinted += command.hinted
            self.beat_due = True

    def link(self) -> None:
        """A new link is open."""
        self.linked = True
        if self.waiting:
            self.beat_due = True

    def die(self, *, noticed: bool) -> None:
        """The process is gone; with its host, when that is not noticed."""
        self._close(noticed=noticed)
        blank = Client(self.terms, self.program)
        for field in fields(self):
            if field.name not in {"late", "lingers"}:
                setattr(self, field.name, getattr(blank, field.name))
        self.life, self.linked, self.begun = DEAD, False, len(self.program)

    # -- what is written

    @property
    def active(self) -> bool:
        """Whether it has a reason to keep a link."""
        return bool(self.claims or self.new or self.returned or self.leaving or self.waiting)

    def flush(self) -> None:
        """Write whatever there is to write."""
        if self.life == RUNS and self.linked:
            while (command := self._take()) is not None:
                self.going += (command,)

    def _take(self) -> Command | None:
        if self.renewals:
            numbers, self.renewals = self.renewals, ()
            return Command("refresh", numbers)
        if self.returned:
            units, self.returned = self.returned, ()
            numbers, permits = zip(*units, strict=True)
            return Command("release", numbers, permits, keep=self._kept(sum(permits)))
        if self.leaving:
            units, self.leaving = self.leaving, ()
            numbers, permits = zip(*units, strict=True)
            return Command("abandon", numbers, permits)
        if self.beat_due:
            return self._take_beat()
        if self.new:
            return self._take_acquires()
        if self.hinted:
            return self._take_beat()  # nobody here wants them: pass the hint on
        return None

    def _take_beat(self) -> Command:
        self.beat_due, self.beating = False, True
        waiting = [self.claim(key) for key in self.waiting]
        if self.terms.mode == "zset":
            hinted, self.hinted = self.hinted, 0
            return Command("beat", waits=len(waiting), hinted=hinted)
        return Command("beat", tuple(c.number for c in waiting), tuple(c.permits for c in waiting))

    def _take_acquires(self) -> Command:
        keys, self.new = self.new, ()
        numbers: list[int] = []
        for key in keys:
            claim = self.claim(key)
            if claim.number == 0:
                self.drawn += 1
                claim = self._change(claim, number=self.drawn)
            self._change(claim, state=SENT)
            numbers.append(claim.number)
        weights = tuple(self.claim(key).permits for key in keys)
        if self.terms.mode == "zset":
            hinted, self.hinted = self.hinted, 0
            waits = len(self.waiting)
            return Command("acquire", tuple(numbers), weights, waits=waits, hinted=hinted)
        before = [item.command for item in self.coming if isinstance(item, Said)]
        unanswered = (c.numbers[-1] for c in (*before, *self.going) if c.kind == "acquire")
        after = max((n for n in unanswered if n < numbers[0]), default=0)
        return Command("acquire", tuple(numbers), weights, after=after)

    # -- what is received

    def receive(self) -> None:
        """Apply what comes next."""
        item, self.coming = self.coming[0], self.coming[1:]
        self._apply_item(item)
        self._see_to_trust()

    def _apply_item(self, item: Said | Told) -> None:
        if isinstance(item, Told):
            for number, left in item.grants:
                sent = left if self.fresh is None else self.fresh
                self._grant(number, left, left - sent)
            if item.permits:
                self._take_hint(item.permits)
            return
        self.fresh = item.command.age
        if item.again:
            self._write_again(item.command)
            return
        getattr(self, f"_{item.command.kind}_answered")(item)

    def lose_message(self) -> None:
        """What comes next is lost."""
        self.coming = self.coming[1:]

    def _acquire_answered(self, said: Said) -> None:
        lease, age = self.terms.lease, said.command.age
        again: list[Claim] = []
        wait: list[Claim] = []
        for number, answer in zip(said.command.numbers, said.answers, strict=True):
            claim = self._by_number(number)
            if isinstance(answer, Holding):
                self._grant(number, answer.left_ms, answer.left_ms - age)
            elif claim is None or claim.state != SENT:
                pass  # its caller left, and an abandon is on its way
            elif answer > 0:
                self._hold(claim, lease - age)
            elif answer == GONE:
                again.append(self._change(claim, number=0))
            else:
                wait.append(claim)
        self._ask_again(again)
        self._must_wait(wait)
        self._apply(said, heard_from=True)
        self._announced(said.command.waits + len(wait))

    def _release_answered(self, said: Said) -> None:
        self._apply(said)

    def _abandon_answered(self, said: Said) -> None:
        for claim in self._numbered(said.command):
            self._forget(claim)
        self._apply(said)

    def _refresh_answered(self, said: Said) -> None:
        for number, held in zip(said.command.numbers, said.answers, strict=True):
            claim = self._by_number(number)
            if claim is None or claim.state != HELD:
                continue
            if held:
                trust = max(claim.trust, self.terms.lease - said.command.age)
                claim = self._change(claim, trust=trust)
            if held and claim.trust > 0:
                self._change(claim, confirming=False)
            elif claim.confirming:
                self._send_back(claim.number, claim.permits)
                self._ask_anew(claim)
            else:
                self._give_back(claim)  # lost: its block ends, and releases

    def _beat_answered(self, said: Said) -> None:
        self.beating = False
        gone: list[Claim] = []
        for number, answer in zip(said.command.numbers, said.answers, strict=False):
            claim = self._by_number(number)
            if isinstance(answer, Holding):
                self._grant(number, answer.left_ms, answer.left_ms - said.command.age)
            elif answer == GONE and claim is not None and claim.state == WAITING:
                gone.append(claim)
        self._apply(said, heard_from=True)
        self._announced(said.command.waits)
        for claim in reversed(gone):
            self._ask_anew(claim)

    def _apply(self, said: Said, *, heard_from: bool = False) -> None:
        for number in said.granted:
            self._grant(number, None, self.terms.lease - said.command.age)
        if self.terms.mode == "zset":
            self.others_wait = said.line > bool(self.waiting)
            if said.hinted:
                self._take_hint(said.hinted)
            elif said.room > 0:
                self._fit(said.room)
        if not self.waiting:
            self.moment = self.beat_at = None
            return
        if heard_from or self.beat_at is None:
            self.beat_at = self.terms.interval
        self.moment = said.next_in

    def _grant(self, number: int, left: int | None, trust: int) -> None:
        claim = self._by_number(number)
        if claim is None:
            self._send_back(number, 1)  # nobody waits with it
            return
        if claim.state not in {SENT, WAITING}:
            return
        self.waiting = tuple(key for key in self.waiting if key != claim.key)
        claim = self._hold(claim, trust)
        if left is not None:
            self.refresh(claim.key)
            self._change(claim, confirming=2 * claim.trust < left)

    def _hold(self, claim: Claim, trust: int) -> Claim:
        return self._change(claim, state=HELD, trust=max(0, trust))

    # -- zset: those who wait try again

    def _must_wait(self, claims: Iterable[Claim]) -> None:
        first: list[int] = []
        for claim in claims:
            number = claim.number if self.terms.mode == "fair" else 0
            self._change(claim, state=WAITING, number=number)
            if claim.tried:
                first.append(claim.key)
            else:
                self.waiting += (claim.key,)
        self.waiting = (*first, *self.waiting)

    def _announced(self, count: int) -> None:
        if self.terms.mode == "zset" and count == 0 and self.waiting:
            self.beat_due = True

    def _take_hint(self, permits: int) -> None:
        self.hinted += permits
        self._try(permits)

    def _try(self, permits: int) -> int:
        return self._let_ask(permits, [self.claim(key) for key in self.waiting])

    def _fit(self, room: int) -> None:
        waiting = [self.claim(key) for key in self.waiting]
        self._let_ask(room, [claim for claim in waiting if claim.permits <= room])

    def _let_ask(self, permits: int, candidates: list[Claim]) -> int:
        chosen: list[Claim] = []
        for claim in candidates:
            if permits <= 0 or (chosen and claim.permits > permits):
                break
            permits -= claim.permits
            chosen.append(self._change(claim, tried=True))
        keys = {claim.key for claim in chosen}
        self.waiting = tuple(key for key in self.waiting if key not in keys)
        self._ask_again(chosen)
        return max(0, permits)

    def _kept(self, freed: int) -> int:
        if self.terms.mode == "fair" or not self.waiting:
            return 0
        self.streak = self.streak + 1 if self.others_wait else 0
        if self.streak > MOST_KEPT:
            self.streak = 0
            return 0
        kept = freed - self._try(freed)
        self.hinted += kept
        return kept

    # -- claims

    def _ask_again(self, claims: list[Claim]) -> None:
        for claim in claims:
            self._change(claim, state=NEW)
        self.new = (*(claim.key for claim in claims), *self.new)

    def _ask_anew(self, claim: Claim) -> None:
        self.waiting = tuple(key for key in self.waiting if key != claim.key)
        self._ask_again([self._change(claim, number=0, trust=0, confirming=False)])

    def _give_back(self, claim: Claim) -> None:
        self._forget(claim)
        self.renewals = tuple(n for n in self.renewals if n != claim.number)
        self._send_back(claim.number, claim.permits)

    def _send_back(self, number: int, permits: int) -> None:
        self.returned += ((number, permits),)

    def _forget(self, claim: Claim) -> None:
        self.claims = tuple(other for other in self.claims if other.key != claim.key)

    def _change(self, claim: Claim, **what: Any) -> Claim:
        changed = self.claim(claim.key)._replace(**what)
        self.claims = tuple(changed if c.key == claim.key else c for c in self.claims)
        return changed

    def claim(self, key: int) -> Claim:
        return next(claim for claim in self.claims if claim.key == key)

    def _by_number(self, number: int) -> Claim | None:
        return next((claim for claim in self.claims if claim.number == number), None)

    def _numbered(self, command: Command) -> list[Claim]:
        found = (self._by_number(number) for number in command.numbers)
        return [claim for claim in found if claim is not None]

    def copy(self) -> "Client":
        return replace(self)

    def frozen(self) -> tuple[object, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


def _older(item: Said | Told, most: int) -> Said | Told:
    if isinstance(item, Told):
        return item
    # The server counts from its answer on, however late that is read.
    next_in = None if item.next_in is None else max(0, item.next_in - 1)
    age = min(item.command.age + 1, most)
    return item._replace(command=item.command._replace(age=age), next_in=next_in)
