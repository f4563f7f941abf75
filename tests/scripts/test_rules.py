"""What the scripts promise in situations that rarely come together."""

from typing import Any

import pytest

import redsem_async._protocol.operations as op
from redsem_async._core.config import Clock
from redsem_async._core.keys import Mode
from redsem_async._protocol.errors import CommandError, ErrorKind
from redsem_async._protocol.hub_info import UNCOUNTED, HubInfo
from redsem_async._protocol.pushes import Granted, Recheck
from redsem_async._protocol.replies import FULL, FULL_FOR_KEY
from redsem_async._protocol.status import Status, StatusReply
from redsem_async.testing import _redis
from tests.scripts.in_memory import HUBS, INFO, START_US, InMemory

A, B, C = HUBS


def test_a_batch_is_not_run_before_the_one_that_was_sent_before_it() -> None:
    """A younger request would get the older one's turn."""
    state = InMemory("fair")
    state.acquire(A, 1, limit=2)
    early = op.Acquire([5], 90_000, 2, after=4)
    said = state.answer(A, early)
    assert isinstance(said, CommandError) and said.kind is ErrorKind.RETRY_NOW
    state.acquire(A, 4, limit=2)
    assert state.call(A, early).answers == [0]


@pytest.mark.parametrize("mode", ["fair", "fair+keys", "fair+share"])
def test_no_request_of_a_process_that_is_gone_counts(mode: Mode) -> None:
    """Also those that stand behind the head, which holds the line up."""
    state = InMemory(mode)
    for hub, *numbers in ((C, 1), (A, 1), (B, 1, 2), (A, 2, 3, 4)):
        state.acquire(hub, *numbers)
    state.present.discard(A)
    if state.release(C, 1).next_ms == 0:
        state.call(C, op.Reap())
    assert state.held_by(B) == [1]
    for number in (3, 6):
        assert state.heartbeat(B).waiting == 1
        assert not any(state.acquire(B, number, max_waiters=2).answers)
        state.call(B, op.Abandon([op.QueuedRequest(number, 90_000, 1)]))
    state.present.add(A)
    asked = [op.QueuedRequest(number, 90_000, 1) for number in (1, 2)]
    assert state.heartbeat(A, 90_000, *asked).answers == [-1, -1], "it asks again"


@pytest.mark.parametrize("mode", ["fair", "fair+keys"])
def test_status_leaves_out_requests_of_the_dead(mode: Mode) -> None:
    """Although nothing has removed them yet."""
    state = InMemory(mode)
    key = op.KeyTerms("a", limit=1) if state.address.keyed else None
    state.acquire(C, 1, key=key)
    state.acquire(A, 1, 2, key=key, lease_ms=1000)
    state.acquire(B, 1, key=key)
    state.pass_time(5000)
    for most in (0, 9):
        answer = state.answer(C, Status(most))
        assert isinstance(answer, StatusReply)
        status = answer.status
        assert status.waiting == 1
        assert [waiter.id for waiter in status.waiters] == [f"{B}.1"][:most]
        assert [each.waiting for each in status.keys] == [1] * bool(key and most)
    assert len(state.kept["queue"]) == 3


@pytest.mark.parametrize("mode", ["fair+share", "fair+share+slots"])
def test_who_holds_keeps_its_share_when_an_empty_line_is_deleted(mode: Mode) -> None:
    """Nothing was lost, so nothing is written anew."""
    state = InMemory(mode)
    state.acquire(A, 1, key=op.KeyTerms("a"))
    assert state.kept["meta"]["virtual:a"] == "1.000000"
    before = state.kept["uses"], state.kept["meta"]
    state.lose("queue")
    state.call(A, op.Reap())
    assert (state.kept["uses"], state.kept["meta"]) == before
    assert not state.without_expiry


@pytest.mark.parametrize("mode", ["fair", "zset"])
def test_nothing_is_left_of_a_hub_that_is_silent_for_long(mode: Mode) -> None:
    """Its numbers and who it was are forgotten once nothing of it can arrive any more."""
    state = InMemory(mode)
    state.acquire(A, 1, lease_ms=1000)
    state.release(A, 1)
    state.pass_time(80_000)
    state.acquire(B, 1, lease_ms=1000)
    found = {name[:32] for kind in ("meta", "hubs") for name in state.kept[kind]}
    assert B in found
    assert A not in found


