"""The search for an order: what it must see, and what real clients saw."""

import asyncio
import math
import random
import time
from contextlib import AsyncExitStack

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, Permit, Semaphore
from redsem_async._keys import Mode
from tests.checkers.linearize import Operation, Result, TooLong, linearize
from tests.checkers.recorder import Recorder

MODES: tuple[Mode, Mode] = ("fair", "zset")


def granted(
    called: float, returned: float, token: int, *, limit: int = 1, permits: int = 1
) -> Operation:
    return Operation("A", called, returned, Result.GRANTED, limit, permits, token)


def unknown(called: float, *, limit: int = 1, permits: int = 1) -> Operation:
    return Operation("U", called, math.inf, Result.UNKNOWN, limit, permits)


def full(called: float, returned: float, *, limit: int = 1) -> Operation:
    return Operation("F", called, returned, Result.FULL, limit)


def released(
    of: Operation, called: float, returned: float, *, held: bool = True, lost: bool = False
) -> Operation:
    result = Result.RELEASED if held else Result.NOT_HELD
    return Operation("A", called, returned, result, of=of, lost=lost)


@pytest.mark.parametrize("mode", MODES)
def test_what_may_happen_is_let_pass(mode: Mode) -> None:
    """A judge that lets nobody off is none."""
    first = granted(0, 1, 10)
    assert linearize([first], mode).fine
    assert linearize([first, released(first, 2, 4), granted(3, 5, 11)], mode).fine
    assert linearize([first, full(0.5, 2), released(first, 2, 4)], mode).fine
    # It is refused by one that was cancelled meanwhile, and may have been granted unheard.
    assert linearize([unknown(0), full(1, 2), granted(3, 4, 11)], mode).fine
    # Nobody may trust it from 5 on: it ends by itself, and is released in vain.
    first.trusted_until = 5
    late = released(first, 8, 9, held=False, lost=True)
    assert linearize([first, granted(2, 6, 11), late], mode).fine
    # An answer that never came says nothing.
    gone = Operation("A", 2, math.inf, Result.UNKNOWN, of=first)
    assert linearize([first, gone, granted(3, 4, 11)], mode).fine


@pytest.mark.parametrize("mode", MODES)
def test_over_admission_is_seen(mode: Mode) -> None:
    first, second = granted(0, 1, 10), granted(0.5, 2, 11)
    assert not linearize([first, second], mode).fine
    assert not linearize([first, second, released(first, 3, 4), released(second, 3, 4)], mode).fine
    heavy, light = granted(0, 1, 10, limit=3, permits=2), granted(0, 1, 11, limit=3, permits=2)
    assert not linearize([heavy, light], mode).fine
    light.permits = 1
    assert linearize([heavy, light], mode).fine
    # Mixed limits: the second was asked for under a limit of 1.
    wide, narrow = granted(0, 1, 10, limit=2), granted(2, 3, 11, limit=1)
    assert not linearize([wide, narrow], mode).fine
    narrow.limit = 2
    assert linearize([wide, narrow], mode).fine
    # It could be trusted until 5, and was granted to another before.
    first.trusted_until = 5
    assert not linearize([first, granted(2, 4, 11)], mode).fine


@pytest.mark.parametrize("mode", MODES)
def test_a_permit_released_twice_is_seen(mode: Mode) -> None:
    first = granted(0, 1, 10)
    once = released(first, 2, 3)
    assert linearize([first, once, released(first, 4, 5, held=False)], mode).fine
    assert not linearize([first, once, released(first, 4, 5)], mode).fine
    # One that was never given back is not held: where did it go?
    assert not linearize([first, released(first, 4, 5, held=False)], mode).fine
    # Lost, and gone to another, before it is reported as released.
    first.trusted_until = 5
    other = granted(6, 7, 11)
    assert linearize([first, other], mode).fine
    assert not linearize([first, other, released(first, 8, 9)], mode).fine


@pytest.mark.parametrize("mode", MODES)
def test_a_token_that_goes_back_is_seen(mode: Mode) -> None:
    first = granted(0, 1, 10)
    back = released(first, 2, 3)
    assert linearize([first, back, granted(2.5, 4, 11)], mode).fine
    assert not linearize([first, back, granted(2.5, 4, 9)], mode).fine
    assert not linearize([first, back, granted(2.5, 4, 10)], mode).fine
    # Asked at the same time, in either order.
    assert linearize([granted(0, 5, 11, limit=2), granted(1, 5, 10, limit=2)], mode).fine


@pytest.mark.parametrize("mode", MODES)
def test_a_refusal_with_room_is_seen(mode: Mode) -> None:
    first = granted(0, 1, 10)
    assert not linearize([full(0, 1)], mode).fine
    assert not linearize([first, released(first, 2, 3), full(4, 5)], mode).fine


def test_overtaking_is_seen() -> None:
    """First come, first served, where it is known who came first."""

    def history(**known: float) -> list[Operation]:
        first = granted(0, 1, 10)
        early, late = granted(2, 9, 12), granted(4, 8, 11)
        early.who, late.who = "early", "late"
        early.known_by = known.get("by", math.inf)
        return [first, released(first, 5, 6), early, late, released(late, 8, 9)]

    assert linearize(history(), "fair").fine, "the late one may have been first in line"
    assert not linearize(history(by=3), "fair").fine
    assert linearize(history(by=3), "zset").fine, "who asks when there is room gets it"
    # A heavy one that does not fit blocks the line, unless it is above the limit.
    heavy = Operation("heavy", 2, math.inf, Result.UNKNOWN, 2, 2, known_by=3)
    first, light = granted(0, 1, 10, limit=2), granted(4, 5, 11, limit=2)
    assert linearize([first, heavy, light], "fair").fine, "it may have left the line"
    heavy.result, heavy.returned, heavy.token = Result.GRANTED, 9, 12
    assert not linearize([first, heavy, light, released(first, 6, 7)], "fair").fine


