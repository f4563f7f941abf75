"""Every order of events within small bounds."""

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import Mock

import pytest

from redsem_async._core.keys import with_slots
from redsem_async._hub.lease import Lease
from tests.worlds.server import Edit

from .scenario import Scenario
from .scenarios import LONG, SCENARIOS
from .scenarios_of_keys import SCENARIOS_OF_KEYS
from .search import Search

WAITS = "waits, and its limits have room"
PASSED = "before those who were granted"
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


def found_in(name: str, *edits: tuple[str, str]) -> str:
    """What is wrong with a scenario once the scripts have these edits."""
    wanted: Sequence[Edit] = [Edit(*edit) for edit in edits]
    search = Search(KNOWN[name], wanted)
    found = search.run(MOST)
    assert search.memory.edited == {*wanted}, "an edit is of no script that ran"
    return str(found)


MARK = "if grant or value <= old_mark"
SCANNED = "\n    local found = scan"
ENDED = "changed[key] = key ~= '' or nil\n    end\n  end\n"
OF_ITS_KEY = "first_with('k:' .. key .. '!') then return 'key' end"
COUNTED = "if used > 0 then\n    next_expiry"


@pytest.mark.parametrize(
    ("name", "wrong", "edits"),
    [
        pytest.param(
            "fair a lost link and late commands",
            "its number was used before",
            [(f"{MARK} then", f"{MARK} and is_queued(entry) then")],
            id="a number that was used before is granted",
        ),
        pytest.param(
            "fair a cancellation",
            WAITS,
            [
                ("  serve_own(own)\n  serve()\n", ""),
                ("if waiting > 0 and not plan then return end", "if waiting > 0 then return end"),
            ],
            id="what is released is given to nobody",
        ),
        pytest.param(
            "fair a limit of 0",
            WAITS,
            [("is_fair and (most < 0 or used <= most)", "false")],
            id="a head that need not wait is in the way",
        ),
        pytest.param(
            "zset mixed limits",
            WAITS,
            [(f"pass_known(){SCANNED}", f"if pass_known() then return end{SCANNED}")],
            id="only the first is looked at",
        ),
        *[
            pytest.param(
                f"fair+keys {name}",
                WAITS,
                [(f"{ENDED}  look_at_all(changed)", ENDED)],
                id=f"a permit ends, {name}",
            )
            for name in (
                "a key that is full",
                "a revoked permit, and a key",
                "a permit with a key expires",
            )
        ],
        pytest.param(
            "fair+keys a heavy head of its key",
            WAITS,
            [("unpack(requests))\n  look_at_all(changed)", "unpack(requests))")],
            id="the first of a key leaves the line",
        ),
        pytest.param(
            "fair+keys limits of a key",
            WAITS,
            [("keyed.limits[key] = nil\n  look_at(key)", "keyed.limits[key] = nil")],
            id="the limit of a key changes",
        ),
        pytest.param(
            "fair+keys a heavy head of its key",
            "permits of 'a' in use",
            [("use + math.floor(2 ^ power) * count_with", "use + count_with")],
            id="a heavy holder is one of its key",
        ),
        pytest.param(
            "fair+keys a heavy head of its key",
            "of the same key",
            [(f"and not {OF_ITS_KEY}", "and false then end")],
            id="a newcomer passes who of its key waits",
        ),
        pytest.param(
            "fair+keys the overall limit, and keys",
            PASSED,
            [("if not open or used + permits > room_in", "if used + permits > room_in")],
            id="a newcomer passes whom the overall limit holds up",
        ),
        pytest.param(
            "fair+keys a key that is full",
            WAITS,
            [("if blocked then open = false end", "open = waiting == count_with('k:')")],
            id="whom its key holds up is in the way of others",
        ),
        pytest.param(
            "fair+share shares",
            PASSED,
            [("if not keyed.shares or now_us > tonumber(place)", "if true")],
            id="the oldest is first, whatever its key has",
        ),
        pytest.param(
            "fair a cancellation",
            "2 of 1 permits in use",
            [
                ("used = holder_count + extra_permits()\n  else", "used = 0\n  else"),
                (
                    "if used > 0 then\n    next_expiry",
                    "used = 0\n  if used > 0 then\n    next_expiry",
                ),
            ],
            id="nothing is taken",
        ),
        *[
            pytest.param(
                f"fair {name}",
                wrong,
                [("return number <= (tonumber(", "return 0 > (tonumber(")],
                id=f"a call acts each time, {name}",
            )
            for name, wrong in (
                ("two limits", "the set limit is 3, after 2 was confirmed"),
                ("a back-off that is ended", "nobody met another overload"),
                ("a deletion", "all was deleted, and nobody asks"),
                ("a pause", "the set limit is 0, after None was confirmed"),
            )
        ],
        *[
            pytest.param(
                f"{name} with slots",
                "have one slot",
                [(free, instead)],
                id=f"slots of holders are free, {name}, {instead}",
            )
            for name in ("fair+keys the overall limit, and keys", "fair weights")
            for free, instead in (
                ("if not taken[lowest] then", "do"),
                ("taken[tonumber(slot)] = ids[i]\n", "\n"),
            )
        ],
    ],
)
def test_a_server_that_is_wrong_is_found(
    name: str, wrong: str, edits: list[tuple[str, str]]
) -> None:
    assert wrong in found_in(name, *edits)


@pytest.mark.parametrize("name", ["a detach that is lost", "a detach, again"])
def test_a_client_that_is_wrong_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lease, "shorten", Mock())
    assert "is trusted as" in found_in(f"fair {name}")
