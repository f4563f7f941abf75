"""The judge finds what clients trust in vain. What it says of calls, wrong histories show."""

import redsem_async._protocol.operations as op
from redsem_async._protocol.replies import Reply
from tests.worlds.judge import LIMIT, TRUST, Judge, Look, Permit

HUB = "a" * 32
OURS, THEIRS = f"{HUB}.1", f"{'b' * 32}.1"


def rules_broken(judge: Judge, *trusted: tuple[str, Permit]) -> set[str]:
    """What is wrong with a grant to us, of one permit, beside what is trusted."""
    before, after = Look(0, 1, {}, []), Look(0, 2, {OURS: Permit(1000, 1, 1)}, [])
    call = op.Acquire([1], 1000, 1)
    return {wrong.rule for wrong in judge.ran(before, call, HUB, Reply([1]), after, trusted)}


def test_what_is_trusted_is_held() -> None:
    assert not rules_broken(Judge(), (OURS, Permit(1000, 1, 1)))
    assert rules_broken(Judge(), (OURS, Permit(1001, 1, 1))) == {TRUST}
    assert rules_broken(Judge(), (OURS, Permit(1000, 2, 1))) == {TRUST}
    assert rules_broken(Judge(), (THEIRS, Permit(1000, 1, 1))) == {TRUST}
    assert rules_broken(Judge(), *[(OURS, Permit(1000, 1, 1))] * 2) == {TRUST}


def test_what_was_lost_is_in_use_where_nobody_else_is_to_be_admitted() -> None:
    lost = Permit(900, 0, 1)
    for recovers, wrong in ((False, set[str]()), (True, {LIMIT})):
        judge = Judge()
        judge.flushed(Look(0, 1, {THEIRS: lost}, []), 0, recovers=recovers)
        assert rules_broken(judge, (THEIRS, lost)) == wrong
