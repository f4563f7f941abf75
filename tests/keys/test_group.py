"""A limit per tenant, domain or model: any text is a key, and nothing is kept of an idle one."""

import asyncio
import gc
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redsem_async import AcquireTimeout, AnySemaphore, Mutex, Semaphore, SemaphoreGroup
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client
from tests.harness.inside import known_to
from tests.harness.wait import until

ODD = ["", " ", "{", "}", "{a}", "a:b", "a\x00b", "ä" * 400, "x" * 600, "\udc80", "*?[a]", "\r\n"]
REMEMBERED = 200  # seconds: a command that was delayed may still come, and must find its marks


@pytest.fixture
def group(client: Client, name: str) -> SemaphoreGroup:
    return SemaphoreGroup(client, name, 1)


@pytest.mark.parametrize("key", ODD, ids=ascii)
async def test_any_text_is_a_key(group: SemaphoreGroup, key: str) -> None:
    """Header values come from outside: they must neither raise nor hit the name of another key."""
    async with group[key]:
        assert await group[key].available() == 0
    assert await group[key].available() == 1


@given(first=st.text(), second=st.text())
def test_different_keys_never_share_a_name(first: str, second: str) -> None:
    names = {SemaphoreGroup(MemoryBackend(), "g", 1).name_of(key) for key in (first, second)}
    assert len(names) == len({first, second})


def test_a_key_is_a_part_of_the_name_as_it_is_while_there_is_room() -> None:
    group = SemaphoreGroup(MemoryBackend(), "g", 1)
    assert [len(group["x" * size].name) for size in (510, 511)] == [512, 131]


@given(key=st.text(min_size=1).map(lambda part: part * 200))
def test_a_key_that_could_be_taken_for_a_digest_is_another(key: str) -> None:
    """What the name of a long key looks like can be sent as a key as well."""
    group = SemaphoreGroup(MemoryBackend(), "g", 1)
    name = group.name_of(key)
    taken = name.removeprefix("g:")
    assert taken == key or group.name_of(taken) != name


async def test_the_limit_may_be_a_function_of_the_key(client: Client, name: str) -> None:
    limits = {"small": 1, "large": 3}
    group = SemaphoreGroup(client, name, limits.__getitem__)
    assert await group["small"].available() == 1
    assert await group["large"].available() == 3
    limits["small"] = 2
    assert group["small"].limit == 2
    with pytest.raises(KeyError):
        group["unknown"]


async def test_options_are_those_of_every_semaphore(client: Client, name: str) -> None:
    sem = SemaphoreGroup(client, name, 1, kind=Semaphore, lease=1.5, timeout=0.0)["a"]
    assert isinstance(sem, Semaphore)
    assert sem.lease == 1.5
    async with sem:
        with pytest.raises(AcquireTimeout):
            await sem.acquire()


async def test_idle_names_leave_nothing(client: MemoryBackend) -> None:
    """Millions of tenants come by in a month, and each is gone a moment later."""
    group = SemaphoreGroup(client, "tenants", 2, lease=0.3)

    async def visit(key: int) -> None:
        async with group[str(key)]:
            pass

    await asyncio.gather(*(visit(key) for key in range(500)))
    await until(lambda: not any(remote.active for remote in known_to(client).values()))

    def none_is_left() -> bool:
        gc.collect()
        return not known_to(client)

    await until(none_is_left, "the semaphores are collected")
    client._store._epoch_us += REMEMBERED * 1_000_000
    redis = client._store.redis
    assert not any(redis.command("EXISTS", key) for key in redis.snapshot())


@pytest.mark.parametrize(
    ("name", "options", "error", "says"),
    [
        ("", {}, ValueError, "name must have 1 to 256 bytes"),
        ("a{b}", {}, ValueError, "brace"),
        (1, {}, TypeError, "name must be a str"),
        ("g", {"limit": None}, TypeError, "limit"),
        ("g", {"limit": "3"}, TypeError, "limit must be an int"),
        ("g", {"kind": Mutex}, TypeError, "limit=1"),
        ("g", {"kind": AnySemaphore}, TypeError, "Semaphore or FairSemaphore"),
        ("g", {"limit": asyncio.sleep}, TypeError, "limit must be a function, not a coroutine"),
        ("g", {"lease": 0.0}, ValueError, "lease"),
        ("g", {"leases": 1.0}, TypeError, r"^SemaphoreGroup\(\): .*'leases'"),
    ],
)
def test_bad_arguments_are_refused_when_the_group_is_made(
    name: Any, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    """Not at the first request of the first tenant."""
    given: dict[str, Any] = {"limit": 1, **options}
    with pytest.raises(error, match=says):
        SemaphoreGroup(MemoryBackend(), name, **given)


@pytest.mark.parametrize("key", [None, 7, b"acme"])
def test_a_key_that_is_no_text_is_refused(key: object) -> None:
    """A missing header is no tenant: all requests that lack it would share one."""
    with pytest.raises(TypeError, match=r"use str\(key\)"):
        SemaphoreGroup(MemoryBackend(), "g", 1)[cast("str", key)]