@pytest.mark.parametrize("mode", ["fair", "fair+share", "zset"])
def test_what_nobody_counts_may_have_been_received(mode: Mode) -> None:
    """Until the hub was silent for long, it is there, whatever PUBLISH says."""
    state = InMemory(mode)
    state.acquire(A, 1, lease_ms=1000)
    state.acquire(B, 1, info=HubInfo("x", UNCOUNTED))
    state.present.discard(B)
    state.release(A, 1)
    assert state.held_by(B) == [1]


def test_nothing_is_granted_to_who_died_since_the_queue_was_looked_through() -> None:
    """The first one died a moment before the second."""
    state = InMemory("fair")
    state.acquire(C, 1)
    state.acquire(A, 1, lease_ms=1000)
    state.pass_time(450)
    state.acquire(B, 1, lease_ms=1000)
    state.pass_time(3310)  # the first one counts as dead since 10 ms
    state.heartbeat(C)
    state.pass_time(500)  # and now the second one, too
    state.release(C, 1)
    assert not state.look.holders


@pytest.mark.parametrize(
    ("mode", "clock", "ms", "served"),
    [
        ("zset", "server", 50, [2]),
        ("zset", "server", 51, []),
        ("zset+slots", "server", 50, [2]),
        ("zset+slots", "server", 51, []),
        ("zset", "local", 50, []),
        ("fair", "server", 50, []),
    ],
)
@pytest.mark.parametrize("hold_ms", [None, 7])
def test_a_process_serves_its_own_while_the_oldest_is_young(
    mode: Mode, clock: Clock, ms: int, served: list[int], hold_ms: int | None
) -> None:
    """By the quick path, and by the general one, which a hold is told on."""
    state = InMemory(mode, clock)
    for hub, number in ((A, 1), (B, 1), (A, 2)):
        state.acquire(hub, number)
    state.heartbeat(A)  # the queue is looked through
    state.pass_time(ms)
    own = [op.QueuedRequest(2, 90_000, 1)] * (not state.address.fair)
    state.release(A, 1, hold_ms=hold_ms, waits=True, own=own)
    assert state.held_by(A) == served


def test_in_zset_mode_what_fits_is_granted_beside_what_does_not() -> None:
    """In one command, and in the queue when nothing is known of it."""
    state = InMemory("zset")
    state.acquire(A, 1, 2, limit=3)
    heavy = {1: op.RequestOptions(2), 3: op.RequestOptions(3)}
    said = state.acquire(B, 1, 2, limit=3, options=heavy)
    assert [bool(token) for token in said.answers] == [False, True]
    state.acquire(B, 3, 4, limit=3, options=heavy)
    state.call(A, op.SetLimit(4, 1))
    assert state.held_by(B) == [2, 4]


@pytest.mark.parametrize("mode", ["fair+keys", "fair+share"])
def test_who_does_not_wait_and_finds_its_key_full_lets_nobody_pass(mode: Mode) -> None:
    """With a head start, it would be in the line of its key for a moment, and hold that up."""
    state = InMemory(mode)
    wide, other = op.KeyTerms("a", 5), op.KeyTerms("b", 5)
    state.acquire(A, 1, limit=5, key=wide)
    state.acquire(A, 2, 3, 4, limit=5)
    state.acquire(C, 1, limit=5, permits=2, key=wide)  # the limit holds it up, and all behind it
    state.pass_time(1)  # with share, its patience has ended
    state.acquire(C, 2, limit=5, key=other)
    narrow = op.RequestOptions(waits=False, ahead_ms=30_000, key=op.KeyTerms("a", 1))
    said = state.acquire(B, 1, limit=5, options={1: narrow})
    assert (said.answers, said.competing_keys) == ([FULL_FOR_KEY], 2)
    assert not state.held_by(C)


@pytest.mark.parametrize("mode", ["zset", "fair+keys"])
def test_who_waits_is_told_of_a_newcomer_that_expires_earlier(mode: Mode) -> None:
    """The next moment that it knows is the end of a longer lease."""
    state = InMemory(mode)
    key = op.KeyTerms("a", 1) if state.address.keyed else None
    state.acquire(A, 1, limit=2, key=key)
    state.acquire(B, 1, limit=2, permits=1 if key else 2, key=key)
    state.acquire(C, 1, limit=2, lease_ms=2000)
    assert state.told == [(B, Recheck("n"))]


