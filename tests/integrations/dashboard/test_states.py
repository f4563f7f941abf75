"""The words for states, what needs attention, and the history. Without a server."""

import math
from dataclasses import replace
from typing import Any

import pytest

from redsem_async import FairSemaphore, Rate
from redsem_async._core.lease import heartbeat_is_overdue, refresh_is_overdue
from redsem_async._protocol.views import (
    BackOff,
    Client,
    Holder,
    KeyStatus,
    RateStatus,
    SemaphoreStatus,
    Waiter,
)
from redsem_async._tools.discovery import SemaphoreInfo
from redsem_async._tools.states import rank, state_of
from redsem_async.dashboard import _views
from redsem_async.dashboard._history import EVENTS, KEPT, Happening, History, Point
from redsem_async.dashboard._reader import Detail, Reader
from redsem_async.dashboard._reading import Reading
from redsem_async.testing import MemoryBackend
from tests.harness.wait import cancelled, queue_up

PROCESS = Client("ab" * 16, "trainer", limit=4, lease=10.0, refresh_interval=10 / 3)
OLD = replace(PROCESS, id="cd" * 16, label="old", limit=3)
RATES: dict[str, Any] = {"requests": Rate(5), "tokens": Rate(6)}
INFO = SemaphoreInfo("x", "fair", "server", clients=(PROCESS,), rates=RATES)
KEYED = replace(INFO, mode="fair+keys")
PLAIN = replace(INFO, mode="zset+slots")
ROLLOUT = replace(INFO, clients=(PROCESS, OLD))


def status(
    held: int = 0,
    *,
    limit: int = 4,
    head: int = 1,
    age: float = 1.0,
    of: Any = PROCESS,
    **more: Any,
) -> SemaphoreStatus:
    """One with *held* permits; and *waiting* requests, the first for *head* permits."""
    waits = more.get("waiting", 0)
    key = more.pop("key", None)
    waiters = (Waiter("id", of, 0, age, head, key),) if waits else ()
    numbers: Any = {"name": "x", "limit": limit, "available": max(0, limit - held)}
    numbers |= {"holders": (), "waiters": waiters, "waiting": 0, **more}
    return SemaphoreStatus(held=held, **numbers)


ACME = (KeyStatus("acme", 2, 2, 1, None),)
OF_ACME: dict[str, Any] = {"waiting": 1, "key": "acme"}
UNUSED = {"requests": RateStatus(5, 1, 5, 5, 0)}
DEBT = {**UNUSED, "tokens": RateStatus(6, 1, 90, -300, 65)}
SPENT = {**UNUSED, "tokens": RateStatus(6, 1, 90, 30, 10)}
BACK_OFF = BackOff(20.0, 0, 10.0, "ada")
STALLED = Holder("id", PROCESS, 60.0, 2.9, 1, 1)


