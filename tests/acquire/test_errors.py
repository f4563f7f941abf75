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
    FairSemaphore,
    LayoutMismatch,
    ModeMismatch,
    PermitLost,
    QueueFull,
    SemaphoreClosed,
    SemaphoreError,
    SemaphoreFull,
    SlotsMismatch,
)
from redsem_async.testing import MemoryBackend
from tests.harness.clients import MakePair, key_of
from tests.harness.inside import state_of
from tests.worlds.simulated_time import simulated

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


class _MyTimeout(AcquireTimeout):
    """An application may refine an error."""


def _pickled(error: SemaphoreError) -> SemaphoreError:
    again: SemaphoreError = pickle.loads(pickle.dumps(error))
    return again


@pytest.mark.parametrize("kind", [*FACTS, _MyTimeout])
@pytest.mark.parametrize("through", [copy.copy, copy.deepcopy, _pickled])
def test_an_error_keeps_its_facts_when_pickled_or_copied(
    through: Callable[[SemaphoreError], SemaphoreError], kind: type[SemaphoreError]
) -> None:
    """Task queues pickle errors, more than once, and OSError's family truncates its arguments."""
    facts = FACTS.get(kind, FACTS[AcquireTimeout])
    error = kind(**facts)
    error.add_note("seen by the worker")
    again = through(through(error))
    assert type(again) is kind
    assert (str(again), again.args) == (str(error), error.args)
    assert again.__notes__ == ["seen by the worker"]
    assert {fact: getattr(again, fact) for fact in facts} == facts


def test_what_except_catches() -> None:
    """The base catches every error and no cancellation; *full* is a timeout or a full queue."""
    public = {getattr(redsem_async, name) for name in redsem_async.__all__}
    classes = {found for found in public if inspect.isclass(found)}
    caught: dict[type[BaseException], set[type[SemaphoreError]]] = {
        BaseException: {*FACTS, SemaphoreError},
        SemaphoreError: {*FACTS, SemaphoreError},
        Exception: {*FACTS, SemaphoreError},
        SemaphoreFull: {SemaphoreFull, AcquireTimeout, QueueFull},
        TimeoutError: {AcquireTimeout},
        ConnectionError: {BackendUnavailable},
        asyncio.CancelledError: set(),
    }
    for base, errors in caught.items():
        assert {found for found in classes if issubclass(found, base)} == errors, base
    assert issubclass(BackendUnavailable, BackendError)
    assert not issubclass(AcquireTimeout, BackendError)


def test_messages_say_what_is_true_now() -> None:
    """Without ids: messages end up in logs, and an id is enough to release the permit."""
    timed_out = AcquireTimeout("openai", 2.0)
    assert str(timed_out) == "timed out after 2.0 s waiting for a permit of 'openai'"
    assert "10" in str(QueueFull("openai", 10))
    lost = PermitLost("openai", "secret.1", "why")
    assert {"lost", "why"} <= {*str(lost).replace(":", " ").split()}
    assert "secret" not in f"{lost} {lost!r} {lost.args}"
    for kind, facts in FACTS.items():
        message = str(kind(**facts))
        assert "openai" in message
        assert "\n" not in message


def test_a_mismatch_says_what_has_the_name_and_how_to_free_it() -> None:
    """In the names of the API, with the class to call `delete` of."""
    clash = "'jobs' is in use as a FairSemaphore, but this client uses it as a Semaphore;"
    unknown = ModeMismatch("jobs", "zset server", "fair server")
    assert (unknown.held, unknown.unused, unknown.free_in) == (None, False, None)
    assert str(unknown) == (
        f"{clash} all clients of a name need the same class and clock, either all or none of"
        " them use keys or slots, and their rates have the same names"
    )
    free = ModeMismatch("jobs", "zset server", "fair server", held=False, free_in=187.2)
    assert str(free) == (
        f"{clash} no permit is held now: the name is free in at most 188 s unless it is used"
        " again, and FairSemaphore(...).delete() frees it immediately"
    )
    unused = ModeMismatch("jobs", "fair server", "fair local", held=False, unused=True)
    assert str(unused).endswith(
        "; no permit is held and no request waits now:"
        " FairSemaphore(..., clock='local').delete() frees it immediately"
    )


def test_a_layout_mismatch_says_which_side_to_upgrade() -> None:
    """And which versions are on the other side, and when the name is free."""
    assert str(LayoutMismatch("jobs", 3, 2, ("0.3.0", "0.4.0"), 187.2)) == (
        "'jobs' is stored in layout 3 (used by redsem-async 0.3.0, 0.4.0), but this client has"
        " layout 2: upgrade redsem-async in this process; the name is free in at most 188 s unless"
        " it is used again"
    )
    assert str(LayoutMismatch("jobs", 0, 2)) == (
        "'jobs' is stored in layout 0, but this client has layout 2: upgrade"
        " redsem-async in the processes that use it; the name is free some minutes after its last"
        " use"
    )


@simulated
async def test_a_cold_process_is_told_how_long_others_hold(pair: MakePair) -> None:
    """Its first refusals would say a whole lease otherwise, where requests take 60 ms."""
    here, there = pair(1, lease=60.0)
    async with here:
        await asyncio.sleep(0.06)
    async with here:
        with pytest.raises(AcquireTimeout) as caught:
            await there.acquire(timeout=0)
        assert caught.value.retry_after == pytest.approx(0.06, abs=0.01)
        assert (await there.status()).retry_after == caught.value.retry_after


async def test_a_hold_is_told_seldom_and_smoothed(
    pair: MakePair, client: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One field, written by few of the releases; what others told counts as much."""
    here, there = pair(1)
    one_more_changes_nothing = math.inf
    monkeypatch.setattr("redsem_async._hub.state.AVERAGED", one_more_changes_nothing)
    told: list[object] = []
    for semaphore, usual in ((here, 0.4), (here, 0.8), (there, 0.1)):
        permit = await semaphore.acquire()
        state_of(semaphore).own_hold = usual
        assert await permit.release()
        told.append(client._store.redis.command("HGET", key_of(here, "meta"), "hold"))
    assert told == [b"400", b"400", b"250"]


@pytest.mark.parametrize(
    "url",
    ["redis://127.0.0.1:1", "redis://localhost:1", "redis://nosuch.invalid", "unix:///no/such"],
)
async def test_unreachable_says_why_in_words(url: str) -> None:
    """No error numbers: «connection refused»."""
    async with Redis.from_url(url) as redis:
        with pytest.raises(BackendUnavailable, match=r"can't reach Redis at \S+ \([a-z ]+\)$"):
            await FairSemaphore(redis, "openai", 1).acquire(timeout=0)