def test_the_hubs_that_died_first_are_forgotten_first() -> None:
    """A few in each call, so that many killed processes make no call long."""
    state = InMemory("fair")
    hubs = [f"{number:032x}" for number in range(1, 13)]
    for number, hub in enumerate(hubs):
        state.acquire(hub, 1, limit=20, lease_ms=20_000 - 1000 * number)
    state.pass_time(95_000)
    state.acquire(A, 1, limit=20, lease_ms=1000)
    assert state.kept["hubs"].keys() == {A, *hubs[:2]}


def test_the_first_in_line_looks_at_the_next_expiry() -> None:
    """A detached permit may outlast the liveness of who waits."""
    state = InMemory("fair")
    state.acquire(A, 1, lease_ms=1000)
    state.call(A, op.Detach(1, 60_000, 1))
    said = state.acquire(B, 1, lease_ms=1000)
    assert (said.answers, said.next_ms) == ([0], 60_000)


@pytest.mark.parametrize("mode", ["fair+keys", "fair+share"])
def test_the_back_off_of_a_key_for_which_a_request_waits_outlasts_a_loss(mode: Mode) -> None:
    """When it ends was evicted with `ramps`, and is known in `meta`."""
    state, key = InMemory(mode), op.KeyTerms("a")
    state.acquire(A, 1, key=key)
    state.call(A, op.StartBackOff(4000, None, 1, "a"))
    assert state.acquire(B, 1, key=key).answers == [-4]
    state.release(A, 1)
    state.lose("ramps")
    state.call(A, op.Reap())
    assert not state.held_by(B)
    assert not state.without_expiry
    state.pass_time(4000)
    state.call(A, op.Reap())
    assert state.held_by(B) == [1]


@pytest.mark.parametrize("mode", ["fair", "zset", "fair+keys", "fair+slots"])
def test_nothing_is_granted_until_holders_whose_facts_were_lost_have_ended(mode: Mode) -> None:
    """It is not known what they hold: to refuse one is better than to exceed a limit."""
    state = InMemory(mode)
    state.acquire(A, 1, 2, limit=4)
    state.lose("facts")
    assert state.call(A, op.Refresh([1, 2], 90_000)).answers == [0, 0]
    assert state.acquire(B, 1, limit=4).answers == [0]
    state.release(A, 1)
    assert not state.held_by(B)
    state.release(A, 2)
    assert state.held_by(B) == [1]


@pytest.mark.parametrize("mode", ["fair", "fair+keys"])
def test_who_asks_again_is_not_refused_by_the_bound_of_the_queue(mode: Mode) -> None:
    """It had its place, which its process lost by no fault of its own."""
    state = InMemory(mode)
    state.acquire(A, 1)
    state.acquire(B, 1)
    options = {2: op.RequestOptions(asked_us=1)}  # which is long ago
    assert state.acquire(C, 1, max_waiters=1).answers == [-3]
    assert state.acquire(C, 2, max_waiters=1, options=options, now_us=2).answers == [0]


@pytest.mark.parametrize("lost", [False, True])
def test_a_head_that_need_not_wait_holds_up_nobody_behind_it(lost: bool) -> None:
    """It can never be served, or at once since the holders were lost. Nothing else looks at it."""
    state = InMemory("fair")
    state.acquire(A, 1)
    state.acquire(B, 1, limit=0)
    state.heartbeat(B)  # the queue is looked through
    state.acquire(B, 2, limit=1 if lost else 0)
    if lost:
        state.lose("holders")
    state.acquire(A, 2, limit=2)
    assert state.held_by(A) == ([2] if lost else [1, 2])
    assert state.held_by(B) == ([2] if lost else [])


def test_uses_that_are_counted_anew_live_as_long_as_who_holds() -> None:
    """Otherwise each minute of a long lease would count them anew."""
    state = InMemory("fair+keys")
    state.acquire(A, 1, lease_ms=900_000, key=op.KeyTerms("a"))
    state.lose("uses")
    state.acquire(B, 1)  # and the judge looks at when keys end