@pytest.mark.parametrize(
    ("info", "given", "label", "words"),
    [
        (INFO, status(), "free", "4 permits are free"),
        (INFO, status(3), "free", "1 permit is free"),
        (
            INFO,
            status(2, waiting=2, rates=DEBT),
            "rate used up",
            "but tokens is 300 in debt, so no request can begin for 50 s.",
        ),
        (INFO, status(2, rates=DEBT), "rate used up", "tokens is 300 in debt, so no request can"),
        (INFO, status(2, rates=SPENT), "free", "2 permits are free"),
        (
            *(INFO, status(2, waiting=1, rates=SPENT), "rate used up"),
            "of the first request: tokens has 30 of 90 left, and is full in 10 s.",
        ),
        (INFO, status(4, rates=DEBT), "full", "All 4 permits"),
        (KEYED, status(2, rates=DEBT, **OF_ACME), "rate used up", "tokens is 300 in debt"),
        (INFO, status(4, waiting=1, rates=DEBT), "queuing", "All 4 permits"),
        (INFO, status(2, waiting=1, rates=UNUSED), "queuing", "free for the next"),
        (INFO, status(4, waiting=2, retry_after=1.0), "queuing", "All 4 permits are in use."),
        (INFO, status(2, waiting=1, head=3, rates=DEBT), "blocked", "needs 3 permits"),
        (INFO, status(4), "full", "All 4 permits are in use, and no request waits"),
        (INFO, status(6), "full", "2 above the limit of 4, and no request"),
        (replace(INFO, clients=(replace(PROCESS, limit=0),)), status(), "full", "a limit of 0"),
        (
            INFO,
            status(4, waiting=2, retry_after=2.5, usual_hold=1.0),
            "queuing",
            "would wait about 2.5 s",
        ),
        (
            INFO,
            status(4, waiting=2, retry_after=0.04, usual_hold=0.1),
            "queuing",
            "would wait less than 0.1 s",
        ),
        (INFO, status(5, waiting=2), "queuing", "1 above the limit of 4"),
        (INFO, status(2, waiting=1), "queuing", "free for the next"),
        (INFO, status(2, waiting=2, head=3), "blocked", "of trainer, needs 3 permits, and 2 are"),
        (PLAIN, status(2, waiting=5, head=5), "blocked", "Smaller requests pass it"),
        (ROLLOUT, status(3, waiting=2, of=OLD), "blocked", "of old, declares a limit of 3, and 3"),
        (ROLLOUT, status(3, waiting=1, of=OLD, set_limit=4), "queuing", "free for the next"),
        (KEYED, status(2, keys=ACME, **OF_ACME), "keys full", "requests are full: acme."),
        (KEYED, status(2, waiting=3), "keys full", "requests are full."),
        (KEYED, status(4, keys=ACME, **OF_ACME), "queuing", "All 4 permits"),
        (KEYED, status(3, waiting=1, head=2, retry_after=1.0), "blocked", "needs 2 permits"),
        (
            KEYED,
            status(2, keys=ACME, retry_after=1.0, head=3, **OF_ACME),
            "queuing",
            "for the next",
        ),
        (INFO, status(1, set_limit=0, waiting=3), "paused", "3 requests wait. 1 permit is still"),
        (
            *(INFO, status(set_limit=0, set_limit_age=300.0, set_limit_by="ada"), "paused"),
            "It was paused 5 min ago by ada. No permit is granted until it is resumed.",
        ),
        (
            INFO,
            status(back_off=BACK_OFF),
            "backing off",
            "No permit for 20 s. The back-off was started 10 s ago by ada",
        ),
        (INFO, status(back_off=BackOff(0.0, 2)), "backing off", "At most 2 of 4 permits may be"),
        (INFO, status(back_off=BackOff(0.04, 0)), "backing off", "No permit for 0.1 s."),
        (
            INFO,
            status(1, holders=(STALLED,)),
            "stalled",
            "trainer has stopped refreshing. The fir",
        ),
        (
            *(INFO, status(4, holders=(STALLED,), waiting=2, retry_after=0.7), "stalled"),
            "expires in 2.9 s. All 4 permits are in use.",
        ),
        (INFO, None, "unreadable", "It cannot be read: WRONGTYPE."),
    ],
)
def test_a_state_is_told_in_a_sentence(
    info: SemaphoreInfo, given: SemaphoreStatus | None, label: str, words: str
) -> None:
    """Which says what requests wait for; the list and the command have the same words."""
    state = state_of(info, given, "WRONGTYPE")
    assert (state.label, words in state.text) == (label, True), state
    assert ("would wait" in state.text) is ("would wait" in words)


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (replace(ACME[0], set_limit=0), "acme (paused)"),
        (replace(ACME[0], back_off=BACK_OFF), "acme (backing off)"),
        (replace(ACME[0], key="other", waiting=0), "acme"),
    ],
)
def test_what_holds_up_a_key_is_named(key: KeyStatus, shown: str) -> None:
    assert state_of(KEYED, status(2, keys=(key,), **OF_ACME)).who == shown


def test_trouble_and_long_waits_need_attention() -> None:
    """A full semaphore with a queue does not. Long is longer than a lease and ten usual holds."""
    seen = {
        "broken": (None, None),
        "lost": (status(), "The pause was lost with Redis's data."),
        "stalled": (status(1, holders=(STALLED,)), None),
        "long": (status(4, waiting=2, age=300.0), None),
        "less long": (status(4, waiting=9, age=11.0, usual_hold=1.0), None),
        "slow work": (status(4, waiting=9, age=11.0, usual_hold=2.0), None),
        "paused": (status(set_limit=0), None),
        "busy": (status(4, waiting=2, age=1.2), None),
        "full": (status(4), None),
        "half": (status(2), None),
    }
    states = {name: state_of(INFO, given, "", lost) for name, (given, lost) in seen.items()}
    order = sorted(seen, key=lambda name: rank(INFO, seen[name][0], states[name]))
    assert order == [*seen]
    assert [state.attention for state in states.values()] == [
        *("unreadable", "state lost", "stalled", "long wait", "long wait"),
        *[None] * 5,
    ]


