"""Every order of events within small bounds."""

from dataclasses import replace
from unittest.mock import Mock

import pytest

from redsem_async._core.keys import with_slots
from redsem_async._hub.model import Lease
from tests.worlds.server import Edit

from .scenario import Scenario
from .scenarios import LONG, SCENARIOS
from .scenarios_of_keys import SCENARIOS_OF_KEYS
from .search import Search

WAITS = "waits, and its limits have room"
PASSED = "before those who were granted"
ASKED = "took effect, and nobody asks now"
MOST = 100_000  # states of a scenario; the longer form has some with more, and says so

WITH_SLOTS_TOO = {
    "fair a detach that is lost",
    "fair a lost link and late commands",
    "fair an adoption that is cancelled",
    "fair weights",
    "fair+keys a deletion, and keys",
    "fair+keys a heavy head of its key",
    "fair+keys a revoked permit, and a key",
    "fair+keys a link with keys is lost",
    "fair+keys a permit with a key expires",
    "fair+keys a process with a key dies",
    "fair+keys an adoption, and a key",
    "fair+keys the overall limit, and keys",
    "zset a lost link and late commands",
    "zset weights",
}

WITHOUT_SLOTS = (*SCENARIOS, *SCENARIOS_OF_KEYS)
KNOWN = {str(scenario): scenario for scenario in WITHOUT_SLOTS} | {
    f"{scenario} with slots": replace(scenario, mode=with_slots(scenario.mode), release=False)
    for scenario in WITHOUT_SLOTS
    if LONG or str(scenario) in WITH_SLOTS_TOO
}


@pytest.mark.timeout(0 if LONG else 300)
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(s, marks=pytest.mark.release if s.release else ()) for s in KNOWN.values()],
    ids=str,
)
def test_every_order_of_events(scenario: Scenario) -> None:
    """Safe at every step, and with an end to everything from every state."""
    found = Search(scenario).run(MOST)
    print(found)
    assert found.wrong is None, str(found)
    assert found.complete or LONG


# -- a search that finds nothing proves nothing, unless it finds what is there

NUMBERED = "return number <= (tonumber("
# What is wrong with the scripts, by the piece that is changed in them; where that is found, and as
# what.
WRONG: dict[str, tuple[str, str, Edit]] = {
    "a number that was used before is granted": (
        "fair a lost link and late commands",
        "its number was used before",
        Edit("if holding or request.value <= old_mark", "if holding or ticket_of(request.text)"),
    ),
    "a head that need not wait is in the way": (
        "fair a limit of 0",
        WAITS,
        Edit("is_fair and (most < 0 or used <= most)", "false"),
    ),
    "only the first is looked at": (
        "zset mixed limits",
        WAITS,
        Edit("or passes and state.used + request.permits > most then", "then"),
    ),
    "a permit ends": (
        "fair+keys a permit with a key expires",
        WAITS,
        Edit("if permits < 0 then look_at(key) end", ""),
    ),
    "the limit of a key changes": (
        "fair+keys limits of a key",
        WAITS,
        Edit("return set_limits[key] or declared", "return declared"),
    ),
    "a heavy holder is one of its key": (
        "fair+keys a heavy head of its key",
        "permits of 'a' in use",
        Edit("keyed.occupy(grant.key, sign * grant.permits)", "keyed.occupy(grant.key, sign)"),
    ),
    "a newcomer passes who of its key waits": (
        "fair+keys a heavy head of its key",
        "of the same key",
        Edit("and head_of(key) and not is_ready(key)", "and false"),
    ),
    "a newcomer passes whom the overall limit holds up": (
        "fair+keys the overall limit, and keys",
        PASSED,
        Edit("if state.blocked_until or state.used + permits", "if state.used + permits"),
    ),
    "the oldest is first, whatever its key has": (
        "fair+share shares",
        PASSED,
        Edit("if not shares or now_us > tonumber(first[2])", "if true"),
    ),
    "nothing is taken": (
        "fair a cancellation",
        "2 of 1 permits in use",
        Edit("state.used = lost and ALL_TAKEN or state.holding + state.heavy", "state.used = 0"),
    ),
    "a limit is set each time": (
        "fair two limits",
        ASKED,
        Edit(NUMBERED, "return 0 > (tonumber("),
    ),
    "a deletion is carried out each time": (
        "fair a deletion",
        ASKED,
        Edit(NUMBERED, "return 0 > (tonumber("),
    ),
    "a back-off begins each time": (
        "fair a back-off that is ended",
        ASKED,
        Edit(NUMBERED, "return 0 > (tonumber("),
    ),
    "slots of holders are free": (
        "fair weights with slots",
        "have one slot",
        Edit("if not taken[lowest] then", "do"),
    ),
}


@pytest.mark.parametrize("which", WRONG)
def test_a_server_that_is_wrong_is_found(which: str) -> None:
    name, wrong, edit = WRONG[which]
    search = Search(KNOWN[name], [edit])
    found = search.run(MOST)
    assert search.memory.edited == {edit}, "the edit is of no script that ran"
    assert wrong in str(found)


@pytest.mark.parametrize("name", ["a detach that is lost", "a detach, again"])
def test_a_client_that_is_wrong_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lease, "shorten", Mock())
    assert "is trusted as" in str(Search(KNOWN[f"fair {name}"]).run(MOST))