@pytest.mark.parametrize("mode", ["fair+keys", "fair+share"])
@pytest.mark.parametrize("lost", ["ready", "turns"])
@pytest.mark.parametrize("call", [op.Adopt(A, 1, 9, 90_000, INFO, 1), op.SetLimit(3, 1, "a")])
def test_a_call_that_looks_at_one_key_does_not_hide_a_loss(
    mode: Mode, lost: str, call: op.AnyOperation
) -> None:
    """Other keys that were ready would not be looked at any more."""
    state = InMemory(mode)
    a, b = (op.KeyTerms(key, 5) for key in "ab")
    state.acquire(A, 1, 2, limit=2, options=dict.fromkeys((1, 2), op.RequestOptions(key=a)))
    state.acquire(C, 1, limit=2, key=a)
    state.acquire(B, 1, limit=2, key=b)
    state.lose(lost)
    state.answer(C, call)
    assert not state.without_expiry
    for hub in (A, C):
        state.release(hub, *state.held_by(hub))
    assert state.held_by(B) == [1]


@pytest.mark.parametrize("mode", ["fair+keys", "fair+share"])
def test_after_the_back_off_of_a_key_a_queue_of_many_keys_is_served(mode: Mode) -> None:
    """It ended while nobody waited. Each call would begin anew to look at all lines."""
    state = InMemory(mode)
    state.call(A, op.StartBackOff(1000, None, 1, "a"))
    state.pass_time(20_000)
    state.acquire(A, 1)
    state.pass_time(20_000)
    queue_with_many_keys(state)
    state.release(A, 1)
    state.call(A, op.Reap())
    assert state.held_by(B) == [1]


def queue_with_many_keys(state: InMemory, limit: int = 1) -> None:
    for first in range(1, 250, 25):
        numbers = range(first, first + 25)
        keys = {number: op.RequestOptions(key=op.KeyTerms(f"k{number}")) for number in numbers}
        state.acquire(B, *numbers, limit=limit, options=keys)


@pytest.mark.parametrize("mode", ["fair+keys", "fair+share"])
@pytest.mark.parametrize("call", [op.StartBackOff(2000, None, 2, "b"), op.Reap()])
def test_the_back_off_of_a_key_goes_on_although_ramps_were_lost(
    mode: Mode, call: op.AnyOperation
) -> None:
    """`meta` has it, and another back-off does not hide the loss."""
    state = InMemory(mode)
    state.call(A, op.StartBackOff(4000, None, 1, "a"))
    state.lose("ramps")
    state.call(A, call)
    assert state.acquire(B, 1, key=op.KeyTerms("a")).answers == [-4]
    state.pass_time(4000)
    state.call(A, op.Reap())
    assert state.held_by(B) == [1]


@pytest.mark.parametrize("mode", ["fair", "zset", "fair+keys"])
def test_a_lease_after_a_deletion_is_as_long_as_asked_although_the_clock_was_set_back(
    mode: Mode,
) -> None:
    """The counter stays. The clock would follow it with the second call, past the lease."""
    state = InMemory(mode)
    state.acquire(A, 1)
    state.pass_time(-3_600_000)
    state.heartbeat(A)
    state.answer(A, op.Delete(1))
    state.acquire(A, 2)
    assert state.call(A, op.Refresh([2], 90_000)).answers == [1]


@pytest.mark.parametrize("mode", ["fair+keys", "fair+share"])
@pytest.mark.parametrize("call", [op.Reap(), op.SetLimit(0, 2, "b")])
def test_who_waits_for_a_paused_key_is_served_once_the_limits_of_keys_are_lost(
    mode: Mode, call: op.AnyOperation
) -> None:
    """Nothing else would look at the key again, because none of its permits is in use."""
    state = InMemory(mode)
    state.call(A, op.SetLimit(0, 1, "a"))
    assert state.acquire(B, 1, limit=2, key=op.KeyTerms("a")).answers == [-4]
    state.lose("key-limits")
    state.call(A, call)
    assert state.held_by(B) == [1]


@pytest.mark.parametrize("mode", ["fair", "zset", "fair+keys"])
@pytest.mark.parametrize("limit", [1, 2])
def test_who_holds_does_not_ask_again_although_its_mark_was_lost(mode: Mode, limit: int) -> None:
    """The reply was lost with the connection, and the hub was introduced by its heartbeat."""
    state = InMemory(mode)
    state.acquire(A, 1, limit=limit)
    before = state.look.live
    state.lose("meta")
    state.call(A, op.Heartbeat(90_000, hub_info=INFO))
    state.answer(A, op.Acquire([1], 90_000, limit))
    assert state.look.live == before
    assert not state.look.line


