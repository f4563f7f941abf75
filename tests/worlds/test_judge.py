"""The judge finds what wrong histories do not show: vain trust, lost facts, broken back-offs."""

import redsem_async._protocol.operations as op
from redsem_async._protocol.replies import FULL, Reply
from tests.worlds.judge import BACK_OFF, LIMIT, TRUST, Judge
from tests.worlds.look import BackOff, Look, Permit, Ran

HUB = "a" * 32
OURS, THEIRS = f"{HUB}.1", f"{'b' * 32}.1"


def rules_broken(judge: Judge, *trusted: tuple[str, Permit]) -> set[str]:
    """What is wrong with a grant to us, of one permit, beside what is trusted."""
    before, after = Look(0, {}, []), Look(0, {OURS: Permit(1000, 1, 1)}, [])
    call = op.Acquire([1], 1000, 1)
    return {wrong.rule for wrong in judge.ran(Ran(before, call, HUB, Reply([1]), after), trusted)}


def test_what_is_trusted_is_held() -> None:
    assert not rules_broken(Judge(), (OURS, Permit(1000, 1, 1)))
    assert rules_broken(Judge(), (OURS, Permit(1001, 1, 1))) == {TRUST}
    assert rules_broken(Judge(), (OURS, Permit(1000, 2, 1))) == {TRUST}
    assert rules_broken(Judge(), (THEIRS, Permit(1000, 1, 1))) == {TRUST}
    assert rules_broken(Judge(), *[(OURS, Permit(1000, 1, 1))] * 2) == {TRUST}


def test_nothing_is_granted_while_facts_are_lost() -> None:
    lost, call = {THEIRS: Permit(1000, 0, 1)}, op.Acquire([1], 1000, 2)
    for said, holders, wrong in (
        (FULL, lost, set[str]()),
        (1, lost | {OURS: Permit(1000, 1, 1)}, {LIMIT}),
    ):
        before, after = Look(0, lost, []), Look(0, holders, [])
        assert {
            rule for rule, _ in Judge().ran(Ran(before, call, HUB, Reply([said]), after))
        } == wrong


def test_a_back_off_holds_grants_off_and_ends_no_earlier() -> None:
    pause: dict[str | None, BackOff] = {None: BackOff(ends=500, began=0, step=100)}
    shorter: dict[str | None, BackOff] = {None: BackOff(ends=400, began=0, step=100)}
    call = op.Acquire([1], 1000, 4)
    for now_ms, kept, grants, wrong in (
        (499, pause, True, {BACK_OFF}),
        (499, pause, False, set[str]()),
        (499, shorter, False, {BACK_OFF}),
        (499, {}, False, {BACK_OFF}),
        (500, pause, True, set[str]()),
    ):
        before = Look(1000 * now_ms, {}, [], back_offs=pause)
        holders = {OURS: Permit(now_ms + 1000, 1, 1)} if grants else {}
        after = Look(1000 * now_ms, holders, [], back_offs=kept)
        broken = Judge().ran(Ran(before, call, HUB, Reply([int(grants)]), after))
        assert {rule for rule, _ in broken} == wrong