def test_a_search_that_takes_too_long_is_given_up() -> None:
    """It says so, and calls nothing fine that it has not seen."""
    many = [granted(0, 100, 100 + i, limit=20) for i in range(12)]
    assert linearize(many, "zset").fine
    bad = [*many, *(unknown(0, limit=20) for _ in range(9)), full(200, 201, limit=30)]
    with pytest.raises(TooLong):
        linearize(bad, "zset", most=2000)


class Episode:
    """A few clients and one fresh semaphore, for a moment."""

    def __init__(self, clients: list[Redis], kind: type[AnySemaphore], name: str, seed: int):
        self.random = random.Random(seed)
        self.recorder = Recorder()
        limits = self.random.choice([(1, 1, 1), (2, 2, 2), (2, 2, 2), (2, 1, 3)])
        self.semaphores = [
            kind(client, name, limit, lease=self.random.choice([0.15, 10.0]))
            for client, limit in zip(clients, limits, strict=True)
        ]

    async def run(self) -> None:
        users = [self._user(i, f"{'ABC'[i % 3]}{i}") for i in range(5)]
        await asyncio.gather(*users)

    async def _user(self, i: int, who: str) -> None:
        dice, semaphore = self.random, self.semaphores[i % 3]
        for _ in range(2):
            await asyncio.sleep(dice.choice([0, 0.001, 0.004]))
            timeout = dice.choice([None, None, None, 0, 0.003])
            permits = min(dice.choice([1, 1, 2]), semaphore.limit)
            asking = asyncio.create_task(
                self.recorder.acquire(semaphore, who, timeout=timeout, permits=permits)
            )
            fate = dice.random()
            if fate < 0.25:
                await asyncio.sleep(dice.choice([0, 0.001, 0.002]))
                asking.cancel()
            elif fate < 0.5:
                await asyncio.sleep(0)
                await self.recorder.in_line(semaphore)
            (done,) = (await asyncio.wait([asking]))[0]
            permit = None if done.cancelled() else done.result()
            if permit is not None:
                await self._use(semaphore, permit, who)

    async def _use(self, semaphore: AnySemaphore, permit: Permit, who: str) -> None:
        dice, recorder = self.random, self.recorder
        await asyncio.sleep(dice.choice([0, 0.001, 0.003]))
        recorder.look(permit)
        fate = dice.random()
        if fate < 0.1:
            await recorder.detach(permit, 0.06)
        elif fate < 0.2:
            other = dice.choice([s for s in self.semaphores if s is not semaphore])
            await recorder.release_by_id(other, permit, f"{who} by another")
            await recorder.release(permit, who)
        else:
            await recorder.release(permit, who)
            if fate < 0.4:
                await recorder.release(permit, who)


@pytest.mark.parametrize("kind", [Semaphore, FairSemaphore], ids=["zset", "fair"])
async def test_what_real_clients_see_can_be_put_in_order(
    kind: type[AnySemaphore], server_url: str, name: str
) -> None:
    """Many short histories, with cancellations, timeouts and leases that run out."""
    mode: Mode = "fair" if kind is FairSemaphore else "zset"
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    histories: list[list[Operation]] = []
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Redis.from_url(server_url)) for _ in range(3)]
        started, stalls = time.monotonic(), 0
        while time.monotonic() - started < 1.5 or len(histories) < 36:
            first = len(histories)
            episodes = [
                Episode(clients, kind, f"{name}-{first + i}", seed + first + i) for i in range(6)
            ]
            running = asyncio.gather(*(episode.run() for episode in episodes))
            if first % 5 == 0:
                await asyncio.sleep(0.005)
                time.sleep(0.2)  # noqa: ASYNC251 - the loop is blocked for longer than a lease
                stalls += 1
            await running
            histories += [episode.recorder.history for episode in episodes]
    results = [operation.result for history in histories for operation in history]
    tried = skipped = 0
    for i, history in enumerate(histories):
        try:
            verdict = linearize(history, mode, most=50_000)
        except TooLong:
            skipped += 1
            continue
        assert verdict.fine, f"seed {seed}, episode {i}\n{verdict}"
        tried += verdict.tried
    counts = {result.name: results.count(result) for result in Result}
    print(f"{mode}: {len(histories)} histories, {counts}, {stalls} stalls, {tried} tried", end="")
    print(f", {skipped} given up")
    assert stalls > 0
    assert all(counts.values()), counts
    if mode == "fair":
        assert any(o.known_by < math.inf for history in histories for o in history)
    for history in sorted(histories, key=_unknown)[:3]:
        once = next(o for o in history if o.result is Result.RELEASED)
        assert once.of is not None
        twice = released(once.of, once.returned, once.returned)
        assert not linearize([*history, twice], mode).fine, "it was released twice"
    assert skipped <= len(histories) // 20, "too many were given up to prove anything"


def _unknown(history: list[Operation]) -> tuple[bool, int]:
    """How much leaves a search open; with a release that can be repeated, if there is one."""
    results = [operation.result for operation in history if operation.of is None]
    releases = any(operation.result is Result.RELEASED for operation in history)
    return not releases, results.count(Result.UNKNOWN)
