"""What a hub reads out of messages, which anybody may publish: those it knows, or nothing."""

import gc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redsem_async._protocol.hub_info import describe, facts_of
from redsem_async._protocol.pushes import Deleted, Granted, Recheck, Revoked, push_of
from redsem_async._protocol.replies import Holding

TOKEN = 1_800_000_000_000_000
LONG = "9" * 400

numbers = st.one_of(
    st.integers(),
    st.integers(min_value=0, max_value=2**53),
    st.sampled_from([2**53, 2**53 + 1, 10**15, 10**15 + 1, 10**400]),
).map(str)
oddities = st.sampled_from(["", " 1", "+1", "1_0", "1.5", "1e3", "٣", "²", "-0", "nan", "x"])
parts = st.one_of(numbers, oddities)
lists = st.lists(st.lists(parts, max_size=4).map(":".join), max_size=4).map(",".join)
kinds = st.sampled_from(["granted", "revoked", "recheck", "deleted", "nonsense", ""])
texts = st.tuples(kinds, lists, st.text(max_size=5)).map(" ".join)


def test_what_a_hub_did_not_say_of_itself_is_no_facts() -> None:
    gc.disable()  # a finalizer that runs within so many lists cannot do its work
    try:
        assert facts_of('{"a":' * 100_000) == {}
    finally:
        gc.enable()
    for description in ("", "not JSON", "[" * 100_000, "[1]", '{"limit":'):
        assert facts_of(description) == {}
    assert facts_of(describe(limit=1)) == {"limit": 1}


@given(st.one_of(texts.map(lambda text: text.encode(errors="replace")), st.binary()))
@example(b"granted 1:1:%b jobs" % LONG.encode())
@example(b"granted 1:%b:1 jobs" % LONG.encode())
@example(b"granted %b:1:1 jobs" % LONG.encode())
@example(b"revoked %b jobs" % LONG.encode())
@example(b"granted 0:1:1 jobs")
def test_numbers_of_messages_are_bounded(raw: bytes) -> None:
    """A hub computes with them: one that no float holds would end its connection."""
    match push_of(raw):
        case Granted(grants=grants):
            assert grants
            for number, (token, left_ms, _) in grants:
                assert 1 <= number <= 2**53
                assert 0 <= token <= 2**53
                assert 0 <= left_ms <= 10**15
        case Revoked(numbers=taken):
            assert all(0 <= number <= 2**53 for number in taken)
        case Deleted() | Recheck() | None:
            pass


def test_what_scripts_publish_is_understood() -> None:
    """The bounds leave room for whatever a script says."""
    granted = f"granted 1:{TOKEN}:1000,{2**53}:{TOKEN + 1}:{10**15} a name"
    assert push_of(granted.encode()) == Granted(
        "a name", [(1, Holding(TOKEN, 1000)), (2**53, Holding(TOKEN + 1, 10**15))]
    )
    assert push_of(b"revoked 1,22 jobs") == Revoked("jobs", [1, 22])
    assert push_of(b"recheck - jobs") == Recheck("jobs")
    assert push_of(b"deleted - jobs") == Deleted("jobs")


@pytest.mark.parametrize("what", ["+1", "1_0", " 1", "1.0", "٣", "²", "-1", ""])
def test_a_number_is_digits_alone(what: str) -> None:
    """What Python takes for a number besides is none that a script wrote."""
    assert push_of(f"revoked {what} jobs".encode()) is None
    assert push_of(f"granted 1:1:{what} jobs".encode()) is None