@pytest.mark.parametrize("mode", ["fair", "zset", "fair+keys", "fair+share"])
def test_many_processes_that_are_gone_make_no_call_long(mode: Mode) -> None:
    """After a failover no message reaches any of them, and thousands may wait."""
    state = InMemory(mode)
    state.acquire(C, 1)
    hubs = [f"{number:032x}" for number in range(1, 101)]
    for hub in hubs:
        state.acquire(hub, 1)
    state.acquire(B, 1)
    said = state.release(C, 1)
    while not state.held_by(B):
        assert len(state.told) < 10
        assert said.next_ms == 0
        said = state.call(C, op.Reap())
    assert said.waiting == 0


@pytest.mark.parametrize("mode", ["fair+keys", "fair+share", "fair+keys+slots"])
@pytest.mark.parametrize("lost", ["lines", "queue"])
def test_a_long_line_that_is_lost_is_dropped(mode: Mode, lost: str) -> None:
    """Both of what is kept of it go, and nobody waits behind what is left."""
    state, (here, waiter, _) = InMemory(mode), HUBS
    state.call(here, op.SetLimit("pause", 1))
    for first in range(1, 2000, 200):
        numbers = range(first, first + 200)
        every = {n: op.RequestOptions(key=op.KeyTerms(f"k{n % 1500}", 1)) for n in numbers}
        state.acquire(waiter, *numbers, lease_ms=600_000, options=every)
    state.lose(lost)
    state.call(here, op.SetLimit("resume", 2))
    assert state.call(here, op.Reap()).waiting == 0
    assert state.acquire(here, 1).answers[0], "nobody is before it"
    asked = op.QueuedRequest(1, 600_000, 1)
    assert state.heartbeat(waiter, 600_000, asked).answers == [-1]


def test_the_tokens_of_a_message_that_nobody_counted_are_not_issued_again() -> None:
    """It may have arrived all the same."""
    state = InMemory("fair")
    state.acquire(A, 1)
    state.acquire(B, 1)
    state.present.discard(B)
    state.release(A, 1)
    [(_, lost)] = state.told
    assert isinstance(lost, Granted)
    [token] = state.acquire(C, 1).answers
    assert isinstance(token, int) and token > lost.grants[0][1].token


def test_a_request_that_does_not_wait_leaves_no_place_in_the_queue() -> None:
    """Not even where it stood in the queue for a moment, because of its head start."""
    state, at_once = InMemory("fair"), {1: op.RequestOptions(waits=False, ahead_ms=1)}
    state.acquire(A, 1, limit=2)
    state.acquire(B, 1, limit=2, permits=2)
    state.pass_time(1000)
    assert state.acquire(C, 1, limit=2, options=at_once).answers == [FULL]
    assert len(state.look.line) == 1


def test_a_request_that_left_the_queue_again_blocks_nobody_behind_it() -> None:
    """It was first because of its head start, and too heavy for what a back-off leaves."""
    state, at_once = InMemory("fair"), op.RequestOptions(2, waits=False, ahead_ms=1)
    state.acquire(A, 1, limit=4)
    state.call(A, op.StartBackOff(1000, call=1))
    state.pass_time(1200)  # the limit in force is 2
    refused, _ = state.acquire(C, 1, 2, limit=4, options={1: at_once}).answers
    assert (refused, state.held_by(C)) == (FULL, [2])


def test_a_release_serves_none_of_its_own_requests_that_left_the_queue() -> None:
    state = InMemory("zset")
    state.acquire(A, 1, 2, limit=2)
    state.acquire(A, 3, 4, 5, limit=2)
    own = [op.QueuedRequest(number, 90_000, 2) for number in (3, 4)]
    state.call(A, op.Abandon(own[:1]))
    state.pass_time(1)
    state.release(A, 1, 2, own=own)
    assert state.held_by(A) == [4, 5]


@pytest.mark.parametrize("mode", ["fair", "fair+keys"])
@pytest.mark.parametrize("refreshes", [True, False])
def test_requests_of_a_killed_process_go_together_although_a_stray_receives_its_messages(
    mode: Mode, refreshes: bool
) -> None:
    """After one lease, and not one a lease: PUBLISH counts whoever subscribes to patterns."""
    state = InMemory(mode)
    for hub, *numbers in ((C, 1), (A, 1, 2), (B, 1)):
        state.acquire(hub, *numbers, lease_ms=90_000 if hub == C else 10_000)
    state.release(C, 1)
    if refreshes:
        state.call(A, op.Refresh([1], 10_000))
    state.pass_time(10_000)
    state.call(C, op.Reap())
    assert (state.held_by(A), state.held_by(B)) == (([2], []) if refreshes else ([], [1]))