async def test_keys_and_heads_are_named_as_the_scripts_have_it() -> None:
    """By what `status` tells of a semaphore in memory."""
    sem = FairSemaphore(MemoryBackend(), "x", 4, key_limit=2, label="trainer")
    async with sem.acquire(permits=2, key="acme"):
        waiters = [await queue_up(sem, key="acme")]
        state = state_of(KEYED, await sem.status())
        assert (state.label, state.who) == ("keys full", "acme")
        async with sem.acquire(key="beta"):
            waiters.append(await queue_up(sem, permits=2, key=None))
            state = state_of(KEYED, await sem.status())
            assert (state.label, state.who) == ("blocked", "trainer")
            await cancelled(*waiters)


# -- history


def reading(
    *, left: float | None = None, dead_in: float | None = None, declares: int = 2, **more: Any
) -> Reading:
    """One of a permit with *left* seconds, or of a request whose process is *dead_in* more."""
    holders = () if left is None else (Holder("id", PROCESS, 60.0, left, 1, 1),)
    waiters = () if dead_in is None else (Waiter("id", PROCESS, 0, 3.0, 1),)
    alive = {} if dead_in is None else {PROCESS.id: dead_in}
    info = replace(INFO, clients=(replace(OLD, limit=declares),), dead_in=alive)
    numbers = (len(holders), 1, len(waiters), holders, waiters)
    return Reading(info, SemaphoreStatus("x", declares, *numbers, **more), "", 0.0)


def of_key(**more: Any) -> Reading:
    return reading(keys=(replace(KeyStatus("acme", 2, 1, 0, None), **more),))


def told(*readings: Reading, every: float = 1.0) -> list[Happening]:
    """What is noted of readings, one *every* so many seconds from 1000 on."""
    history = History()
    for number, one in enumerate(readings):
        history.add(one, 1000.0 + number * every, 0.0)
    return [*history.events]


BY: dict[str, Any] = {"set_limit_age": 0.5, "set_limit_by": "ada"}
OWN = "The clients' own limit applies (2)."
PAUSED = "No permit is granted until it is resumed."


@pytest.mark.parametrize(
    ("before", "after", "at", "text"),
    [
        ({}, {"declares": 3}, 1001, "The clients declare a limit of 3. It was 2."),
        ({}, {"set_limit": 5}, 1001, "The limit was set to 5. It was 2."),
        ({}, {"set_limit": 5, **BY}, 1000.5, "The limit was set to 5 by ada. It was 2."),
        (
            {"set_limit": 5, "set_limit_age": 9.0},
            {"set_limit": 5, **BY},
            1000.5,
            "to 5 by ada. It",
        ),
        ({}, {"set_limit": 0, **BY}, 1000.5, f"Paused by ada. {PAUSED}"),
        ({"set_limit": 0}, {"set_limit": 4}, 1001, "Resumed with the set limit of 4."),
        ({"set_limit": 0}, {}, 1001, f"Resumed. {OWN}"),
        ({"set_limit": 9}, {}, 1001, f"The set limit was removed. {OWN}"),
        ({}, {"back_off": BackOff(20.0, 0, 0.5, "ada")}, 1000.5, "of 20 s was started by ada."),
        ({}, {"back_off": BackOff(0.0, 1)}, 1001, "A back-off was started: 1 of 2 permits may"),
        ({"back_off": BackOff(9.0, 0)}, {}, 1001, "The back-off has ended."),
    ],
)
def test_what_was_changed_is_noted(before: Any, after: Any, at: float, text: str) -> None:
    """Once, with when and by whom, as far as Redis tells it. Of keys, too."""
    again: dict[str, Any] = {**after, "set_limit_age": 1.5} if "set_limit_age" in after else after
    [noted] = told(reading(**before), reading(**after), reading(**again))[-1:]
    assert (noted[:2], text in noted[2]) == ((at, "limit"), True), noted
    count = len(told(reading(**before), reading(**after)))
    assert len(told(reading(**before), reading(**after), reading(**again))) == count
    if "declares" not in after:
        [*_, noted] = told(of_key(**before), of_key(**after))
        assert noted[2].startswith("Key acme: ")
        assert text[1:] in noted[2]


