"""A back-off finds what an upstream bears: what is cut, what is kept, and how the limit rises."""

import pytest

import redsem_async._protocol.operations as op
from redsem_async._core.keys import Mode
from redsem_async._protocol.pushes import Recheck
from tests.scripts.in_memory import HUBS, InMemory
from tests.worlds.look import BackOff

A, B, _ = HUBS
LIMIT = 64
modes = pytest.mark.parametrize("mode", ["fair", "zset", "fair+keys"])


class Fleet(InMemory):
    """Processes, and the back-off of all requests, or of the key that they have."""

    def __init__(self, mode: Mode) -> None:
        super().__init__(mode)
        self.key = "a" if self.address.keyed else None
        self.calls = self.asked = 0

    @property
    def back_off(self) -> BackOff | None:
        return self.look.back_offs.get(self.key)

    def take(
        self, count: int = LIMIT, permits: int = 1, lease_ms: int = 90_000, key: str = "a"
    ) -> list[int]:
        """The tokens of those of *count* requests that are granted at once."""
        numbers = range(self.asked + 1, self.asked + 1 + count)
        self.asked += count
        terms = op.KeyTerms(key) if self.key else None
        options = dict.fromkeys(numbers, op.RequestOptions(permits, waits=False, key=terms))
        said = self.acquire(A, *numbers, limit=LIMIT, lease_ms=lease_ms, options=options)
        return [token for token in said.answers if isinstance(token, int) and token > 0]

    def free(self, hold_ms: int | None = None) -> None:
        if held := self.held_by(A):
            self.release(A, *held, hold_ms=hold_ms)

    def met(self, token: int | None, pause_ms: int = 0, hub: str = A) -> bool:
        """Whether a back-off begins, as *hub* says that a permit met an overload."""
        self.calls += 1
        call = op.StartBackOff(pause_ms, token, self.calls, self.key)
        return self.call(hub, call).answers != [0]

    def most(self) -> int:
        """How many permits may be in use now."""
        self.free()
        count = len(self.take())
        self.free()
        return count


@modes
def test_one_overload_is_one_cut_and_pauses_nobody(mode: Mode) -> None:
    """It halves what is in use: how far beyond the upstream that is, nobody knows yet."""
    fleet = Fleet(mode)
    begun = [fleet.met(token) for token in fleet.take(20)]
    assert begun == [True] + [False] * 19
    assert fleet.most() == 10


@modes
def test_a_told_pause_is_kept_and_then_the_limit_rises_by_time_alone(mode: Mode) -> None:
    """First up to what was kept, doubling; after a rest above it. Nothing is written meanwhile."""
    fleet = Fleet(mode)
    fleet.met(fleet.take(20)[0], 4000)
    begun = fleet.back_off
    slow_start = [(3999, 0), (1, 1), (99, 1), (1, 2), (100, 4), (100, 8), (100, 10)]
    rises = [(3999, 10), (1, 11), (999, 11), (1, 13), (1000, 17), (1000, 25), (1000, 41)]
    for ms, limit in (*slow_start, *rises, (7999, LIMIT)):
        fleet.pass_time(ms)
        assert (fleet.most(), fleet.back_off) == (limit, begun)
    fleet.pass_time(1)
    assert (fleet.most(), fleet.back_off) == (LIMIT, None)


@modes
def test_near_what_was_found_a_cut_is_small(mode: Mode) -> None:
    """In a slow start it is not, because what was found is not in force."""
    fleet = Fleet(mode)
    fleet.met(fleet.take(20)[0])
    fleet.free()
    fleet.met(fleet.take()[-1])
    assert fleet.most() == 9
    fleet.met(fleet.take()[-1], 1000)
    fleet.free()
    fleet.pass_time(1200)
    fleet.met(fleet.take()[-1])
    assert fleet.most() == 2, "half of 4"


@modes
def test_late_refusals_of_an_overload_make_a_told_pause_longer_and_no_more(mode: Mode) -> None:
    """Each would begin the slow start anew."""
    fleet = Fleet(mode)
    first, *late = fleet.take(20)
    assert fleet.met(first, 1000)
    begun = fleet.back_off
    assert begun is not None
    fleet.pass_time(500)
    for pause_ms, ends in ((0, begun.ends), (400, begun.ends), (900, begun.ends + 400)):
        assert not fleet.met(late.pop(), pause_ms, B)
        assert fleet.back_off == begun._replace(ends=ends)
    fleet.pass_time(1200)
    assert not fleet.met(late.pop())
    assert fleet.most() == 8, "which it was"


