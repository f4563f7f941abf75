"""Every order of events within small bounds, where permits have slots."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import cast

import pytest

from redsem_async._core.keys import Mode
from redsem_async.testing._spec import keyed, queue, serving
from redsem_async.testing._spec.slots import assign
from redsem_async.testing._spec.state import State

from .scenario import Scenario
from .scenarios import LONG, SCENARIOS
from .scenarios_of_keys import SCENARIOS_OF_KEYS
from .search import Search
from .test_modelcheck import MOST, named

_NAMES = {
    "fair a detach that is lost",
    "fair a lost link and late commands",
    "fair a pause, and a kept lease",
    "fair an adoption that is cancelled",
    "fair weights, and a kept lease",
    "fair+keys a clear, and keys",
    "fair+keys a heavy head of its key",
    "fair+keys a kick, and a key",
    "fair+keys a link with keys is lost",
    "fair+keys a permit with a key expires",
    "fair+keys a process with a key dies",
    "fair+keys an adoption, and a key",
    "fair+keys the overall limit, and keys",
    "zset a lost link and late commands",
    "zset weights",
    "zset weights, and a kept lease",
}


def _slotted() -> Iterator[tuple[str, Scenario]]:
    for scenario in (*SCENARIOS, *SCENARIOS_OF_KEYS):
        name = f"{scenario.mode} {scenario.name}"
        if LONG or name in _NAMES:
            yield name, replace(scenario, mode=cast(Mode, f"{scenario.mode}+slots"))


SLOTTED = dict(_slotted())


@pytest.mark.timeout(0 if LONG else 300)
@pytest.mark.parametrize("scenario", SLOTTED.values(), ids=named)
def test_every_order_of_events_with_slots(scenario: Scenario) -> None:
    """No slot is another's, at the server or by what clients trust; and the rest holds too."""
    found = Search(scenario).run(MOST)
    print(found)
    assert found.wrong is None, str(found)
    assert found.complete or LONG


def lowest(_state: State, permits: int, *_planned: object) -> Sequence[int]:
    return range(permits)


def planned_are_free(state: State, permits: int, *_planned: object) -> Sequence[int]:
    return assign(state, permits)


@pytest.mark.parametrize(
    ("name", "module", "instead"),
    [
        ("fair+keys the overall limit, and keys", queue, lowest),
        ("fair+keys the overall limit, and keys", keyed, lowest),
        ("fair weights, and a kept lease", serving, planned_are_free),
    ],
)
def test_a_server_that_gives_a_slot_twice_is_found(
    name: str, module: ModuleType, instead: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "assign", instead)
    found = Search(SLOTTED[name]).run()
    assert "have one slot" in (found.wrong or ""), str(found)