@pytest.mark.parametrize("mode", ["fair+keys", "fair+share"])
def test_who_waits_for_a_key_is_served_once_all_that_held_it_up_is_lost(mode: Mode) -> None:
    """Nothing in use, by what is held and by what is counted for keys, would seem right."""
    state, key = InMemory(mode), op.KeyTerms("a", 1)
    state.acquire(A, 1, limit=2, key=key)
    state.acquire(B, 1, limit=2, key=key)
    state.lose("holders", "facts", "uses")
    state.heartbeat(B)
    assert state.held_by(B) == [1]


@pytest.mark.parametrize("mode", ["fair", "zset", "fair+keys"])
def test_facts_without_a_holder_are_no_permits_in_use(mode: Mode) -> None:
    """Of a script that failed between the two, while another permit is held."""
    state, key = InMemory(mode), op.KeyTerms("a", 4)
    state.acquire(A, 1, limit=4)
    state.server._redis.command("HSET", state.address.keys[1], f"{C}.9", "1:3::a")
    assert all(state.acquire(B, 1, 2, 3, limit=4, key=key if "keys" in mode else None).answers)
    assert state.kept["facts"].keys() == state.kept["holders"].keys()


@pytest.mark.parametrize("holds", [True, False])
def test_order_and_expiries_outlast_meta_although_the_clock_was_set_back(holds: bool) -> None:
    """The counter, and the clock with it, is known from who holds or waits."""
    state, token = InMemory("fair"), None
    if holds:
        token = state.acquire(A, 1, lease_ms=2000).answers[0]
    else:
        state.call(A, op.SetLimit(0, 1))
        state.acquire(B, 1)
    state.pass_time(-100_000)
    state.lose("meta")
    if holds:
        later = state.acquire(B, 1, limit=2).answers[0]
        assert isinstance(token, int)
        assert isinstance(later, int) and later > token
    state.acquire(C, 1, limit=2 if holds else 1)
    state.pass_time(2000)
    state.call(A, op.Reap() if holds else op.SetLimit(None, 2))
    assert (state.held_by(A), state.held_by(B), state.held_by(C)) == ([], [1], [1] * holds)