@modes
def test_where_nothing_is_left_to_cut_the_fleet_pauses_for_longer_each_time(mode: Mode) -> None:
    """Whichever process meets the overload. Two permits in use can be cut to one instead."""
    fleet = Fleet(mode)
    assert fleet.met(fleet.take(1)[0])
    assert fleet.most() == 1
    for pause_ms, hub in (500, A), (1000, B), (2000, A), (2000, B):
        assert fleet.met(fleet.take()[0], hub=hub)
        fleet.pass_time(pause_ms - 1)
        assert fleet.most() == 0
        fleet.pass_time(1)
        assert fleet.most() == 1
    fleet.pass_time(200)
    assert fleet.met(fleet.take(2)[1])
    assert fleet.most() == 1


@modes
@pytest.mark.parametrize(
    ("hold_ms", "used", "pause_ms", "found", "rest"),
    [
        *((None, 20, 0, False, 1200), (200, 20, 0, False, 2400), (5, 20, 0, False, 100)),
        *((5000, 20, 0, False, 30_000), (5, 20, 4000, False, 4000), (5, 20, 4000, True, 20_000)),
        *((5, 20, 9000, True, 30_000), (200, 1, 4000, True, 400), (5, 1, 0, False, 100)),
        (60_000, 1, 0, False, 30_000),
    ],
)
def test_the_limit_rests_at_what_was_found(
    mode: Mode, hold_ms: int | None, used: int, pause_ms: int, found: bool, rest: int
) -> None:
    """For 12 usual holds; or for 5 told pauses, as each probe costs one; but at one permit 2."""
    fleet = Fleet(mode)
    fleet.take(1)
    fleet.free(hold_ms)
    if found:
        fleet.met(fleet.take(2 * used)[0])
        fleet.free()
    fleet.met(fleet.take(used)[0], pause_ms)
    back_off = fleet.back_off
    assert back_off is not None
    assert (back_off.rest, back_off.step) == (rest, min(hold_ms or 100, 30_000))


def test_a_step_is_as_long_as_a_permit_is_held_however_many_a_holder_has() -> None:
    fleet = Fleet("fair")
    fleet.take(1, permits=4)
    fleet.free(2000)  # which is told in ms times permits
    fleet.met(fleet.take(2, permits=4)[0])
    assert fleet.back_off is not None
    assert (fleet.back_off.step, fleet.back_off.kept) == (500, 4)


@modes
def test_a_pause_of_an_operator_keeps_what_was_found_and_the_end_forgets_it(mode: Mode) -> None:
    """Where nothing was found, one permit is what it begins with."""
    fleet = Fleet(mode)
    fleet.met(None, 1000)
    fleet.pass_time(1000)
    assert fleet.most() == 1
    fleet.met(None)
    assert fleet.most() == LIMIT
    fleet.met(fleet.take(20)[0])
    fleet.met(None, 1000)
    fleet.pass_time(1400)
    assert fleet.most() == 10
    fleet.met(None)
    assert fleet.most() == LIMIT


@modes
def test_a_heavy_request_starts_alone_above_the_limit_in_force(mode: Mode) -> None:
    """It would else wait until the limit has risen to it, which takes rests."""
    fleet = Fleet(mode)
    fleet.met(fleet.take(20)[0])
    fleet.free()
    assert fleet.take(1)
    assert not fleet.take(1, permits=12)
    fleet.free()
    assert fleet.take(1, permits=12)
    assert not fleet.take(1)


@modes
@pytest.mark.parametrize("permits", [1, 2])
def test_what_has_expired_is_not_in_use(mode: Mode, permits: int) -> None:
    fleet = Fleet(mode)
    fleet.take(10, permits, lease_ms=1000)
    token = fleet.take(10)[0]
    fleet.pass_time(1000)
    fleet.met(token)
    assert fleet.most() == 5


@pytest.mark.parametrize(("used", "kept"), [(8, 4), (0, 1)])
def test_of_a_key_a_share_of_its_own_use_is_kept(used: int, kept: int) -> None:
    """Also after its block, when none of its permits may be in use any more."""
    fleet = Fleet("fair+keys")
    tokens = fleet.take(max(1, used))
    if not used:
        fleet.free()
    fleet.take(20, key="b")
    fleet.met(tokens[0])
    assert fleet.most() == kept
    assert len(fleet.take(key="b")) == LIMIT


@modes
def test_a_cut_and_a_pause_are_told_to_who_waits(mode: Mode) -> None:
    """Until another time it was told to wait. A pause that is longer it sees when it looks."""
    fleet = Fleet(mode)
    terms = op.KeyTerms("a") if fleet.key else None
    tokens = fleet.take()
    fleet.acquire(B, 1, limit=LIMIT, key=terms)
    for pause_ms, is_told in ((0, True), (0, False), (100, True), (200, False)):
        fleet.met(tokens[0], pause_ms)
        assert fleet.told == [(B, Recheck("n"))] * is_told
