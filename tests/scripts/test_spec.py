"""The specification and the scripts, driven with the same steps, give the same answers.

The steps decide how time passes, and set the clock back as they like.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import redsem_async._protocol.operations as op
from redsem_async._core.config import Clock
from redsem_async._core.keys import MODES, Mode
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.hub_info import HubInfo
from redsem_async._protocol.pushes import Recheck
from redsem_async._protocol.replies import AnyReply, Reply, StatusReply
from redsem_async.testing._spec.keyed import KeyedSpecification
from redsem_async.testing._spec.queue import QueueSpecification
from redsem_async.testing._spec.records import requests_of
from tests.scripts.comparison import HUBS, Comparison

LEASES_MS = (1000, 4000, 10_000)
LONGEST_MS = 60_000
RUNS = int(os.environ.get("REDSEM_STATEFUL_RUNS", "30"))
hubs = st.sampled_from(HUBS)
leases = st.sampled_from(LEASES_MS)
bounds = st.sampled_from((None, 4000, 15_000))  # of max_hold, in ms
SILENT = (HubInfo("x", no_push=True), HubInfo("x", uncounted=True))
unusual = precondition(lambda self: not self.plain)
key_terms = st.none() | st.builds(
    op.KeyTerms,
    key=st.sampled_from(("a", "a0", "b", "ü: %41;")),
    limit=st.sampled_from((None, 1, 1, 2)),
    weight=st.sampled_from((1.0, 1.0, 2.5)),
    patience_ms=st.sampled_from((0, 2000)),
)


SLOTS = tuple("abcdefghij")
lists_of_slots = st.sampled_from((SLOTS, SLOTS, SLOTS, SLOTS[::-1]))


Agree = Callable[..., Any]


class Agreement(Comparison):
    """Every rule is one call, carried out by both."""

    def __init__(self) -> None:
        super().__init__()
        self.key_ceilings: dict[str, int] = {}
        self.numbers = dict.fromkeys(HUBS, 0)
        self.tokens_before = 0
        self.calls = dict.fromkeys(HUBS, 0)
        self.requests: dict[str, list[op.Request]] = {hub: [] for hub in HUBS}
        self.sent: list[tuple[str, op.Operation]] = []

    def send(self, hub: str, call: op.Operation) -> None:
        """A call that may arrive once more, see `repeat`."""
        self.sent.append((hub, call))
        self.call(hub, call)

    def call(self, hub: str, call: op.Operation) -> AnyReply | CommandError:
        if hub not in self.model.state.hubs and hub in self.model.waiting_hubs():
            # It was silent for so long that its numbers were forgotten: nothing that it sent
            # before is under way any more.
            self.sent = [(by, sent) for by, sent in self.sent if by != hub or sent is call]
        return super().call(hub, call)

    # -- steps

    @initialize(limit=st.sampled_from((1, 2, 3)), plain=st.booleans())
    def choose(self, limit: int, plain: bool) -> None:
        self.plain = plain  # room for most, and nothing but what most do: the quick paths' case
        self.limit = self.ceiling = 2 * limit if plain else limit

    @unusual
    @rule(
        hub=hubs,
        weights=st.lists(st.sampled_from((1, 1, 1, 2, 3)), min_size=1, max_size=4),
        waits=st.lists(st.sampled_from((True, True, False)), min_size=4, max_size=4),
        ahead=st.lists(st.sampled_from((0, 0, 0, 1, 2000)), min_size=4, max_size=4),
        keys=st.lists(key_terms, min_size=4, max_size=4),
        lease_ms=leases,
        more=st.sampled_from((0, 0, 0, 1)),
        max_waiters=st.sampled_from((None, None, 2)),
        hub_info=st.sampled_from((None, None, None, HubInfo("x"), *SILENT)),
        slots=lists_of_slots,
    )
    def acquire(
        self,
        hub: str,
        weights: list[int],
        waits: list[bool],
        ahead: list[int],
        keys: list[op.KeyTerms | None],
        lease_ms: int,
        more: int,
        max_waiters: int | None,
        hub_info: HubInfo | None,
        slots: Sequence[str],
    ) -> None:
        limit = self.limit + more
        self.ceiling = max(self.ceiling, limit)
        first = self.numbers[hub] + 1
        numbers = range(first, first + len(weights))
        self.numbers[hub] = numbers[-1]
        kinds = [
            self._asked_for(min(permits, limit), stays, earlier, terms)
            for permits, stays, earlier, terms in zip(weights, waits, ahead, keys, strict=False)
        ]
        others = {
            n: kind for n, kind in zip(numbers, kinds, strict=True) if kind != op.DEFAULT_OPTIONS
        }
        call = op.Acquire(
            *(numbers, lease_ms, limit, others, max_waiters, max_waiters if self.keyed else None),
            hub_info=hub_info,
            slots=self._listed(slots, limit),
        )
        self.requests[hub] += requests_of(call)
        self.send(hub, call)

    def _listed(self, slots: Sequence[str], limit: int) -> Sequence[str] | None:
        return slots[:limit] if self.address.slotted else None

    @property
    def keyed(self) -> bool:
        return self.address.keyed

    def _asked_for(
        self, permits: int, waits: bool, ahead_ms: int, key: op.KeyTerms | None
    ) -> op.RequestOptions:
        if not self.address.fair:
            return op.RequestOptions(permits, waits)
        if not self.keyed or key is None:
            return op.RequestOptions(permits, waits, ahead_ms)
        if key.limit is not None:
            permits = min(permits, key.limit)
        return op.RequestOptions(permits, waits, ahead_ms, key)

    @rule(
        hub=hubs,
        counts=st.lists(st.sampled_from((1, 1, 2)), min_size=1, max_size=4),
        lease_ms=leases,
        times=st.sampled_from((1, 2)),
        keeps=st.booleans(),
    )
    def use_plainly(
        self,
        hub: str,
        counts: list[int],
        lease_ms: int,
        times: int,
        keeps: bool,
    ) -> None:
        """As most do, and that more than once: nothing is said but what is asked for."""
        for time_left in reversed(range(times)):
            for count in counts:
                self._acquire_plainly(hub, count, lease_ms)
            while (not keeps or time_left) and (held := self._numbers_held(hub)):
                self.send(hub, op.Release(hub, held[: counts[0]], waits=self._waits(hub)))

    def _waits(self, hub: str) -> bool:
        assert isinstance(self.model, QueueSpecification)
        return any(queued.hub == hub for queued in self.model.queue)

    def _acquire_plainly(self, hub: str, count: int, lease_ms: int) -> None:
        known = hub in self.model.state.hubs and self.model.state.hubs[hub].description
        hub_info = None if known else HubInfo("x")
        numbers = range(self.numbers[hub] + 1, self.numbers[hub] + 1 + count)
        self.numbers[hub] = numbers[-1]
        call = op.Acquire(numbers, lease_ms, self.limit, hub_info=hub_info)
        call = call._replace(slots=self._listed(SLOTS, self.limit))
        self.requests[hub] += requests_of(call)
        self.send(hub, call)

    def _numbers_held(self, hub: str) -> list[int]:
        return sorted(int(i[33:]) for i in self.model.state.holders if i.startswith(hub))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """A command arrives once more, as it does when its reply was lost."""
        hub, call = data.draw(st.sampled_from(self.sent))
        self.call(hub, call)

    @rule(hub=hubs, ahead=st.sampled_from((1, 5)))
    def acquire_out_of_order(self, hub: str, ahead: int) -> None:
        """The batch before this one has not run."""
        number = self.numbers[hub] + 10
        call = op.Acquire([number], 1000, self.limit, after=self.numbers[hub] + ahead)
        call = call._replace(slots=self._listed(SLOTS, self.limit))
        self.call(hub, call)

    @rule(hub=hubs, caller=hubs, data=st.data())
    def release(self, hub: str, caller: str, data: st.DataObject) -> None:
        numbers = data.draw(self._some_numbers(hub, unique=data.draw(st.booleans())))
        told = data.draw(st.sampled_from((None, None, 0, 7, 60, 1001)))
        assert isinstance(self.model, QueueSpecification)
        waiting = [queued.request for queued in self.model.queue if queued.hub == caller]
        own = data.draw(st.sampled_from(([], waiting[: len(numbers)], waiting[-1:])))
        waits = bool(own) or data.draw(st.booleans()) or bool(waiting)
        own = [] if self.address.fair else own
        self.send(caller, op.Release(hub, numbers, told, waits, own))

    @rule(hub=hubs, lease_ms=leases, bound=bounds, data=st.data())
    def refresh(self, hub: str, lease_ms: int, bound: int | None, data: st.DataObject) -> None:
        numbers = data.draw(self._some_numbers(hub))
        held = self.model.state.holders
        heavy = {
            number: held[identity].permits
            for number in numbers
            if (identity := f"{hub}.{number}") in held and held[identity].permits > 1
        }
        self.call(hub, op.Refresh(numbers, lease_ms, heavy, bound))

    @precondition(lambda self: any(self.requests.values()))
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        hub = data.draw(st.sampled_from([hub for hub in HUBS if self.requests[hub]]))
        some = st.lists(st.sampled_from(self.requests[hub]), min_size=1, max_size=3, unique=True)
        numbers = st.sampled_from((0, 0, self.calls[hub], self.calls[hub] + 1))
        self.send(hub, op.Abandon(data.draw(some), data.draw(numbers), data.draw(numbers)))

    @rule(
        hub=hubs,
        lease_ms=leases,
        data=st.data(),
    )
    def heartbeat(
        self,
        hub: str,
        lease_ms: int,
        data: st.DataObject,
    ) -> None:
        asked: list[op.Request] = []
        if self.requests[hub]:
            asked = data.draw(st.lists(st.sampled_from(self.requests[hub]), max_size=4))
        self.send(hub, op.Heartbeat(lease_ms, asked))

    @rule(hub=hubs, owner=hubs, slots=lists_of_slots, data=st.data())
    def adopt(self, hub: str, owner: str, slots: Sequence[str], data: st.DataObject) -> None:
        old = data.draw(self._some_numbers(owner))[0]
        self.numbers[hub] += 1
        call, bound = self._next_call(hub), data.draw(st.sampled_from((None, 4000, LONGEST_MS)))
        number = self.numbers[hub]
        declared = self._listed(slots, self.limit)
        self.send(hub, op.Adopt(owner, old, number, 4000, None, call, bound, declared))

    @unusual
    @rule(hub=hubs, expires_ms=st.sampled_from((500, LONGEST_MS)), bound=bounds, data=st.data())
    def detach(self, hub: str, expires_ms: int, bound: int | None, data: st.DataObject) -> None:
        number = data.draw(self._some_numbers(hub))[0]
        self.send(hub, op.Detach(number, expires_ms, self._next_call(hub), bound))

    @unusual
    @rule(limit=st.sampled_from((None, None, 0, 1, 2, 4, "pause", "resume")))
    def set_limit(self, limit: Any) -> None:
        if isinstance(limit, int):
            self.ceiling = max(self.ceiling, limit)
        self.send(HUBS[0], op.SetLimit(limit, self._next_call(HUBS[0])))

    @precondition(lambda self: self.keyed)
    @rule(limit=st.sampled_from((None, 0, 1, 2, 4)), terms=key_terms)
    def set_limit_of_key(self, limit: int | None, terms: op.KeyTerms | None) -> None:
        key = terms.key if terms else "a"
        self.key_ceilings[key] = max(self.key_ceilings.get(key, 0), limit or 0)
        self.send(HUBS[0], op.SetLimit(limit, self._next_call(HUBS[0]), key))

    @unusual
    @rule(
        hub=hubs,
        pause_ms=st.sampled_from((0, 900, 4000, 20_000)),
        granted=st.sampled_from((None, 0, -1, -2, 1)),
        terms=key_terms,
    )
    def back_off(
        self, hub: str, pause_ms: int, granted: int | None, terms: op.KeyTerms | None
    ) -> None:
        """Told by an operator, or by a holder whose permit is older or younger than the last."""
        key = terms.key if self.keyed and terms else None
        tokens = sorted(self.tokens)
        token = granted
        if granted:
            token = tokens[granted] if granted < 0 and len(tokens) >= -granted else self.now_us
        self.send(hub, op.BackOff(pause_ms, token, self._next_call(hub), key))

    @rule(most=st.sampled_from((0, 1, 100)))
    def status(self, most: int) -> None:
        self.call(HUBS[1], op.Status(most))

    @rule()
    def reap(self) -> None:
        self.call(HUBS[2], op.Reap())

    @unusual
    @rule()
    def lose_everything(self) -> None:
        """A flush, or a restart of a server that keeps nothing."""
        self.redis.delete(*self.keys, *self.address.first_keys)
        self.model.lose_everything()
        # Or tokens would be drawn again: the outage lasts for as long as the clock was behind.
        self.now_us = max(self.now_us, *self.tokens, 0) + 1_000_000

    @precondition(lambda self: self.address.slotted or self.keyed)
    @rule(what=st.sampled_from(("keys", "queue", "slots")), hub=hubs, beats=st.booleans())
    def lose_one_key(self, what: str, hub: str, beats: bool) -> None:
        """One key of Redis is evicted, and the next call notices."""
        key = f"{self.prefix}:{{{self.address.name}}}:{what}"
        model = self.model
        if key not in (*self.keys, *self.address.first_keys):
            return
        self.redis.delete(key)
        match what:
            case "slots":
                model.state.lose_slots()
            case "keys":
                assert isinstance(model, KeyedSpecification)
                model.lose_keys()
            case _:
                assert isinstance(model, QueueSpecification)
                model.lose_queue()
        known = hub in model.state.hubs and model.state.hubs[hub].description
        self.call(hub, op.Heartbeat(1000) if beats and known else op.Reap())

    @precondition(lambda self: len(self.sent) > 8)
    @rule()
    def delete(self) -> None:
        self.send(HUBS[0], op.Delete(self._next_call(HUBS[0])))

    def _next_call(self, hub: str) -> int:
        """For a call that acts once: the server takes each number once, and none below it."""
        self.calls[hub] += 1
        return self.calls[hub]

    @rule(ms=st.sampled_from((1, 300, 1001, 4000, 15_000, 80_000)))
    def pass_time(self, ms: int) -> None:
        self.now_us += ms * 1000

    @precondition(lambda self: self.clock == "server" and self.counter_is_known())
    @rule(seconds=st.sampled_from((0.5, 2, 60, 3600)))
    def set_the_clock_back(self, seconds: float) -> None:
        """Somebody corrects it. No lease may seem to have grown by that."""
        self.now_us -= int(seconds * 1_000_000)

    def counter_is_known(self) -> bool:
        """A clock that is set back after a loss of state, and before a grant, is too much."""
        return self.model.state.counter.last >= max(self.tokens, default=0)

    @unusual
    @rule(hub=hubs)
    def die_or_come_back(self, hub: str) -> None:
        self.come_or_go(hub)

    def _some_numbers(self, hub: str, *, unique: bool = True) -> st.SearchStrategy[list[int]]:
        one = st.integers(1, max(1, self.numbers[hub]))
        if held := self._numbers_held(hub):
            one = st.sampled_from(held) | one  # or most would be of nobody
        return st.lists(one, min_size=1, max_size=4, unique=unique)

    # -- what holds after every step

    @invariant()
    def never_more_than_the_limit(self) -> None:
        counter = self.model.state.counter
        now_us = max(self.now_us + counter.ahead_us, counter.last)
        assert self.model.state.used(now_us // 1000) <= self.ceiling

    @invariant()
    def nobody_is_granted_in_a_pause(self) -> None:
        state = self.model.state
        ramp = state.ramp((self.called_at_us + state.counter.ahead_us) // 1000)
        if ramp is not None and not ramp.permits:
            assert len(self.tokens) == self.tokens_before
        self.tokens_before = len(self.tokens)

    @invariant()
    def no_lease_is_longer_than_was_asked_for(self) -> None:
        """Counted from the time last noted, to which the clock may be set back."""
        counter = self.model.state.counter
        end = counter.last // 1000 + LONGEST_MS + 1001
        assert all(held.expiry_ms <= end for held in self.model.state.holders.values())

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """But for an older one of its key, or one that the overall limit holds up (fair)."""
        model, state = self.model, self.model.state
        assert isinstance(model, QueueSpecification)
        if not self.served:
            return
        now = self.called_at_us + state.counter.ahead_us
        now //= 1000
        if state.set_limit == 0:
            return
        used = sum(holder.permits for holder in state.holders.values())
        if not all(holder.known for holder in state.holders.values()):
            return
        seen: set[str | None] = set()
        for queued in model.queue:
            if queued.parked or (queued.key in seen and self.keyed):
                continue
            seen.add(queued.key)
            if state.look_up(queued.hub).alive_until <= now:
                continue
            request = queued.request
            if isinstance(model, KeyedSpecification) and queued.key is not None:
                use = sum(h.permits for h in state.holders.values() if h.key == queued.key)
                if use + request.permits > model._room(request, now):
                    continue
            shares = isinstance(model, KeyedSpecification) and model.shares
            if used + request.permits > state.room(request.limit, now, used):
                fits = used + request.permits <= state.effective_limit(request.limit)
                if fits or (not shares and not model.passes_over):
                    return  # it blocks all that are younger
                continue
            oldest_blocks = isinstance(model, KeyedSpecification) and shares and model.ready
            assert oldest_blocks, f"{queued} could run"

    @invariant()
    def no_slot_is_given_twice(self) -> None:
        """And every permit has one."""
        holders = self.model.state.holders.values()
        if self.address.slotted:
            known = [holder for holder in holders if holder.known]
            assert all(len(holder.slots) == holder.permits for holder in known)
            given = Counter(slot for holder in holders for slot in holder.slots)
            assert max(given.values(), default=1) == 1, given

    @invariant()
    def nobody_holds_and_waits(self) -> None:
        assert isinstance(self.model, QueueSpecification)
        waiting = {waiter.id for waiter in self.model.queue}
        assert not waiting & self.model.state.holders.keys()


def machine(mode: Mode, clock: Clock, url: str, prefix: str) -> type[Agreement]:
    facts: dict[str, object] = {"mode": mode, "clock": clock, "url": url, "prefix": prefix}
    facts["quick"] = Counter[type]()
    return type("Agreement", (Agreement,), facts)


@pytest.fixture
def agree(server_url: str, prefix: str) -> Iterator[Agree]:
    """Makes an agreement whose steps a test takes by itself. It ends the one before it."""
    made: list[Any] = []

    def end() -> None:
        while made:
            made.pop().teardown()

    def make(mode: Mode, clock: Clock = "server") -> Any:
        end()
        made.append(machine(mode, clock, server_url, prefix)())
        return made[0]

    yield make
    end()


@pytest.mark.fault(36)
@pytest.mark.timeout(max(300, 2 * RUNS))
@pytest.mark.parametrize(
    ("mode", "clock"),
    [
        (mode, clock)
        for mode in MODES
        for clock in ("server", "local")[: 1 + ("+slots" not in mode)]
    ],
)
def test_memory_and_redis_agree(mode: Mode, clock: Clock, server_url: str, prefix: str) -> None:
    """The memory backend is the specification only for as long as the scripts follow it."""
    agreement = machine(mode, clock, server_url, prefix)
    run_state_machine_as_test(
        agreement,
        settings=settings(
            max_examples=RUNS,
            stateful_step_count=30,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
    # A few runs may happen to take it never.
    if RUNS >= 200 and "slots" not in mode:
        assert agreement.quick[op.Acquire] and agreement.quick[op.Release]


def test_grants_of_one_hub_may_be_two_messages(agree: Agree) -> None:
    """The script reads the line in parts, of eight first. The machine above found it."""
    dead, waiter, holder = HUBS
    state = agree("fair")
    state.choose(limit=2, plain=True)
    for hub, count, lease_ms in ((holder, 2, 4000), (dead, 9, 1000), (waiter, 2, 10_000)):
        state.use_plainly(hub=hub, counts=[count], lease_ms=lease_ms, times=1, keeps=True)
    state.pass_time(ms=5000)
    model = state.model
    assert isinstance(model, QueueSpecification)
    assert [queued.hub for queued in model.queue] == [dead] * 7 + [waiter] * 2
    state.call(holder, op.Heartbeat(1000))
    assert len(state._numbers_held(waiter)) == 2


@pytest.mark.parametrize("mode", ["fair", "fair+keys", "fair+share"])
def test_no_request_of_a_process_that_is_gone_counts(mode: Mode, agree: Agree) -> None:
    """Also those that stand behind the head, which holds the line up."""
    gone, waiter, holder = HUBS
    state = agree(mode)
    for hub, numbers in ((holder, [1]), (gone, [1]), (waiter, [1, 2]), (gone, [2, 3, 4])):
        info = HubInfo("x") if numbers[0] == 1 else None
        state.call(hub, op.Acquire(numbers, 90_000, 1, hub_info=info))
    state.come_or_go(gone)
    state.call(holder, op.Release(holder, [1]))
    assert state._numbers_held(waiter) == [1]
    for left in (1, 4):
        answer = state.call(waiter, op.Heartbeat(90_000))
        assert isinstance(answer, Reply)
        assert answer.waiting == 1
        state.call(waiter, op.Status(9))
        refused = state.call(waiter, op.Acquire([2 + left], 90_000, 1, max_waiters=2))
        assert isinstance(refused, Reply) and refused.answers == [0]
        state.call(waiter, op.Abandon([op.Request(2 + left, 90_000, 1)]))
    state.come_or_go(gone)
    answer = state.call(gone, op.Heartbeat(90_000, [op.Request(1, 90_000, 1)]))
    assert isinstance(answer, Reply)
    assert answer.waiting == 5, "it is back, in its places"
    state.call(waiter, op.Release(waiter, [1]))
    assert state._numbers_held(gone) == [1]


@pytest.mark.parametrize("mode", ["fair", "fair+keys"])
def test_status_leaves_out_requests_of_the_dead(mode: Mode, agree: Agree) -> None:
    """Although nothing has removed them yet."""
    dead, waiter, holder = HUBS
    state = agree(mode)
    unusual = (
        op.RequestOptions(key=op.KeyTerms("a", limit=1)) if state.keyed else op.DEFAULT_OPTIONS
    )
    for hub, numbers, lease_ms in ((holder, [1], 90_000), (dead, [1, 2], 1000)):
        every = dict.fromkeys(numbers, unusual)
        state.call(hub, op.Acquire(numbers, lease_ms, 1, every, hub_info=HubInfo("x")))
    state.call(waiter, op.Acquire([1], 90_000, 1, {1: unusual}, hub_info=HubInfo("x")))
    state.pass_time(ms=5000)
    for most in (0, 9):
        status = state.call(holder, op.Status(most))
        assert isinstance(status, StatusReply)
        assert status.waiting == 1
        assert [entry.id for entry in status.queue] == [f"{waiter}.1"][:most]
        assert [key.waiting for key in status.keys] == [1] * (state.keyed and most > 0)
    assert state.redis.zcard(state.keys[6]) == 3


@pytest.mark.parametrize("dead_ones", [99, 100, 150])
def test_a_long_line_of_a_dead_process_ends_at_the_limit_of_its_key(
    dead_ones: int, agree: Agree
) -> None:
    """One call drops about a hundred, and the next request may be one that has to wait."""
    dead, waiter, holder = HUBS
    state = agree("fair+keys")
    unusual = op.RequestOptions(key=op.KeyTerms("a", limit=1))
    for hub, count, lease_ms in (
        (holder, 1, 90_000),
        (dead, dead_ones, 1000),
        (waiter, 1, 90_000),
    ):
        numbers = range(1, count + 1)
        every = dict.fromkeys(numbers, unusual)
        state.call(hub, op.Acquire(numbers, lease_ms, 500, every, hub_info=HubInfo("x")))
    state.pass_time(ms=5000)
    # The model drops them all at once, so the calls are not compared with it.
    *_, last = (state._run(waiter, op.SetLimit(1, n, "a")) for n in (1, 2, 3))
    assert isinstance(last, Reply)
    assert last.waiting == 1
    assert state.redis.zcard(state.keys[0]) == 1, "only one is held"


@pytest.mark.parametrize("mode", ["fair+keys", "fair+share"])
def test_what_comes_back_into_the_line_expires(mode: Mode, agree: Agree) -> None:
    """All of the line was set aside. The machine above found it."""
    waiter, holder = HUBS[:2]
    state = agree(mode)
    for hub, numbers in ((holder, (1, 2)), (waiter, (1, 2, 3))):
        state.call(hub, op.Acquire(numbers, 90_000, 2, hub_info=HubInfo("x")))
    state.come_or_go(waiter)
    state.call(holder, op.Release(holder, [1]))
    state.call(holder, op.Acquire([3], 90_000, 2))
    state.come_or_go(waiter)
    state.call(waiter, op.Heartbeat(90_000))
    assert state.redis.exists(state.address.first_keys[-2])
    state.nothing_is_kept_for_longer_than_it_has_to_be()


@pytest.mark.parametrize("mode", ["fair+share", "fair+share+slots"])
def test_who_holds_keeps_its_share_when_an_empty_line_is_deleted(mode: Mode, agree: Agree) -> None:
    """Nothing was lost, so nothing is written anew. The machine above found it."""
    holder = HUBS[0]
    state = agree(mode)
    terms = {1: op.RequestOptions(key=op.KeyTerms("a"))}
    call = op.Acquire([1], 90_000, 1, terms, hub_info=HubInfo("x"))
    state.call(holder, call._replace(slots=state._listed(SLOTS, 1)))
    model = state.model
    assert isinstance(model, KeyedSpecification)
    assert model.virtual_times == {"a": 1.0}
    state.lose_one_key(what="queue", hub=holder, beats=False)
    assert model.virtual_times == {"a": 1.0}
    state.nothing_is_kept_for_longer_than_it_has_to_be()


@pytest.mark.parametrize("mode", ["fair", "zset"])
def test_nothing_is_left_of_a_hub_that_is_silent_for_long(mode: Mode, agree: Agree) -> None:
    """Its numbers and who it was are forgotten once nothing of it can arrive any more."""
    here, there = HUBS[:2]
    state = agree(mode)
    state.choose(limit=1, plain=True)
    state.use_plainly(hub=here, counts=[1], lease_ms=1000, times=1, keeps=False)
    state.pass_time(ms=80_000)
    state.use_plainly(hub=there, counts=[1], lease_ms=1000, times=1, keeps=False)
    fields = cast("list[bytes]", state.redis.hkeys(state.keys[2]))
    assert any(field.startswith(there.encode()) for field in fields)
    assert not any(field.startswith(here.encode()) for field in fields)
    assert state.redis.zscore(state.keys[3], here) is None


@pytest.mark.parametrize("mode", ["fair", "fair+share", "zset"])
def test_what_nobody_counts_may_have_been_received(mode: Mode, agree: Agree) -> None:
    """Until the hub was silent for long, it is there, whatever PUBLISH says."""
    here, there = HUBS[:2]
    uncounted = HubInfo("x", uncounted=True)
    state = agree(mode)
    state.choose(limit=1, plain=False)
    state.call(here, op.Acquire([1], 1000, 1, hub_info=HubInfo("x")))
    waits = op.Acquire([1], 10_000, 1, hub_info=uncounted)
    state.call(there, waits)
    state.come_or_go(there)
    state.call(here, op.Release(here, [1]))
    assert [*state.model.state.holders] == [f"{there}.1"]


def test_nothing_is_granted_to_who_died_since_the_queue_was_looked_through(agree: Agree) -> None:
    """Which is done once in a second: the first in the queue is looked at beside that."""
    holder, first, second = HUBS
    state = agree("fair")
    state.call(holder, op.Acquire([1], 90_000, 1, hub_info=HubInfo("x")))
    state.call(first, op.Acquire([1], 1000, 1, hub_info=HubInfo("x")))
    state.pass_time(ms=450)
    state.call(second, op.Acquire([1], 1000, 1, hub_info=HubInfo("x")))
    state.pass_time(ms=3310)  # the first one counts as dead since 10 ms
    state.call(holder, op.Heartbeat(90_000))
    state.pass_time(ms=500)  # and now the second one, too
    state.call(holder, op.Release(holder, [1]))
    assert not state.model.state.holders


@pytest.mark.parametrize(
    ("mode", "clock", "ms", "first"),
    [
        ("zset", "server", 50, "own"),
        ("zset", "server", 51, "oldest"),
        ("zset+slots", "server", 50, "own"),
        ("zset+slots", "server", 51, "oldest"),
        ("zset", "local", 50, "oldest"),
        ("fair", "server", 50, "oldest"),
    ],
)
@pytest.mark.parametrize("hold_ms", [None, 7])
def test_a_process_serves_its_own_while_the_oldest_is_young(
    mode: Mode,
    clock: Clock,
    ms: int,
    first: str,
    hold_ms: int | None,
    agree: Agree,
) -> None:
    """By the quick path, and by the general one, which a hold is told on."""
    here, there = HUBS[:2]
    state = agree(mode, clock)
    slots = state._listed(SLOTS, 1)
    for hub, number in ((here, 1), (there, 1), (here, 2)):
        call = op.Acquire([number], 90_000, 1, hub_info=HubInfo("x"), slots=slots)
        state.call(hub, call)
    state.call(here, op.Heartbeat(90_000))  # the queue is looked through
    state.pass_time(ms=ms)
    own = [op.Request(2, 90_000, 1)] * (not state.address.fair)
    state.call(here, op.Release(here, [1], hold_ms, waits=True, own=own))
    assert state._numbers_held(here) == ([2] if first == "own" else [])


def test_who_is_gone_holds_up_no_other_key(agree: Agree) -> None:
    """Once a message to it had no subscriber, in the same call. The simulation found it."""
    waiter, gone, holder = HUBS
    state = agree("fair+keys")
    narrow, wide = (op.KeyTerms("a", limit) for limit in (1, 2))
    asked = (
        *((holder, 1, narrow), (holder, 2, None), (gone, 1, None), (gone, 2, narrow)),
        (waiter, 1, wide),
    )
    for hub, number, terms in asked:
        options = {number: op.RequestOptions(key=terms)}
        state.call(hub, op.Acquire([number], 90_000, 2, options, hub_info=HubInfo("x")))
    state.come_or_go(gone)
    state.call(holder, op.Release(holder, [2]))
    assert state._numbers_held(waiter) == [1]


@pytest.mark.parametrize("calls", ["heartbeat", "acquire"])
def test_who_died_since_then_holds_up_none_of_its_key(calls: str, agree: Agree) -> None:
    """A heartbeat, or a new request, looks at the heads of the keys that it is about."""
    waiter, first, second = HUBS
    state = agree("fair+keys")
    terms = op.KeyTerms("a", 4)
    two, three, one = (op.RequestOptions(permits, key=terms) for permits in (2, 3, 1))
    state.call(waiter, op.Acquire([1], 90_000, 9, {1: two}, hub_info=HubInfo("x")))
    for hub in (first, second):
        state.call(hub, op.Acquire([1], 1000, 9, {1: three}, hub_info=HubInfo("x")))
        state.pass_time(ms=450)
    state.call(waiter, op.Acquire([2], 90_000, 9, {2: one}))
    state.pass_time(ms=2860)  # the first one counts as dead since 10 ms
    asked = [op.Request(2, 90_000, 9, key=terms)]
    state.call(waiter, op.Heartbeat(90_000, asked))
    assert state._numbers_held(waiter) == [1]
    state.pass_time(ms=500)  # and now the second one, too
    if calls == "heartbeat":
        state.call(waiter, op.Heartbeat(90_000, asked))
    else:
        state.call(waiter, op.Acquire([3], 90_000, 9, {3: one}))
    assert state._numbers_held(waiter)[:2] == [1, 2]


@pytest.mark.parametrize("mode", ["fair", "zset", "fair+keys"])
@pytest.mark.parametrize("hold_ms", [None, 7])
def test_whoever_is_handed_a_permit_has_its_whole_lease(
    mode: Mode, hold_ms: int | None, agree: Agree
) -> None:
    """By the general path, which a hold is told on, and by the quick one."""
    holder, waiter = HUBS[:2]
    state = agree(mode)
    for hub in (holder, waiter):
        state.call(hub, op.Acquire([1], 10_000, 1, hub_info=HubInfo("x")))
    state.call(waiter, op.Heartbeat(10_000))
    state.call(holder, op.Release(holder, [1], hold_ms))
    assert state.redis.zscore(state.keys[0], f"{waiter}.1") == state.now_us // 1000 + 10_000


def test_in_zset_mode_what_fits_is_granted_beside_what_does_not(agree: Agree) -> None:
    """In one command, and in the queue when nothing is known of it."""
    holder, waiter = HUBS[:2]
    state = agree("zset")
    state.call(holder, op.Acquire([1, 2], 90_000, 3, hub_info=HubInfo("x")))
    heavy = {1: op.RequestOptions(2), 3: op.RequestOptions(3)}
    call = op.Acquire([1, 2], 90_000, 3, heavy, hub_info=HubInfo("x"))
    answer = state.call(waiter, call)
    assert isinstance(answer, Reply)
    assert [bool(token) for token in answer.answers] == [False, True]
    state.call(waiter, op.Acquire([3, 4], 90_000, 3, heavy))
    state.call(holder, op.SetLimit(4, 1))
    assert state._numbers_held(waiter) == [2, 4]


@pytest.mark.parametrize("mode", ["fair", "zset"])
def test_who_comes_back_with_a_release_is_served_before_younger_ones(
    mode: Mode, agree: Agree
) -> None:
    """Its requests were parked, and return first. The bounds of test_bounds found it."""
    holder, back, waiter = HUBS
    state = agree(mode)
    for hub, number in ((back, 1), (holder, 1), (back, 2), (waiter, 1)):
        state.call(hub, op.Acquire([number], 90_000, 2, hub_info=HubInfo("x")))
    state.come_or_go(back)
    state.call(holder, op.Release(holder, [1]))
    assert state._numbers_held(waiter) == [1]
    state.call(waiter, op.Acquire([2], 90_000, 2))
    state.come_or_go(back)
    state.call(back, op.Release(back, [1], waits=True))
    assert state._numbers_held(back) == [2]


def test_who_waits_is_told_of_a_newcomer_that_expires_earlier(agree: Agree) -> None:
    """The next moment that it knows is the end of a longer lease. An attack found it."""
    holder, waiter, newcomer = HUBS
    state = agree("zset")
    state.call(holder, op.Acquire([1], 90_000, 2, hub_info=HubInfo("x")))
    heavy = {1: op.RequestOptions(2)}
    state.call(waiter, op.Acquire([1], 90_000, 2, heavy, hub_info=HubInfo("x")))
    state.call(newcomer, op.Acquire([1], 2000, 2, hub_info=HubInfo("x")))
    assert state._published == [(waiter, Recheck("agreed"))]


@pytest.mark.parametrize("mode", ["zset", "zset+slots"])
def test_what_was_passed_over_for_a_lost_grant_is_looked_at_again(
    mode: Mode, agree: Agree
) -> None:
    """While the call counts it as granted, those behind do not fit; then they do."""
    holder, gone, waiter = HUBS
    state = agree(mode)
    for hub, number in ((holder, 1), (gone, 1), (waiter, 1), (waiter, 2)):
        call = op.Acquire([number], 90_000, 1, hub_info=HubInfo("x"))
        state.call(hub, call._replace(slots=state._listed(SLOTS, 1)))
    state.come_or_go(gone)
    state.call(holder, op.Release(holder, [1]))
    assert state._numbers_held(waiter) == [1]


def test_the_hubs_that_died_first_are_forgotten_first(agree: Agree) -> None:
    """A few in each call. A soak found it, with many killed processes."""
    state = agree("fair")
    hubs = [f"{number:032x}" for number in range(1, 13)]
    for lease_ms, hub in enumerate(hubs):
        call = op.Acquire([1], 20_000 - 1000 * lease_ms, 20, hub_info=HubInfo("x"))
        state.call(hub, call)
    state.pass_time(ms=80_000)
    state.pass_time(ms=15_000)
    state.call(HUBS[0], op.Acquire([1], 1000, 20, hub_info=HubInfo("x")))
    kept = cast("list[bytes]", state.redis.zrange(state.keys[3], 0, -1))
    assert {hub.decode() for hub in kept} == state.model.state.hubs.keys()
    assert len(kept) == 3


def test_the_first_in_line_looks_at_the_next_expiry(agree: Agree) -> None:
    """A detached permit may outlast the liveness of who waits. The soak found it."""
    here, there = HUBS[:2]
    state = agree("fair")
    state.choose(limit=1, plain=True)
    for hub in (here, there):
        state.call(hub, op.Heartbeat(1000, hub_info=HubInfo("x")))
    state.call(here, op.Acquire([1], 1000, 1))
    state.call(here, op.Detach(1, LONGEST_MS, 1))
    answer = state.call(there, op.Acquire([1], 1000, 1))
    assert isinstance(answer, Reply)
    assert (answer.answers, answer.next_ms) == ([0], LONGEST_MS)


@pytest.mark.parametrize("mode", ["fair+keys", "fair+share"])
def test_a_back_off_of_a_key_expires_although_nothing_else_is_stored(
    mode: Mode, agree: Agree
) -> None:
    """Its texts change while its ramp rises. Redis drops what is empty, and the expiry with it."""
    hub = HUBS[0]
    state = agree(mode)
    state.choose(limit=1, plain=False)
    state.call(hub, op.BackOff(4000, None, state._next_call(hub), "a"))
    state.pass_time(ms=4000)
    state.call(hub, op.Reap())
    state.nothing_is_kept_for_longer_than_it_has_to_be()


@pytest.mark.parametrize("lost", [False, True])
def test_a_head_that_need_not_wait_holds_up_nobody_behind_it(lost: bool, agree: Agree) -> None:
    """It can never be served, or at once since the holders were lost. Nothing else looks at it."""
    here, there = HUBS[:2]
    state = agree("fair")
    state.call(here, op.Acquire([1], 90_000, 1, hub_info=HubInfo("x")))
    state.call(there, op.Acquire([1], 90_000, 0, hub_info=HubInfo("x")))
    state.call(there, op.Heartbeat(90_000))  # the queue is looked through
    state.call(there, op.Acquire([2], 90_000, 1 if lost else 0))
    if lost:
        state.redis.delete(state.keys[0])
        state.model.state.holders.clear()
    state.call(here, op.Acquire([2], 90_000, 2))
    assert state._numbers_held(here) == ([2] if lost else [1, 2])
    assert state._numbers_held(there) == ([2] if lost else [])
