"""The verbs of two hubs in any order, beside the real scripts in memory.

Each step is judged by the rules of every run, and by what ties the parts of each state. In the end
nothing goes wrong any more, and then everybody is served and nothing is left. Hypothesis draws the
steps from a fixed seed. With ``REDSEM_STATEFUL_RUNS`` it draws others, and shrinks what fails.
"""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from redsem_async._core.keys import Mode
from redsem_async._protocol.errors import ErrorKind

from .verbs import LEASES, NAMES, Verbs

RUNS = int(os.environ.get("REDSEM_STATEFUL_RUNS", "0"))
MODES: tuple[Mode, ...] = (
    *("fair", "zset", "fair+keys", "fair+share", "fair+slots", "zset+slots"),
    *("fair+rate", "fair+keys+rate", "fair+share+rate+slots"),
)
REFUSALS = ErrorKind.RETRY_NOW, ErrorKind.BUSY, ErrorKind.READ_ONLY, ErrorKind.NO_MEMORY

who, some, few = st.integers(0, 1), st.integers(0, 40), st.integers(1, 8)
CROWDS = st.sampled_from((2, 5, 5, 10, 310))
then = st.sampled_from(("calm", "calm", "arrive", ""))
name, yes_or_no = st.sampled_from(NAMES), st.booleans()


def verb(verb: str, **arguments: st.SearchStrategy[Any]) -> Any:
    def step(self: "AnyOrder", then: str, **drawn: Any) -> None:
        getattr(self.verbs, verb)(**drawn)
        if then:
            getattr(self.verbs, then)()

    step.__name__ = verb
    made: Any = rule
    return made(then=then, **arguments)(step)


class AnyOrder(RuleBasedStateMachine):
    """Any verb may be next."""

    verbs: Verbs

    @initialize(mode=st.sampled_from(MODES), small=yes_or_no, no_push=yes_or_no, crowd=CROWDS)
    def begin(self, mode: Mode, small: bool, no_push: bool, crowd: int) -> None:
        self.verbs = Verbs(mode, small=small, no_push=no_push).__enter__()
        for lease, process in enumerate((0, 1, 0)):
            self.verbs.ask(process, lease=lease)
        self.verbs.ask(count=40 if small or "+" in mode else crowd)
        self.verbs.calm()

    ask = verb(
        "ask",
        who=who,
        name=name,
        count=few,
        timeout=st.sampled_from((None, None, 0, 0.1, 5)),
        permits=st.sampled_from((1, 1, 1, 2)),
        key=st.sampled_from((None, "k", "k", "l")),
        ahead=st.sampled_from((0, 0, 5)),
        lease=st.integers(0, len(LEASES) - 1),
        cost=st.sampled_from((1, 1, 0, 7)),
    )
    adopt = verb("adopt", which=some, who=who)
    cancel = verb("cancel", which=some)
    release = verb(
        "release", which=some, count=few, awaited=yes_or_no, cost=st.sampled_from((None, 0, 1, 4))
    )
    refresh = verb("refresh", which=some, count=few)
    detach = verb("detach", which=some, expires=st.sampled_from((0.5, 4, 60)))
    revoke = verb("revoke", who=who, which=some)
    set_limit = verb("set_limit", who=who, name=name, limit=st.sampled_from((None, 0, 1, 3)))
    back_off = verb("back_off", who=who, name=name, seconds=st.sampled_from((0, 0.3, 3)))
    delete = verb("delete", who=who, name=name)
    arrive = verb("arrive", which=some, count=few)
    pass_time = verb(
        "pass_time", seconds=st.sampled_from((0.01, 0.06, 0.4, 1.2, 4, 11)), calm=yes_or_no
    )
    refuse = verb("refuse", kinds=st.lists(st.sampled_from(REFUSALS), min_size=1, max_size=3))
    cut = verb("cut", who=who, lost=st.integers(0, 3), unnoticed=yes_or_no)
    deafen = verb("deafen", who=who, dumb=yes_or_no)
    refuse_connections = verb("refuse_connections", who=who)
    lose_messages = verb("lose_messages", who=who)
    forge = verb(
        "forge",
        who=who,
        kind=st.sampled_from(("granted", "granted", "revoked", "deleted", "recheck")),
        which=st.sampled_from((-1, -1, 0, 1, 7)),
        name=name,
    )
    lose_keys = verb("lose_keys", which=st.integers(-1, 20))

    def teardown(self) -> None:
        if hasattr(self, "verbs"):
            with self.verbs:
                if not self.verbs.violations:
                    self.verbs.heal()


@pytest.mark.timeout(120 + RUNS)
def test_verbs_in_any_order() -> None:
    """Replies, messages, time and losses come in orders that nobody thinks of."""
    usual = settings(
        max_examples=RUNS or 80,
        stateful_step_count=60,
        derandomize=not RUNS,
        database=None,
        phases=[Phase.generate, *[Phase.shrink] * (RUNS > 0)],
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    run_state_machine_as_test(AnyOrder, settings=usual)
