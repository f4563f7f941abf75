"""Two hubs and the real scripts in memory, where the caller decides which verb is next.

Nothing here draws anything: `test_stateful` does, and named tests call them in their own order.
A verb does one thing. What follows from it happens when `arrive` or `calm` says so.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache, partial
from types import TracebackType
from typing import Any, NamedTuple, Self
from unittest.mock import patch

import redsem_async._protocol.operations as op
from redsem_async import AcquireTimeout, Rate, SemaphoreError
from redsem_async._core.config import Terms
from redsem_async._core.keys import Address, Mode, permit_id
from redsem_async._core.rates import in_queue, settled
from redsem_async._hub import commands, pipeline
from redsem_async._hub import state as hub_state
from redsem_async._hub.calls import BackOffCall, DeleteCall, SetLimitCall
from redsem_async._hub.commands import AcquireBatch
from redsem_async._hub.hub import hub_for
from redsem_async._hub.model import Confirmed, Lease, LeaseState, Request, RequestState
from redsem_async._hub.remote_semaphore import RemoteSemaphore
from redsem_async._protocol.errors import ErrorKind
from redsem_async._protocol.operations import AnyOperation, KeyTerms
from redsem_async._protocol.pushes import Deleted, Granted, Push, Recheck, Revoked
from redsem_async._protocol.replies import Holding, Reply
from redsem_async._redis import codec
from redsem_async._redis.scripts import Script, script
from tests.worlds.judge import Judge
from tests.worlds.look import Permit, Ran
from tests.worlds.loop import running
from tests.worlds.process import Link, Process
from tests.worlds.stand_ins import Even, in_place
from tests.worlds.world import PREFIX, Event, Made, Violation, World

NAMES = "a", "b"
LIMIT = 2
LEASES: Sequence[dict[str, float]] = (
    {"lease": 10},
    {"lease": 10, "max_hold": 12},
    {"lease": 10, "max_hold": 25},
    {"lease": 30},
    {"lease": 2},
)
RATES = {"requests": Rate(20, burst=3), "tokens": Rate(300, burst=30)}
TOKENS = 11.0  # for each request that a cost counts
DETACHED = 500.0  # seconds: longer than anything else lasts
LAST = 100.0  # seconds in which everything ends, once nothing goes wrong any more
FLOW = 400  # events in which what one verb began has an end, and more for each request
OF_HUBS: Sequence[tuple[Any, dict[str, int]]] = (
    (commands, {"MAX_ASKED": 5, "FIRST_ASKED": 2, "MAX_REFRESHES": 3, "MAX_HEAVY_REFRESHES": 2}),
    (hub_state, {"MAX_BATCH": 3, "MAX_KEYED": 2}),
    (pipeline, {"MAX_BATCH": 3}),
)
SMALL = {"MAX_LOOKED": 2, "MAX_SCANNED": 3, "MAX_SERVED": 2}  # bounds of scripts


class Ask(NamedTuple):
    """A request whose caller waits."""

    process: Process
    remote: RemoteSemaphore
    request: Request


class Hold(NamedTuple):
    """A permit that a caller has."""

    process: Process
    remote: RemoteSemaphore
    lease: Lease


class Verbs(World):
    """Two hubs that use two semaphores.

    With *small*, commands and scripts do so little at a time that a few requests are many.
    """

    dials = False

    def __init__(self, mode: Mode = "fair", *, small: bool = False, no_push: bool = False) -> None:
        super().__init__(1000.0)
        self.mode: Mode = mode
        self.small, self.no_push = small, no_push
        self.judges = Made(lambda _: Judge())
        self.asks: list[Ask] = []
        self.holds: list[Hold] = []
        self.sent: list[str] = []  # ids of permits that were detached
        self.released_by_script = set[str]()
        self.commands = 0  # that have run
        self.refusing: deque[ErrorKind] = deque()
        self._by_id: dict[str, Request] = {}
        self._answers: list[tuple[Hold, bool, Confirmed]] = []
        self._changes = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        enter = self._stack.enter_context
        enter(in_place(lambda: self.now, Even, self))
        if self.small:
            for module, bounds in OF_HUBS:
                for bound, most in bounds.items():
                    enter(patch.object(module, bound, most))
            enter(patch.object(codec, "script", _bounded))
        for no_push in (self.no_push, False):
            Process(self).no_push = no_push
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        self.end()
        self._stack.close()

    # -- verbs of the hubs

    def ask(
        self,
        who: int = 0,
        name: str = "a",
        count: int = 1,
        timeout: float | None = None,
        permits: int = 1,
        key: str | None = None,
        ahead: float = 0.0,
        lease: int = 0,
        cost: float = 1.0,
    ) -> list[Request]:
        """Ask for permits, *count* times. Each costs so many requests, and tokens for each."""
        process, remote, terms = self._at(who, name, lease)
        costs = in_queue(terms.rates, _amounts(cost)) if remote.address.rated else ""
        fair = remote.address.fair
        of = KeyTerms(key, 1, 1.0, 2000) if key and remote.address.keyed else None
        with running(process.loop):
            asked = [
                remote.acquire(terms, timeout, 1 if of else permits, ahead * fair, of, costs)
                for _ in range(count)
            ]
        self.asks += [Ask(process, remote, request) for request in asked]
        self._settle(process)
        return asked

    def adopt(self, which: int, who: int = 1) -> None:
        if self.sent:
            owner = self.sent[which % len(self.sent)]
            process, remote, terms = self._at(who, self._name_of(owner))
            with running(process.loop):
                self.asks.append(Ask(process, remote, remote.adopt(terms, owner)))
            self._settle(process)

    def cancel(self, which: int) -> None:
        if self.asks:
            process, remote, request = self.asks.pop(which % len(self.asks))
            with running(process.loop):
                remote.abandon(request)
            self._settle(process)

    def release(
        self,
        which: int = 0,
        count: int = 1,
        *,
        awaited: bool = True,
        cost: float | None = None,
    ) -> None:
        """Release some permits. With a *cost*, that is what each really cost."""
        for _ in range(count):
            if not self.holds:
                return
            hold = self.holds.pop(which % len(self.holds))
            process, remote, lease = hold
            if lease.state is LeaseState.ENDED:
                continue  # by the end of a detach
            if lease.costs and cost is not None:
                lease.settled = settled(lease.terms.rates, _amounts(cost), lease.costs)
            with running(process.loop):
                trusted = lease.trusted_at(self.now)
                future: Confirmed | None = process.loop.create_future() if awaited else None
                remote.release(lease, self.now, 0.1, future)
                if future is not None:
                    self._answers.append((hold, trusted, future))
            self._settle(process)

    def refresh(self, which: int = 0, count: int = 1) -> None:
        """Refresh some of the permits, from that one on."""
        for k in range(min(count, len(self.holds))):
            process, remote, lease = self.holds[(which + k) % len(self.holds)]
            with running(process.loop):
                if not remote.lose_unless_trusted(lease):
                    _ = remote.refresh_now(lease)
        for process in self.processes:
            self._settle(process)

    def detach(self, which: int = 0, expires: float = DETACHED) -> None:
        if self.holds:
            hold = self.holds[which % len(self.holds)]
            if hold.lease.state is LeaseState.HELD:
                self._start(hold.process, self._detach(hold, expires))

    async def _detach(self, hold: Hold, expires: float) -> None:
        await hold.remote.detach(hold.lease, expires)
        self.sent.append(hold.lease.id)
        if hold in self.holds:
            self.holds.remove(hold)

    def revoke(self, who: int, which: int) -> None:
        """Another process, or the same, releases a permit by its id."""
        ids = [*self.sent, *(hold.lease.id for hold in self.holds)]
        if ids:
            identity = ids[which % len(ids)]
            owner, _, number = identity.partition(".")
            process, remote, _ = self._at(who, self._name_of(identity))
            self._start(process, remote.revoke(owner, int(number)))

    def set_limit(self, who: int, name: str, limit: int | None) -> None:
        process, remote, _ = self._at(who, name)
        self._start(process, remote.call(SetLimitCall(limit, by="x")))

    def back_off(self, who: int, name: str, seconds: float) -> None:
        process, remote, _ = self._at(who, name)
        call = BackOffCall(round(1000 * seconds), by="x", ends=self.now + seconds)
        self._start(process, remote.call(call))

    def delete(self, who: int, name: str) -> None:
        process, remote, _ = self._at(who, name)
        self._start(process, remote.call(DeleteCall()))

    # -- what comes from outside

    def arrive(self, which: int = 0, count: int = 1) -> None:
        """Some of what is on its way arrives."""
        for _ in range(count):
            if due := [*self._due()]:
                self.do(due[which % len(due)])
        self._check()

    def calm(self, who: int | None = None) -> None:
        """All that is on its way, of one process or all, arrives, and what follows from it."""
        for _ in range(FLOW + 20 * len(self.asks)):
            due = (each for each in self._due() if who is None or each.who == who)
            if (event := next(due, None)) is None:
                break
            self.do(event)
        else:
            raise Violation("commands beget commands without end")
        self._check()

    def pass_time(self, seconds: float, *, calm: bool = True) -> None:
        """Time passes. With *calm*, what is on its way arrives meanwhile."""
        until = self.now + seconds
        while True:
            if calm:
                self.calm()
            moment = min(until, *(process.next_moment() for process in self.processes))
            self.wait_until(moment)
            for process in self.processes:
                process.settle()
            self._lose()
            if moment >= until:
                break
        self._check()

    def refuse(self, kinds: Sequence[ErrorKind]) -> None:
        """The next commands are refused so."""
        self.refusing.extend(kinds)

    def cut(self, who: int = 0, *, lost: int = 0, unnoticed: bool = False) -> None:
        """The link breaks. So many of the last commands on it never arrive, and others late."""
        if (link := self.processes[who].link) is not None:
            for _ in range(min(lost, len(link.going))):
                link.going.pop()
            self.do(link.event("cut")._replace(which=int(unnoticed)))
        self._check()

    def deafen(self, who: int = 0, *, dumb: bool = False) -> None:
        """Nothing comes over the link any more, and no error says so. *dumb*: nor goes there."""
        if (link := self.processes[who].link) is not None:
            link.strike(Event("deafen", who, int(dumb)))

    def refuse_connections(self, who: int = 0) -> None:
        self.do(Event("refuse", who))
        self._check()

    def lose_messages(self, who: int = 0) -> None:
        """What is on its way to a process, and is no reply, is lost."""
        for link in self.processes[who].links:
            link.coming = deque(each for each in link.coming if not isinstance(each.content, Push))
            link.unsure = True

    def forge(self, who: int, kind: str, which: int, name: str = "a") -> None:
        """A stray message arrives, of a number that was never drawn, or of an old one."""
        process, remote, _ = self._at(who, name)
        if (link := process.link) is None:
            return
        last = remote.identity.last_number
        old = [n for n in range(1, last + 1) if n not in remote.requests]
        number = old[which % len(old)] if which >= 0 and old else last + 1000
        messages: dict[str, Push] = {
            "granted": Granted(name, [(number, Holding(1, 10_000, (0,)))]),
            "revoked": Revoked(name, [number]),
            "deleted": Deleted(name),
            "recheck": Recheck(name),
        }
        link.say(messages[kind], self._arrival(link, PREFIX, messages[kind]))
        self.calm()

    def lose_keys(self, which: int) -> None:
        """One key is evicted, or with -1 all of them."""
        before, of = self.looks, None
        if which < 0:
            self.server.flush()
        else:
            of = self.server.evict(which)
        for name in [name for name in before if of in (None, name)]:
            self.judges[name].forgot(before[name], self.looks[name])
            self.judges[name].last_token = 0

    # -- the end

    def heal(self) -> None:
        """From now on nothing goes wrong: everybody is served, in turn, and nothing is left."""
        self.refusing.clear()
        for process in self.processes:
            if (link := process.link) is not None and link.deaf:
                self.cut(process.index)
        self.pass_time(6)  # in which they connect again
        for name in NAMES:
            self.set_limit(0, name, None)
            self.back_off(0, name, 0)
        for k in range(len(self.sent)):
            self.revoke(0, k)
        asked, commands_before, deadline = len(self.asks), self.commands, self.now + LAST
        while self.now < deadline and (self.asks or self.holds or self._busy()):
            self.calm()
            served = len(self.holds)
            self.release(count=served)
            if not served:
                self.pass_time(0.5)
        self.pass_time(LAST)  # so that what is left ends, or does not
        calls = self.commands - commands_before
        self.unless(calls < 500 + 8 * asked, f"{calls} calls to serve {asked} requests")
        for ask in self.asks:
            self.violated(f"{ask.request.number} is never answered, {ask.request.state.name}")
        self._check_left()

    def _check_left(self) -> None:
        for name, look in self.looks.items():
            left = [*look.live, *(waiter.id for waiter in look.line)]
            self.unless(not left, f"{left} of {name} are never given back")
        for process in self.processes:
            for r in process.remotes:
                queues = (r.new, r.requests, r.waiting, r.releases, r.refreshes, r.undo, r.calls)
                kept: list[object] = [each for each in queues if each]
                kept += r.holding()
                self.unless(not kept, f"{process.name} keeps {kept} of {r.name}")
        self._check()

    def _busy(self) -> bool:
        return any(remote.active for process in self.processes for remote in process.remotes)

    # -- what is judged

    def ran(self, link: Link, ran: Ran) -> None:
        name, call = ran.call.semaphore.address.name, ran.call
        self.commands += 1
        for broken in self.judges[name].ran(ran):
            self.violated(f"{name}: {broken}")
        if isinstance(call, AcquireBatch) and ran.done:
            self._check_arrival(link.process, call, ran)
        if isinstance(call, op.Release) and isinstance(ran.answer, Reply):
            pairs = zip(call.numbers, ran.answer.answers, strict=True)
            self.released_by_script |= {permit_id(call.owner, n) for n, held in pairs if held}

    def _check_arrival(self, process: Process, call: AcquireBatch, ran: Ran) -> None:
        """No request arrives before an older one of its process, unless that asked again."""
        known = {*ran.after.holders, *(waiter.id for waiter in ran.after.line)}
        new = [r for r in call.items if r.number in call.numbers and not (r.again or r.was_sent)]
        if not new or not all(permit_id(ran.hub, r.number) in known for r in new if r.waits):
            return
        for _, remote, older in self.asks:
            ahead = any(_is_before(older, request) for request in new)
            unsent = older.state <= RequestState.SENT and older not in call.items
            if ahead and remote is call.state and unsent and not (older.again or older.call):
                identity = permit_id(ran.hub, older.number)
                self.unless(
                    (older.number > 0 and identity in known) or older.was_sent or not older.waits,
                    f"{new[-1].number} came before {older.number}, {older.state.name}",
                )

    def hears(self, process: Process) -> bool:
        return not self.refusing and super().hears(process)

    def refusal(self, command: AnyOperation, sent: float) -> ErrorKind | None:
        while self.refusing:
            kind = self.refusing.popleft()
            if kind is not ErrorKind.NO_MEMORY or isinstance(command, op.Acquire):
                return kind
        return None

    def on_way(self, event: Event) -> None:
        if event.what == "notice":
            link = self.processes[event.who].links[event.which]
            link.open_there = link.unnoticed

    def _due(self) -> Iterator[Event]:
        for process in self.processes:
            for link in process.links:
                if link.going:
                    yield link.event("run")
                if link.open and link.coming:
                    yield link.event("receive")
            for k, dialled in enumerate(process.dials):
                if not dialled.done():
                    yield Event("connect", process.index, k)

    def _lose(self) -> None:
        for process, remote, lease in self.holds:
            with running(process.loop):
                remote.lose_unless_trusted(lease)

    def _check(self) -> None:
        """Callers get what they wait for. Raise Violation where something is wrong."""
        for ask in [ask for ask in self.asks if ask.request.done()]:
            self.asks.remove(ask)
            self._end(ask)
        for process in self.processes:
            self.check_state(process)
        self._check_answers()
        for name, look in self.looks.items():
            trusted = [
                (lease.id, Permit.trusted(lease, self.server_us_at(lease.trusted_until)))
                for _, remote, lease in self.holds
                if remote.name == name and lease.trusted_at(self.now)
            ]
            for broken in self.judges[name].trust(trusted, look.holders):
                self.violated(f"{name}: {broken}")
        for wrong in self.violations:
            raise Violation(wrong)

    def _end(self, ask: Ask) -> None:
        process, remote, request = ask
        try:
            with running(process.loop):
                lease, *_ = remote.taken(request)
            self.holds.append(Hold(process, remote, lease))
        except AcquireTimeout:
            heard = [link.fresh_at for link in process.links if link.fresh_at is not None]
            since = (
                min(request.deadline, self.now) - hub_state.MAX_LEAD - 0.001
                if request.waits
                else -1
            )
            self.unless(max(heard, default=-2) >= since, "it timed out, and nothing was heard")
        except SemaphoreError:
            pass

    def _check_answers(self) -> None:
        for hold, trusted, future in [each for each in self._answers if each[2].done()]:
            self._answers.remove((hold, trusted, future))
            said = future.result() is True
            identity = hold.lease.id
            right = not said or trusted or identity in self.released_by_script
            self.unless(right, f"{identity} was held until its release, which nobody knows")

    # -- parts

    def _at(self, who: int, name: str, lease: int = 0) -> tuple[Process, RemoteSemaphore, Terms]:
        process = self.processes[who]
        terms = self._terms(lease)
        with running(process.loop):
            remote = hub_for(process.backend).semaphore(self.address(name), None)
            remote.introduction.terms = terms
        return process, remote, terms

    @cache  # noqa: B019 - a world does not live long
    def _terms(self, lease: int) -> Terms:
        options: dict[str, Any] = {**LEASES[lease]}
        keyed = "+keys" in self.mode or "+share" in self.mode
        options |= {"key_limit": 1} if keyed else {}
        options |= {"share": True} if "+share" in self.mode else {}
        options |= {"rate": RATES} if "+rate" in self.mode else {}
        if "+slots" in self.mode:
            return Terms(None, slots=range(LIMIT), **options)
        return Terms(LIMIT, **options)

    def address(self, name: str) -> Address:
        return Address(self.mode, PREFIX, name, "server", tuple(RATES) * ("+rate" in self.mode))

    def _name_of(self, identity: str) -> str:
        """The semaphore of a permit."""
        return next((n for n, look in self.looks.items() if identity in look.holders), "a")

    def _start(self, process: Process, coroutine: Any) -> None:
        task = process.start(coroutine)
        task.add_done_callback(partial(self._ended, process))
        self._settle(process)

    def _ended(self, process: Process, task: Any) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, SemaphoreError):
            self.violated(f"a call of {process.name} raised {error!r}", error)

    def _settle(self, process: Process) -> None:
        process.settle()
        self._check()


def _amounts(cost: float) -> list[float]:
    """What it is of each rate."""
    return [cost, TOKENS * cost]


def _is_before(one: Request, other: Request) -> bool:
    """Whether it was asked for first, and has the earlier place."""
    return one.order < other.order and one.started - one.ahead <= other.started - other.ahead


@cache
def _bounded(mode: Mode, operation: str, sharded: bool = False) -> Script:
    """The script with small bounds."""
    text = script(mode, operation, sharded).text
    for name, bound in SMALL.items():
        old = rf"^( *(?:local )?{name} = )[\d, ]*\d"
        text = re.sub(old, rf"\g<1>{bound}", text, flags=re.MULTILINE)
    return Script(text, "")
