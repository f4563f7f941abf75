"""The public surface: what is exported, and that each of it is documented and typed."""

import inspect
from typing import Any

import pytest

import redsem_async
from redsem_async import testing
from redsem_async._core.config import FairOptions, Options, Terms

NAMES = {
    *("AcquireTimeout", "AnySemaphore", "BackOff", "BackendError", "BackendUnavailable"),
    *("Client", "FairSemaphore", "Holder", "KeyStatus", "LayoutMismatch", "ModeMismatch"),
    *("Mutex", "Permit", "PermitLost", "QueueFull", "Rate", "RateStatus", "Semaphore"),
    *("SemaphoreClosed", "SemaphoreError", "SemaphoreFull", "SemaphoreGroup", "SemaphoreStatus"),
    *("SlotsMismatch", "Waiter", "aclose", "connect", "from_url"),
}
MEMBERS = {
    "AnySemaphore": {
        *("acquire", "adopt", "available", "back_off", "delete", "exists", "keyed", "lease"),
        *("limit", "locked", "name", "pause", "ready", "reap", "release", "resume"),
        *("set_limit", "status", "timeout", "try_acquire"),
    },
    "Permit": {
        *("back_off", "check", "detach", "expires_in", "fencing_token", "id", "lost", "name"),
        *("permits", "refresh", "release", "settle", "slot", "slots", "wait_lost", "waited"),
    },
}


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_the_package_exports_what_is_promised() -> None:
    """What is exported by accident is relied on by somebody next week."""
    assert set(redsem_async.__all__) == NAMES


@pytest.mark.parametrize("name", MEMBERS)
def test_members_are_what_is_promised(name: str) -> None:
    """Every member is a promise: none is added or lost in passing."""
    assert public(getattr(redsem_async, name)) == MEMBERS[name]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_public_name_is_documented(name: str) -> None:
    """Users read the docstring and rely on it."""
    thing: Any = getattr(redsem_async, name)
    assert inspect.getdoc(thing)
    if inspect.isclass(thing) and not issubclass(thing, BaseException):
        for member in public(thing):
            own = inspect.getdoc(inspect.getattr_static(thing, member))
            assert own or f"{member}: " in (inspect.getdoc(thing) or ""), f"{name}.{member}"


def test_every_option_has_a_type_a_check_and_a_meaning() -> None:
    """They stand in `Options`, in `Terms` and in the constructor that all classes share."""
    checked = {*inspect.signature(Terms).parameters} - {"limit"}
    assert checked == FairOptions.__optional_keys__
    text = inspect.getdoc(redsem_async.AnySemaphore.__init__) or ""
    assert {option for option in checked if f"\n    {option}: " not in text} == set()
    for kind in (redsem_async.Semaphore, redsem_async.FairSemaphore, redsem_async.Mutex):
        taken = {*inspect.signature(kind).parameters} - {"redis", "name", "limit"}
        fair = kind is redsem_async.FairSemaphore
        assert taken == (FairOptions if fair else Options).__optional_keys__


def coroutines() -> list[Any]:
    """What is awaited of the public surface, by its name."""
    owners = [redsem_async, *(getattr(redsem_async, name) for name in sorted(NAMES))]
    owners = [owner for owner in owners if not isinstance(owner, type(coroutines))]
    return [
        pytest.param(thing, id=f"{owner.__name__}.{name}")
        for owner in owners
        for name in sorted(public(owner))
        if inspect.isfunction(thing := inspect.getattr_static(owner, name))
        and (inspect.iscoroutinefunction(thing) or returns_awaitable(thing))
    ]


def returns_awaitable(thing: Any) -> bool:
    returned = str(inspect.get_annotations(thing).get("return"))
    return any(word in returned for word in ("Acquisition", "Awaitable", "Coroutine"))


@pytest.mark.parametrize("thing", coroutines())
def test_every_coroutine_says_what_it_raises_and_what_cancellation_does(thing: Any) -> None:
    """Callers decide by it what to handle."""
    text = inspect.getdoc(thing) or ""
    assert "Raises:" in text
    assert "cancel" in text.lower()


def test_the_test_tools_export_what_is_promised() -> None:
    """Users' tests rest on these."""
    assert {"MemoryBackend", "embedded_redis", "unlimited"} <= set(testing.__all__)


def test_every_error_has_the_one_base() -> None:
    """`except SemaphoreError` catches whatever this library raises on its own account."""
    errors = [redsem_async.AcquireTimeout, redsem_async.BackendUnavailable]
    assert all(issubclass(error, redsem_async.SemaphoreError) for error in errors)
    assert issubclass(redsem_async.AcquireTimeout, TimeoutError)
    assert issubclass(redsem_async.BackendUnavailable, ConnectionError)
