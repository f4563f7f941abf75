"""What the scripts promise about rates, at instants that the test decides."""

from collections.abc import Sequence
from typing import Any

import pytest

import redsem_async._protocol.operations as op
from redsem_async._core.keys import Mode
from redsem_async._core.rates import Rate, in_queue, settled
from redsem_async._protocol.hub_info import NO_PUSH, HubInfo
from redsem_async._protocol.pushes import Recheck
from redsem_async._protocol.replies import FULL, WAITING, Reply
from redsem_async._redis.scripts import script
from tests.scripts.in_memory import HUBS, INFO, InMemory

A, B, C = HUBS
MODES: list[Mode] = ["fair+rate", "fair+keys+rate", "fair+share+rate", "fair+keys+rate+slots"]


class Rated(InMemory):
    """A semaphore with rates, which the judge of all worlds looks at."""

    def __init__(self, *rates: Rate, mode: Mode = "fair+rate", limit: int = 9) -> None:
        super().__init__(mode)
        self.address = self.address._replace(rates=tuple("abcd"[: len(rates)]))
        self.rates, self.limit = dict(zip("abcd", rates, strict=False)), limit

    def ask(self, hub: str, number: int, *costs: float, limit: int = 0, **more: Any) -> Reply:
        """A request that costs this, with other options."""
        options = op.RequestOptions(costs=in_queue(self.rates, costs))._replace(**more)
        slots = "abcdefghi"[: self.limit] if self.address.slotted else None
        call = op.Acquire([number], 90_000, limit or self.limit, {number: options}, slots=slots)
        if f"{hub}:no_push" not in self.kept["meta"]:
            call.hub_info = INFO  # and without it a quick path may be taken
        return self.call(hub, call)

    def settle(self, hub: str, *numbers: int, asked: float, cost: float) -> Reply:
        more = settled(self.rates, [cost], in_queue(self.rates, [asked]))
        call = op.Release(hub, numbers, waits=True, settled=dict.fromkeys(numbers, more))
        return self.call(hub, call)

    def look_again(self, hub: str) -> Reply:
        return self.heartbeat(hub)

    @property
    def full_in(self) -> Sequence[int]:
        """In how many milliseconds each rate is full."""
        return [(tat - self.now_us) // 1000 for tat, _ in self.look.rates]

    @property
    def held(self) -> list[int]:
        return [len(self.held_by(hub)) for hub in HUBS]


@pytest.mark.parametrize("mode", MODES)
def test_a_burst_goes_and_then_one_each_time(mode: Mode) -> None:
    state = Rated(Rate(10, burst=3), mode=mode)
    said = [state.ask(A, number, 1) for number in range(1, 6)]
    assert [reply.answers[0] == WAITING for reply in said] == [False] * 3 + [True] * 2
    assert (said[3].next_ms, said[4].next_ms) == (100, 100)
    state.pass_time(99)
    assert state.look_again(A).next_ms == 1
    assert state.held[0] == 3
    state.pass_time(1)
    assert state.look_again(A).next_ms == 100
    assert state.held[0] == 4


def test_nobody_passes_the_head_that_waits_for_its_cost() -> None:
    state = Rated(Rate(10, burst=10))
    state.ask(A, 1, 8)
    assert state.ask(B, 1, 5).answers == [WAITING]
    assert state.ask(C, 1, 1).answers == [WAITING]  # although 2 are left
    state.pass_time(300)
    state.look_again(B)
    assert state.held == [1, 1, 0]


def test_what_only_its_own_key_holds_up_is_passed() -> None:
    state = Rated(Rate(10, burst=2), mode="fair+keys+rate")
    full, free = (op.KeyTerms(name, 1) for name in ("full", "free"))
    state.ask(A, 1, 1, key=full)
    state.ask(A, 2, 1, key=full)
    assert state.ask(B, 1, 1, key=free).answers != [WAITING]
    reply = state.ask(B, 2, 1, key=None)
    assert (reply.answers, reply.next_ms, reply.rated_ms) == ([WAITING], 100, 200)


def test_who_costs_little_and_has_its_turn_does_not_wait_as_long_as_the_head_before() -> None:
    state = Rated(Rate(10, burst=10), mode="fair+share+rate")
    often, once = (op.KeyTerms(name) for name in ("often", "once"))
    state.ask(A, 1, 10, key=often)
    assert state.ask(A, 2, 10, key=often).next_ms == 1000
    assert state.ask(B, 1, 1, key=once).next_ms == 100


@pytest.mark.parametrize("slow", [0, 1])
def test_each_rate_has_to_let_it_go_and_nothing_is_taken_before(slow: int) -> None:
    rates = Rate(1, burst=1), Rate(10, burst=10)
    state = Rated(rates[slow], rates[not slow])
    state.ask(A, 1, 1, 1)
    reply = state.ask(A, 2, 1, 1)
    assert (reply.next_ms, reply.rated_ms) == (1000, 1000)
    assert sorted(state.full_in) == [100, 1000]


@pytest.mark.parametrize(("cost", "debt_ms"), [(2, 200), (20, 2000)])
def test_a_cost_above_the_burst_goes_from_a_full_bucket_into_debt(cost: int, debt_ms: int) -> None:
    state = Rated(Rate(10, burst=2))
    state.ask(A, 1, cost)
    assert state.full_in == [debt_ms]
    assert state.ask(A, 2, cost).next_ms == debt_ms
    state.pass_time(debt_ms)
    state.look_again(A)
    assert (state.held[0], state.full_in) == (2, [debt_ms])


def test_a_cost_of_zero_waits_in_debt_alone() -> None:
    state = Rated(Rate(10, burst=2))
    state.ask(A, 1, 2)
    assert state.ask(A, 2, 0).answers != [WAITING]
    state.pass_time(200)
    state.ask(A, 3, 20)
    assert state.ask(A, 4, 0).next_ms == 1800


def test_who_may_not_wait_is_refused_and_spends_nothing() -> None:
    state = Rated(Rate(1, burst=1))
    state.ask(A, 1, 1)
    reply = state.ask(A, 2, 1, waits=False)
    assert (reply.answers, reply.rated_ms, state.full_in) == ([FULL], 1000, [1000])
    assert state.ask(A, 3, 1, waits=False, ahead_ms=5000).answers == [FULL]
    assert "rate_told" not in state.kept["meta"]  # it is not the head of the queue


def test_a_refusal_counts_the_costs_in_front_and_its_own() -> None:
    state = Rated(Rate(1, burst=10))
    state.ask(A, 1, 10)
    for number in range(2, 52):
        state.ask(A, number, 1)
    assert state.ask(B, 1, 10, waits=False).rated_ms == 60_000


def test_the_limit_and_the_rate_both_have_to_allow_it() -> None:
    state = Rated(Rate(10, burst=1), limit=1)
    state.ask(A, 1, 1)
    for number in (2, 3):
        assert state.ask(A, number, 1).rated_ms is None
    state.pass_time(5000)
    state.look_again(A)
    assert state.held[0] == 1
    state.release(A, 1, waits=True)
    assert (state.held[0], state.full_in) == (1, [100])


def test_a_pause_and_a_back_off_hold_up_who_the_rate_lets_go() -> None:
    state = Rated(Rate(10, burst=1))
    state.ask(A, 1, 1)
    state.call(A, op.StartBackOff(500, None, 1))
    assert state.ask(A, 2, 1).next_ms == 500
    state.pass_time(500)
    assert state.look_again(A).next_ms != 0
    assert state.held[0] == 1  # the slow start begins with one
    state.call(A, op.SetLimit(0, 2))
    state.release(A, 1)
    assert state.held[0] == 0
    state.call(A, op.SetLimit(None, 3))
    assert state.held[0] == 1


# -- who looks when


def test_the_hub_of_the_head_knows_and_another_looks_later() -> None:
    state = Rated(Rate(1, burst=1))
    state.ask(A, 1, 1)
    assert state.ask(A, 2, 1).next_ms == 1000
    assert state.ask(B, 1, 1).next_ms == 2000  # though A was told before there was another
    state.pass_time(1000)
    state.look_again(A)
    assert state.told == [(B, Recheck("n", 1000))]
    state.look_again(A)
    assert not state.told  # once
    assert state.ask(C, 1, 1).next_ms == 2000
    state.pass_time(1000)
    state.look_again(B)
    assert state.told == [(C, Recheck("n", 1000))]


def test_a_head_that_stands_still_holds_the_others_up_for_a_second() -> None:
    state = Rated(Rate(1, burst=1))
    state.ask(A, 1, 1)
    for hub in (A, B, C):
        state.ask(hub, 2, 1)
    state.pass_time(1000)
    state.look_again(A)
    assert state.told == [(B, Recheck("n", 1000)), (C, Recheck("n", 2000))]
    state.pass_time(2000)
    assert state.look_again(C).next_ms == 1000
    assert state.held == [2, 1, 0]


def test_a_process_that_stands_still_is_left_out_of_account_until_it_calls() -> None:
    """Each of its requests would otherwise take a second longer than its turn."""
    state = Rated(Rate(1, burst=1))
    for hub, number in ((A, 1), (B, 2), (B, 3), (B, 4), (C, 2)):
        state.ask(hub, number, 1)
    state.pass_time(2000)
    assert state.look_again(C).next_ms == 1000
    state.pass_time(1000)
    assert state.look_again(C).next_ms == 1000
    state.look_again(B)
    assert state.look_again(C).next_ms == 2000


def test_who_looks_is_told_again_after_a_pause() -> None:
    """Meanwhile its calls were answered that the rate holds nobody up."""
    state = Rated(Rate(1, burst=1))
    for number in (1, 2):
        state.ask(A, number, 1)
    state.call(B, op.SetLimit(0, 1))
    assert state.look_again(A).next_ms != 1000
    state.call(B, op.SetLimit(None, 2))
    assert state.told == [(A, Recheck("n", 1000))]


def test_who_looks_later_is_found_behind_the_many_of_one_process() -> None:
    state = Rated(Rate(1, burst=1), limit=99)
    for hub, number in ((A, 1), *((B, number) for number in range(2, 40)), (C, 2), (A, 2)):
        state.ask(hub, number, 1)
    state.pass_time(1000)
    assert state.look_again(A).next_ms == 2000
    state.pass_time(2000)
    assert state.look_again(C).next_ms == 1000


@pytest.mark.parametrize("deaf", ["B", "BC"])
def test_another_looks_in_time_for_a_head_that_no_message_reaches(deaf: str) -> None:
    state = Rated(Rate(1, burst=1))
    for hub, number in ((A, 1), (A, 2), (B, 2), (C, 2), (A, 3)):
        state.ask(hub, number, 1)
    for hub in (B, C)[: len(deaf)]:
        state.call(hub, op.Heartbeat(90_000, [], HubInfo("x", NO_PUSH)))
    state.pass_time(1000)
    looks = state.look_again(A).next_ms == 1000
    assert looks or state.told == [(C, Recheck("n", 1000))]


def test_who_gets_no_messages_may_be_the_one_that_looks_later() -> None:
    state = Rated(Rate(1, burst=1))
    for number in (1, 2):
        state.ask(A, number, 1)
    state.call(B, op.Heartbeat(90_000, [], HubInfo("x", NO_PUSH)))
    assert state.ask(B, 1, 1).next_ms == 2000


def test_a_head_whose_hub_is_gone_is_dropped_at_once() -> None:
    state = Rated(Rate(1, burst=1))
    state.ask(A, 1, 1)
    for hub in (A, B, C):
        state.ask(hub, 2, 1)
    state.present.discard(B)
    state.pass_time(1000)
    assert state.look_again(A).waiting == 1
    assert state.told == [(B, Recheck("n", 1000)), (C, Recheck("n", 1000))]


@pytest.mark.parametrize(("gone", "full_in"), [(B, 1000), (B + C, 0)])
def test_a_grant_that_reaches_nobody_is_not_charged(gone: str, full_in: int) -> None:
    state = Rated(Rate(1, burst=1))
    for hub in HUBS:
        state.ask(hub, 1, 1)
    state.present -= {hub for hub in HUBS if hub in gone}
    state.pass_time(1000)
    state.look_again(A)
    assert (sum(state.held), state.full_in) == (1 + (full_in > 0), [full_in])


@pytest.mark.parametrize("mode", MODES)
def test_a_permit_of_one_who_had_left_is_not_charged(mode: Mode) -> None:
    state = Rated(Rate(1, burst=10), mode=mode)
    state.ask(A, 1, 10)
    left = op.QueuedRequest(1, 90_000, state.limit, costs=in_queue(state.rates, [10]))
    for _ in range(2):
        state.call(A, op.Abandon([left]))
        assert (state.held[0], state.full_in) == (0, [0])


def test_nothing_comes_back_of_one_who_left_after_the_bucket_was_full() -> None:
    state = Rated(Rate(10, burst=10))
    state.ask(A, 1, 10)
    state.pass_time(1000)
    state.ask(B, 1, 10)
    state.call(A, op.Abandon([op.QueuedRequest(1, 90_000, 9, costs=in_queue(state.rates, [10]))]))
    assert state.full_in == [1000]


def test_an_adoption_that_is_given_up_gives_no_cost_back() -> None:
    state = Rated(Rate(1, burst=10))
    state.ask(A, 1, 10)
    state.call(A, op.Detach(1, 90_000, 1))
    state.answer(B, op.Adopt(A, 1, 2, 90_000, INFO, 1))
    state.call(B, op.Abandon([op.QueuedRequest(2, 90_000, state.limit)]))
    assert (state.held, state.full_in) == ([0, 0, 0], [10_000])


@pytest.mark.parametrize("limit", [0, 1])
def test_a_hub_that_forgot_when_to_look_is_told_anew(limit: int) -> None:
    """It looked while a lower limit, or a pause, held its request up besides the rate."""
    state = Rated(Rate(1, burst=1))
    state.ask(A, 1, 1)
    state.ask(B, 1, 1)
    state.call(C, op.SetLimit(limit, 1))
    assert state.look_again(B).next_ms == 90_000
    state.release(A, 1)
    if not limit:
        state.call(C, op.SetLimit(None, 2))
    assert state.told == [(B, Recheck("n", 1000))]


# -- what it really cost


def test_what_a_permit_cost_less_comes_back_and_serves_the_next() -> None:
    state = Rated(Rate(10, burst=10))
    state.ask(A, 1, 10)
    assert state.ask(A, 2, 4).next_ms == 400
    state.settle(A, 1, asked=10, cost=4)
    assert (state.held[0], state.full_in) == (1, [800])


def test_what_a_permit_cost_more_is_a_debt() -> None:
    state = Rated(Rate(10, burst=10))
    state.ask(A, 1, 1)
    state.settle(A, 1, asked=1, cost=21)
    assert state.full_in == [2100]


def test_a_release_that_comes_twice_settles_once() -> None:
    state = Rated(Rate(10, burst=10))
    state.ask(A, 1, 1)
    for numbers in ([1, 1], [1]):
        state.settle(A, *numbers, asked=1, cost=21)
    assert state.full_in == [2100]


def test_nothing_comes_back_to_a_bucket_that_was_full_since() -> None:
    """It would be granted twice: the bucket could not take it, and lost it."""
    state = Rated(Rate(10, burst=10))
    state.ask(A, 1, 10)
    state.pass_time(1000)
    state.ask(A, 2, 10)
    state.settle(A, 1, asked=10, cost=1)
    assert state.full_in == [1000]


def test_what_a_crashed_process_spent_is_spent() -> None:
    state = Rated(Rate(1, burst=10), limit=1)
    state.ask(A, 1, 10)
    state.ask(B, 1, 1)
    state.pass_time(5000)
    state.lose("holders")
    state.look_again(B)
    assert (state.held[1], state.full_in) == (1, [6000])


def test_lost_keys_allow_one_more_burst_at_most() -> None:
    state = Rated(Rate(1, burst=2))
    for number in range(1, 4):
        state.ask(A, number, 1)
    state.lose("meta")
    for number in range(4, 8):
        state.ask(A, number, 1)
    assert state.held[0] == 4


def test_a_debt_is_kept_while_nobody_holds_or_waits() -> None:
    state = Rated(Rate(1, burst=1))
    for number, cost in enumerate((0, 3000), 1):
        state.ask(A, number, cost)
        state.release(A, number)
    state.pass_time(2_999_000)
    assert state.ask(B, 1, 1).next_ms == 1000


def test_scripts_of_a_semaphore_without_rates_have_none_of_it() -> None:
    assert "rate_told" not in script("fair", "acquire").text
