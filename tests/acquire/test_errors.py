"""Errors carry their facts wherever they go, and say what is true now."""

import asyncio
import copy
import inspect
import math
import pickle
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

import redsem_async
from redsem_async import (
    AcquireTimeout,
    BackendError,
    BackendUnavailable,
    LayoutMismatch,
    ModeMismatch,
    PermitLost,
    QueueFull,
    SemaphoreClosed,
    SemaphoreError,
    SemaphoreFull,
    SlotsMismatch,
)
from tests.harness.clients import Client, Kind, Make, MakePair, key_of
from tests.harness.inside import state_of
from tests.harness.wait import cancelled, give_back, queue_up, soon

pytestmark = pytest.mark.one_mode

FACTS: dict[type[SemaphoreError], dict[str, object]] = {
    SemaphoreFull: {"name": "openai", "retry_after": 1.5},
    AcquireTimeout: {"name": "openai", "waited": 2.0, "retry_after": 1.5},
    QueueFull: {"name": "openai", "max_waiters": 10, "retry_after": 3.25},
    PermitLost: {"name": "openai", "permit_id": "secret.1", "reason": "released by its id"},
    ModeMismatch: {
        "name": "openai",
        "wanted": "fair server",
        "found": "zset server",
        "held": False,
        "unused": True,
        "free_in": 187.0,
    },
    LayoutMismatch: {
        "name": "openai",
        "found": 2,
        "own": 1,
        "versions": ("0.3.0", "0.4.0"),
        "free_in": 187.0,
    },
    SlotsMismatch: {"name": "openai", "wanted": "a, b", "found": "b, a"},
    SemaphoreClosed: {"name": "openai"},
    BackendError: {"name": "openai", "detail": "WRONGTYPE"},
    BackendUnavailable: {"name": "openai", "detail": "no connection"},
}


def _pickled(protocol: int) -> Callable[[SemaphoreError], SemaphoreError]:
    def through(error: SemaphoreError) -> SemaphoreError:
        again: SemaphoreError = pickle.loads(pickle.dumps(error, protocol))
        return again

    return through


THROUGH = [copy.copy, copy.deepcopy, *map(_pickled, range(pickle.HIGHEST_PROTOCOL + 1))]


def test_every_public_error_is_tested_here() -> None:
    public = {getattr(redsem_async, name) for name in redsem_async.__all__}
    classes = {found for found in public if inspect.isclass(found)}
    errors = {found for found in classes if issubclass(found, BaseException)}
    assert {*FACTS, SemaphoreError} == errors


@pytest.mark.parametrize("kind", FACTS)
@pytest.mark.parametrize("through", THROUGH)
def test_an_error_keeps_its_facts_when_pickled_or_copied(
    through: Callable[[SemaphoreError], SemaphoreError], kind: type[SemaphoreError]
) -> None:
    """Task queues pickle errors, more than once, and OSError's family truncates its arguments."""
    error = kind(**FACTS[kind])
    error.add_note("seen by the worker")
    again = through(through(error))
    assert type(again) is kind
    assert (str(again), again.args) == (str(error), error.args)
    assert again.__notes__ == ["seen by the worker"]
    assert {fact: getattr(again, fact) for fact in FACTS[kind]} == FACTS[kind]


class _MyTimeout(AcquireTimeout):
    pass


def test_a_subclass_of_an_error_survives_a_pickle() -> None:
    """An application may refine an error."""
    again = pickle.loads(pickle.dumps(_MyTimeout("openai", 1.0, 2.0)))
    assert type(again) is _MyTimeout
    assert (again.name, again.waited, again.retry_after) == ("openai", 1.0, 2.0)


@pytest.mark.parametrize("kind", FACTS)
def test_except_semaphore_error_catches_every_error(kind: type[SemaphoreError]) -> None:
    """And none is a cancellation, which would pass as one."""
    assert issubclass(kind, SemaphoreError)
    assert issubclass(kind, Exception)
    assert not issubclass(kind, asyncio.CancelledError)
    message = str(kind(**FACTS[kind]))
    assert "openai" in message
    assert "\n" not in message


def test_except_semaphore_full_catches_a_timeout_and_a_full_queue() -> None:
    """Most callers answer both with «try again later»; an outage or a loss is another matter."""
    full = {kind for kind in FACTS if issubclass(kind, SemaphoreFull)}
    assert full == {SemaphoreFull, AcquireTimeout, QueueFull}