@pytest.mark.parametrize("mode", ["fair+keys", "fair+share"])
def test_requests_of_a_key_that_are_too_heavy_are_read_once(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many. A lighter one behind them is found, and its key's next does not pass it."""
    state, key, read = InMemory(mode), op.KeyTerms("a"), list[int]()
    state.call(A, op.SetLimit(1, 1))
    state.acquire(A, 1)
    for first in range(1, 1250, 250):
        state.acquire(B, *range(first, first + 250), limit=2, permits=2, key=key)
    rows = _redis.MemoryRedis.zrangebylex

    def counted(*command: Any) -> list[bytes | None]:
        read.append(len(found := rows(*command)))
        return found

    state.acquire(C, 1, limit=2, key=key)
    monkeypatch.setitem(_redis._COMMANDS, b"ZRANGEBYLEX", counted)
    state.acquire(C, 2, limit=2, key=key)
    assert sum(read) < 10
    said = state.release(A, 1)
    assert state.acquire(C, 3, limit=2, key=key).answers == [0]
    while said.next_ms == 0:
        said = state.call(A, op.Reap())
    assert state.held_by(C) == [1]


def test_who_asks_again_keeps_the_order_of_the_calls_however_long_each_batch_takes() -> None:
    """Their places are moments of the calls, and not their ages when they arrive."""
    state, first_us = InMemory("fair"), 5_000_000  # by the clock of their process
    state.acquire(A, 1)
    for nth, delay_ms in enumerate((50, 40, 0, 30, 20, 10)):
        numbers = range(100 * nth + 1, 100 * nth + 101)
        asked = {n: op.RequestOptions(asked_us=first_us + n) for n in numbers}
        sent_ms = 9000 + 60 * nth
        state.now_us = START_US + 1000 * (sent_ms + delay_ms)
        state.acquire(B, *numbers, options=asked, now_us=first_us + 1000 * sent_ms)
    assert [waiter.request.number for waiter in state.look.line] == [*range(1, 601)]


def test_requests_of_the_dead_are_dropped_once_hubs_is_lost() -> None:
    """They would be counted until they are the first, and others be refused because of them."""
    state, own = InMemory("fair"), op.QueuedRequest(2, 90_000, 1)
    for hub, number in ((C, 1), (C, 2), (A, 1)):
        state.acquire(hub, number)
    state.lose("hubs")
    assert state.heartbeat(C, 90_000, own).waiting == 1


def test_who_asks_again_after_the_clock_jumped_passes_nobody_that_came_before() -> None:
    """The offset of a process's clock is measured anew."""
    state, asked = InMemory("fair"), op.RequestOptions(asked_us=5_000_000)
    state.acquire(A, 1)
    for number in (1, 2):
        state.acquire(B, number, options={number: asked}, now_us=asked.asked_us)
        state.pass_time(10_000)  # by the clock of the server alone
        state.acquire(C, number)
        state.pass_time(1)
    assert [waiter.id for waiter in state.look.line] == [f"{B}.1", f"{C}.1", f"{B}.2", f"{C}.2"]


def test_heartbeats_keep_the_place_of_who_waits_for_long() -> None:
    """The queue would expire, and all who wait would have to ask again."""
    state, waiter = InMemory("fair"), op.QueuedRequest(1, 10_000, 1)
    state.acquire(A, 1, lease_ms=10_000_000)
    state.acquire(B, 1, lease_ms=10_000)
    for _ in range(50):
        state.pass_time(10_000)
        assert state.heartbeat(B, 10_000, waiter).answers == [0]


@pytest.mark.parametrize("mode", ["fair", "fair+keys"])
def test_an_acquire_that_is_late_holds_nothing_although_the_mark_was_lost(mode: Mode) -> None:
    """A hub that is introduced anew says which numbers it will not send any more."""
    state = InMemory(mode)
    late = op.Acquire([1], 90_000, 2)
    state.acquire(A, 1, 2, limit=2)
    state.release(A, 1, 2)
    state.lose("meta")
    state.call(A, op.Heartbeat(90_000, hub_info=HubInfo("x", used=2)))
    assert state.call(A, late).answers == [-1]


def test_a_change_that_was_given_up_is_void_although_a_later_call_has_run() -> None:
    state = InMemory("fair")
    state.acquire(A, 1)
    state.call(A, op.Detach(1, 9000, call=3))
    state.call(A, op.Abandon([], void_change=2))
    state.answer(A, op.SetLimit(0, 2))
    assert not state.kept["limit"]


@pytest.mark.parametrize("mode", ["fair+keys", "fair+share"])
def test_who_joins_before_heavy_requests_of_the_same_call_is_not_passed_over(mode: Mode) -> None:
    """A request between them that may not wait has the heavy ones read before."""
    state = InMemory(mode)
    state.call(A, op.SetLimit(2, 1))
    state.acquire(A, 1)
    state.acquire(A, 2, permits=2)
    state.pass_time(900)
    key, asked = op.KeyTerms("a"), op.RequestOptions
    options = {
        1: asked(3, ahead_ms=800, key=key),
        2: asked(3, key=key),
        3: asked(waits=False, ahead_ms=100, key=op.KeyTerms("b")),
        4: asked(ahead_ms=400, key=key),
    }
    state.acquire(B, *options, options=options)
    state.call(A, op.Abandon([op.QueuedRequest(2, 90_000, 1, 2)]))
    state.release(A, 1)
    assert 4 in state.held_by(B)


@pytest.mark.parametrize("key", [None, "a"])
def test_overloads_of_one_heavy_permit_cut_until_they_pause(key: str | None) -> None:
    """It may be more than the limit in force, which an overload never raises."""
    state, terms = InMemory("fair+keys"), op.KeyTerms("a") if key else None
    kept: list[object] = []
    for number in range(1, 6):
        token = state.acquire(A, number, limit=9, permits=8, key=terms).answers[0]
        assert isinstance(token, int)
        state.pass_time(1)
        said = state.call(A, op.StartBackOff(0, token, number, key))
        kept += said.answers
        state.pass_time(1)
        state.release(A, number)
    assert kept == [4, 3, 2, 1, 1]
    assert state.acquire(A, 9, limit=9, permits=8, key=terms).answers == [-4 if key else 0]