def test_a_pause_ends_before_the_back_off_that_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are read at once, and Redis tells only when the second began."""
    monkeypatch.setattr(_views, "KEPT", math.inf)
    reader = Reader(MemoryBackend(), "redsem", 1.0)
    history = reader.histories["x"] = History()
    history.add(reading(set_limit=0), 1000.0, 0.0)
    history.add(reading(back_off=BackOff(20.0, 0, 0.5, "ada")), 1001.0, 0.0)
    resumed, begun = _views._history(reader, "x")["events"]
    assert resumed == (1000.5, "limit", f"Resumed. {OWN}")
    assert begun[2].startswith("A back-off ")


def test_overloads_that_cut_again_are_no_news_but_long_pauses_are() -> None:
    """Above its capacity an upstream has one every few seconds. The chart shows them."""
    cuts = [BackOff(0.0, 2, age, "ada") for age in (0.1, 3.0, 0.2, 0.1)]
    seen = [None, *cuts, BackOff(0.9, 0, 0.1), BackOff(20.0, 0, 0.1), None]
    events = told(*(reading(declares=9, back_off=each) for each in seen), every=2.0)
    assert [event.text for event in events] == [
        "A back-off was started by ada: 2 of 9 permits may be in use.",
        "A back-off of 20 s was started.",
        "The back-off has ended.",
    ]


def test_what_was_changed_lately_is_told_by_a_dashboard_that_was_opened_later() -> None:
    assert told(reading(set_limit=0, set_limit_age=60.0, set_limit_by="ada")) == [
        (940.0, "limit", f"Paused by ada. {PAUSED}")
    ]
    assert told(reading(set_limit=0, set_limit_age=6000.0)) == []
    assert told(reading(set_limit=0), reading(set_limit=0)) == []


def test_a_stalled_process_is_noted_until_it_recovers_or_loses_what_it_had() -> None:
    lefts = (9.0, 7.0, 3.9, 2.9, None)
    assert [event[1:] for event in told(*(reading(left=left) for left in lefts), every=3.0)] == [
        ("bad", "trainer has stopped refreshing."),
        ("good", "trainer's permits are free again."),
    ]
    alive = (14.0, 6.0, 5.0, 16.0)
    assert [event[1:] for event in told(*(reading(dead_in=dead_in) for dead_in in alive))] == [
        ("bad", "trainer has stopped sending heartbeats."),
        ("good", "trainer has recovered."),
    ]
    silent = Holder("id", Client("ab" * 16), 60.0, 0.5, 1, 1)
    assert Reading(INFO, status(1, holders=(silent,)), "", 0.0).stalled == {}


def test_a_stalled_process_is_marked_wherever_it_is_listed() -> None:
    reader = Reader(MemoryBackend(), "redsem", 1.0)
    given = status(1, holders=(STALLED,), waiting=1)
    reader.details[Detail("x")] = Reading(INFO, given, "", 0.0)
    view = _views.detail_view(reader, Detail("x"), whole_ids=False)
    listed = [one for part in ("holders", "waiters", "clients") for one in view[part]]
    assert [one["stalled"] for one in listed] == [True] * 3


@pytest.mark.parametrize(("held", "events"), [(0, []), (1, ["Deleted."])])
def test_a_deletion_is_noted_and_charts_go_on_with_zero(held: int, events: list[str]) -> None:
    """A name that nobody used is gone for that reason. Its history ends after a while."""
    history = History()
    history.add(reading(left=9.0 if held else None), 1000.0, 0.0, "run")
    for later in (3.0, 4.0):
        history.note_unused(1000.0 + later, "run")
    assert [event.text for event in history.events] == events
    assert [*history.points] == [Point(1000.0, held, 2, 0), Point(1004.0, 0, None, 0)]
    for later in (5.0, 6.0):
        history.note_unused(1000.0 + KEPT + later, "run")
    assert not history.points


@pytest.mark.parametrize("lease", [1.0, 2.0, 10.0, 60.0, 3600.0])
def test_a_process_that_is_on_time_is_never_overdue(lease: float) -> None:
    """Not with a refresh that comes a tenth of a lease late, nor after one missed heartbeat."""
    assert not refresh_is_overdue(lease - lease / 3 - lease / 10, lease, lease / 3)
    assert refresh_is_overdue(lease / 3, lease, lease / 3)
    assert not heartbeat_is_overdue(lease, lease)


def test_a_history_is_bounded_and_has_gaps() -> None:
    """One point for each slot, for 15 minutes; and the latest events."""
    history = History()
    for number in range(10_000):
        history.add(reading(set_limit=number % 2), 1000.0 + number, 0.0)
    assert 299 <= len(history.points) <= 301
    assert len(history.events) == EVENTS
    assert history.points[-1] == Point(10_999.0, 0, 1, 0)
    history.add(reading(set_limit=5, back_off=BackOff(0.0, 3)), 11_060.0, 11_050.0)
    assert history.points[-1] == Point(11_060.0, 0, 5, 0, 3)
    assert [point.held for point in history.points][-3:] == [0, None, 0]
    assert history.events[-1].at == 10_999.0, "it happened at a time that nobody knows"
    for since, age, at in ((11_110.0, 200.0, 10_999.0), (11_170.0, 30.0, 11_150.0)):
        history.add(reading(set_limit=6, set_limit_age=age), since + 10.0, since)
        assert history.events[-1].at == at, "what was told before the gap is not told again"