def test_timeouts_and_outages_are_built_in_errors_too() -> None:
    """`except TimeoutError` and `except ConnectionError` do what one thinks."""
    assert issubclass(AcquireTimeout, TimeoutError)
    assert issubclass(BackendUnavailable, ConnectionError)
    assert issubclass(BackendUnavailable, BackendError)
    assert not issubclass(QueueFull, TimeoutError)
    assert not issubclass(AcquireTimeout, BackendError)
    assert not issubclass(ModeMismatch, ConnectionError)


def test_messages_say_what_is_true_now() -> None:
    """Without ids: messages end up in logs, and an id is enough to release the permit."""
    assert (
        str(AcquireTimeout("openai", 2.0))
        == "timed out after 2.0 s waiting for a permit of 'openai'"
    )
    assert "10" in str(QueueFull("openai", 10))
    lost = PermitLost("openai", "secret.1", "why")
    assert "lost" in str(lost)
    assert "why" in str(lost)
    assert "secret" not in f"{lost} {lost!r} {lost.args}"


def test_a_mismatch_says_what_has_the_name_and_how_to_free_it() -> None:
    """In the names of the API, with the class to call `delete` of."""
    held = ModeMismatch("jobs", "zset server", "fair server", held=True, free_in=187.2)
    assert str(held) == (
        "'jobs' is in use as a FairSemaphore, but this client uses it as a Semaphore;"
        " all clients of a name need the same class and clock, and either all or none of them"
        " use keys or slots"
    )
    free = ModeMismatch("jobs", "zset server", "fair server", held=False, free_in=187.2)
    assert str(free) == (
        "'jobs' is in use as a FairSemaphore, but this client uses it as a Semaphore;"
        " no permit is held now: the name is free in at most 188 s unless it is used again,"
        " and FairSemaphore(...).delete() frees it at once"
    )
    unused = ModeMismatch("jobs", "fair server", "fair local", held=False, unused=True)
    assert str(unused) == (
        "'jobs' is in use as a FairSemaphore with clock='local', but this client uses it as a"
        " FairSemaphore with clock='server'; no permit is held and no request waits now:"
        " FairSemaphore(..., clock='local').delete() frees it at once"
    )
    unknown = ModeMismatch("jobs", "fair server", "zset server")
    assert (unknown.held, unknown.unused, unknown.free_in) == (None, False, None)
    assert "delete" not in str(unknown)


def test_a_layout_mismatch_says_which_side_to_upgrade() -> None:
    """And which versions are on the other side, and when the name is free."""
    newer = LayoutMismatch("jobs", 3, 2, ("0.3.0", "0.4.0"), 187.2)
    assert str(newer) == (
        "'jobs' is stored in layout 3 (used by redsem-async 0.3.0, 0.4.0), but this client has"
        " layout 2: upgrade redsem-async in this process; the name is free in at most 188 s unless"
        " it is used again"
    )
    assert (newer.wanted, newer.held, newer.unused) == (2, None, False)
    older = LayoutMismatch("jobs", 0, 2)
    assert str(older) == (
        "'jobs' is stored in layout 0, but this client has layout 2: upgrade"
        " redsem-async in the processes that use it; the name is free some minutes after its last"
        " use"
    )


async def test_real_errors_carry_real_facts(make: Make) -> None:
    """And survive a pickle as they are raised."""
    sem = make(1, max_waiters=1, lease=5.0)
    async with sem:
        with pytest.raises(AcquireTimeout) as timed_out:
            await sem.acquire(timeout=0.05)
        waiter = await queue_up(sem)
        with pytest.raises(QueueFull) as full:
            await sem.acquire()
        await cancelled(waiter)
    for caught in (timed_out.value, full.value):
        again = pickle.loads(pickle.dumps(caught))
        assert again.name == sem.name
        assert 0 <= again.retry_after == caught.retry_after < 60
        assert str(again) == str(caught)
    assert timed_out.value.waited == pytest.approx(0.05, abs=0.5)
    assert f"{round(timed_out.value.waited, 3)} s" in str(timed_out.value)


@pytest.mark.parametrize("lease", [0.05, 0.2, 30.0])
async def test_retry_after_is_an_estimate_and_never_negative(
    make: Make, other: Client, lease: float
) -> None:
    """Also when the holder's lease has just ended: it goes into a header as it is."""
    here, there = make(1, lease=lease), make(1, client=other, lease=lease)
    permit = await here.acquire()
    await permit.detach(max(lease, 0.3))
    estimates: list[float] = []
    for _ in range(8):
        try:
            late = await there.acquire(timeout=0.1)
        except AcquireTimeout as error:
            estimates.append(error.retry_after)
        else:
            await late.release()
    assert estimates
    assert min(estimates) >= 0
    assert max(estimates) <= 2 * max(lease, 0.3) + 0.1


async def test_a_cold_process_is_told_how_long_others_hold(pair: MakePair) -> None:
    """Its first refusals would say a whole lease otherwise, where requests take 60 ms."""
    here, there = pair(1, lease=60.0)
    async with here:
        await asyncio.sleep(0.06)
    async with here:
        with pytest.raises(AcquireTimeout) as caught:
            await there.acquire(timeout=0)
        assert 0.05 < caught.value.retry_after < 0.6
        assert (await there.status()).retry_after == caught.value.retry_after


@pytest.mark.parametrize(
    ("limit", "estimate"), [(1, 1.0), (0, 60.0)], ids=["held-a second", "paused-a lease"]
)
async def test_retry_after_where_no_hold_was_measured(
    pair: MakePair, limit: int, estimate: float
) -> None:
    """A second is as good a guess as a lease, and costs less, where something is held."""
    here, there = pair(limit, lease=60.0)
    held = await here.try_acquire()
    with pytest.raises(AcquireTimeout) as caught:
        await there.acquire(timeout=0)
    assert caught.value.retry_after == (await there.status()).retry_after == estimate
    if held:
        await give_back(held)


async def test_a_hold_is_told_seldom_and_smoothed(
    make_on_redis: Make, other_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One field, written by few of the releases; what others told counts as much."""
    here = make_on_redis(1)
    there = make_on_redis(1, client=other_redis)
    one_more_changes_nothing = math.inf
    monkeypatch.setattr("redsem_async._hub.state.AVERAGED", one_more_changes_nothing)
    told: list[object] = []
    for semaphore, usual in ((here, 0.4), (here, 0.8), (there, 0.1)):
        permit = await semaphore.acquire()
        state_of(semaphore).own_hold = usual
        assert await permit.release()
        told.append(await other_redis.hget(key_of(here, "meta"), "hold"))
    assert told == [b"400", b"400", b"250"]


async def test_a_late_release_does_not_keep_a_name(
    make_on_redis: Make, other_redis: Redis
) -> None:
    """What it tells of holds is nothing to remember where the name is not in use any more."""
    sem = make_on_redis(1)
    async with sem.acquire() as permit:
        await other_redis.flushall()
    assert await sem.release(permit.id) is False  # after the first, on the same connection
    assert await other_redis.hget(key_of(sem, "meta"), "hold") is None


async def test_a_real_mismatch_carries_real_facts(make: Make, other: Client) -> None:
    """And survives a pickle as it is raised: Redis's texts become seconds and truth values."""
    sem = make(1)
    async with sem:
        pass
    clashing = make(1, client=other, clock="local")
    with pytest.raises(ModeMismatch) as caught:
        await clashing.acquire()
    error = caught.value
    assert (error.held, error.unused) == (False, False)
    assert error.free_in is not None and 60 < error.free_in < 600
    again = pickle.loads(pickle.dumps(error))
    assert (again.held, again.unused, again.free_in) == (False, False, error.free_in)
    assert str(again) == str(error)
    assert f"{math.ceil(error.free_in)} s" in str(error)


@pytest.mark.parametrize(
    "url",
    ["redis://127.0.0.1:1", "redis://localhost:1", "redis://nosuch.invalid", "unix:///no/such"],
)
async def test_unreachable_says_why_in_words(kind: Kind, url: str) -> None:
    """No error numbers: «connection refused»."""
    async with Redis.from_url(url) as redis:
        with pytest.raises(BackendUnavailable, match=r"can't reach Redis at \S+ \([a-z ]+\)$"):
            await soon(kind(redis, "openai", 1).acquire(timeout=0))
