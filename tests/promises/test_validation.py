"""What cannot be meant is refused at the call, in words that help, and nothing is sent."""

import asyncio
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, Mutex, SemaphoreGroup, aclose
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client, Make

pytestmark = pytest.mark.one_mode

NAN, INFINITY = math.nan, math.inf

BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"limit": True}, TypeError, "limit must be an int"),
    ({"limit": False}, TypeError, "limit must be an int"),
    ({"limit": 2.0}, TypeError, "limit must be an int"),
    ({"limit": "2"}, TypeError, "limit must be an int"),
    ({"limit": None}, TypeError, "limit must be an int"),
    ({"limit": -1}, ValueError, "limit must be at least 0"),
    ({"limit": 10**15 + 1}, ValueError, "limit must be at most"),
    ({"limit": 10**400}, ValueError, "limit must be at most"),
    ({"lease": 0.049}, ValueError, "lease must be .*at least 0.05"),
    ({"lease": 0}, ValueError, "lease must be"),
    ({"lease": -1.0}, ValueError, "lease must be"),
    ({"lease": NAN}, ValueError, "lease must be"),
    ({"lease": INFINITY}, ValueError, "lease must be finite"),
    ({"lease": -INFINITY}, ValueError, "lease must be"),
    ({"lease": "10"}, TypeError, "lease must be"),
    ({"lease": True}, TypeError, "lease must be"),
    ({"lease": None}, TypeError, "lease must be"),
    ({"refresh_interval": 0}, ValueError, "refresh_interval must be"),
    ({"refresh_interval": -1}, ValueError, "refresh_interval must be"),
    ({"refresh_interval": NAN}, ValueError, "refresh_interval must be"),
    ({"refresh_interval": INFINITY}, ValueError, "refresh_interval must be"),
    ({"refresh_interval": 10.0, "lease": 10.0}, ValueError, "refresh_interval .*lease"),
    ({"refresh_interval": "1"}, TypeError, "refresh_interval must be"),
    ({"timeout": -0.001}, ValueError, "timeout must not be negative"),
    ({"timeout": -INFINITY}, ValueError, "timeout must not be negative"),
    ({"timeout": NAN}, ValueError, "timeout must be a number"),
    ({"timeout": "1"}, TypeError, "timeout must be a number"),
    ({"timeout": True}, TypeError, "timeout must be a number"),
    ({"max_waiters": -1}, ValueError, "max_waiters must be at least 0"),
    ({"max_waiters": 1.5}, TypeError, "max_waiters must be an int"),
    ({"max_waiters": True}, TypeError, "max_waiters must be an int"),
    ({"cancel_on_loss": None}, TypeError, "cancel_on_loss must be True or False"),
    ({"cancel_on_loss": 1}, TypeError, "cancel_on_loss must be True or False"),
    ({"clock": "servers"}, ValueError, "'server' or 'local'"),
    ({"clock": None}, ValueError, "'server' or 'local'"),
    ({"heartbeat": "threads"}, ValueError, "'task' or 'thread'"),
    ({"heartbeat": None}, ValueError, "'task' or 'thread'"),
    ({"longest_stall": 60.0}, ValueError, "longest_stall .*heartbeat='thread'"),
    ({"heartbeat": "thread", "longest_stall": 9.9}, ValueError, "at least the lease of 10"),
    ({"heartbeat": "thread", "longest_stall": INFINITY}, ValueError, "must be finite"),
    ({"heartbeat": "thread", "longest_stall": NAN}, ValueError, "longest_stall must be a number"),
    ({"heartbeat": "thread", "longest_stall": "60"}, TypeError, "longest_stall must be a number"),
    ({"heartbeat": "thread", "longest_stall": True}, TypeError, "longest_stall must be a number"),
    ({"name": ""}, ValueError, "name must have 1 to 512 bytes"),
    ({"name": "x" * 513}, ValueError, "name must have 1 to 512 bytes, not 513"),
    ({"name": "é" * 257}, ValueError, "name must have 1 to 512 bytes, not 514"),
    ({"name": "a{b"}, ValueError, "name must not contain a brace"),
    ({"name": "a}b"}, ValueError, "name must not contain a brace"),
    ({"name": "{tag}"}, ValueError, "name must not contain a brace"),
    ({"name": "\ud800"}, ValueError, "name must be text"),
    ({"name": b"bytes"}, TypeError, "name must be a str"),
    ({"name": None}, TypeError, "name must be a str"),
    ({"name": 7}, TypeError, "name must be a str"),
    ({"prefix": ""}, ValueError, "prefix must"),
    ({"prefix": "a{b}"}, ValueError, "prefix must not contain a brace"),
    ({"prefix": 7}, TypeError, "prefix must be a str"),
    ({"label": 7}, TypeError, "label must be a str"),
    ({"label": "x" * 513}, ValueError, "label must have 1 to 512 bytes"),
    ({"prefix": "x" * 513}, ValueError, "prefix must have 1 to 512 bytes"),
    ({"max_waiters": 10**400}, ValueError, "max_waiters must be at most"),
]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    BAD_OPTIONS,
    ids=[re.sub(r"\W+", "-", repr(options))[:40] for options, _, _ in BAD_OPTIONS],
)
def test_bad_options(
    kind: type[AnySemaphore],
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    """At the call, where the traceback shows the mistake: not at the first acquire."""
    given: dict[str, Any] = {"name": "good", "limit": 1, **options}
    name, limit = given.pop("name"), given.pop("limit")
    with pytest.raises(error, match=message):
        kind(MemoryBackend(), name, limit, **given)


def test_odd_options_that_are_fine(kind: type[AnySemaphore]) -> None:
    """Strictness must not refuse what can be meant."""
    backend = MemoryBackend()
    kind(backend, "x" * 512, 0)
    kind(backend, "x", 10**6, lease=0.05, refresh_interval=0.01)
    kind(backend, "x", 1, lease=86_400, timeout=0, max_waiters=0)
    kind(backend, "x", 1, timeout=INFINITY)
    kind(backend, "x", 1, timeout=None, max_waiters=None, label=None, refresh_interval=None)
    kind(backend, "x", 1, heartbeat="task", longest_stall=None)
    kind(backend, "x", 1, lease=1, heartbeat="thread", longest_stall=1)


BAD_REQUESTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"permits": 0}, ValueError, "permits must be at least 1"),
    ({"permits": -1}, ValueError, "permits must be at least 1"),
    ({"permits": True}, TypeError, "permits must be an int"),
    ({"permits": 1.0}, TypeError, "permits must be an int"),
    ({"permits": "1"}, TypeError, "permits must be an int"),
    ({"permits": None}, TypeError, "permits must be an int"),
    ({"permits": 4}, ValueError, "permits must be at most the limit of 3"),
]
BAD_TIMEOUTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"timeout": -1}, ValueError, "timeout must not be negative"),
    ({"timeout": -0.0001}, ValueError, "timeout must not be negative"),
    ({"timeout": NAN}, ValueError, "timeout must be a number"),
    ({"timeout": "1"}, TypeError, "timeout must be a number"),
    ({"timeout": False}, TypeError, "timeout must be a number"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), [*BAD_REQUESTS, *BAD_TIMEOUTS])
async def test_bad_acquires_are_refused_at_the_call(
    make: Make, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    """`acquire(...)` itself raises: nobody has to await it to learn of the mistake."""
    untyped: Any = make(3)
    with pytest.raises(error, match=message):
        untyped.acquire(**arguments)


@pytest.mark.parametrize(("arguments", "error", "message"), BAD_REQUESTS)
async def test_bad_try_acquires(
    make: Make, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    """The same rules."""
    with pytest.raises(error, match=message):
        await make(3).try_acquire(**arguments)


async def _calls(sem: AnySemaphore) -> list[tuple[Callable[[], Any], type[Exception], str]]:
    untyped: Any = sem
    return [
        (untyped.release, TypeError, "release.*Permit|Permit.*release"),
        (lambda: untyped.release(None), TypeError, "[Pp]ermit"),
        (lambda: untyped.release(7), TypeError, "[Pp]ermit"),
        (lambda: untyped.release(b"0.1"), TypeError, "[Pp]ermit"),
        (untyped.adopt, TypeError, "permit_id|id"),
        (lambda: untyped.adopt(None), TypeError, "id"),
        (lambda: untyped.adopt(7), TypeError, "id"),
        (lambda: untyped.set_limit(-1), ValueError, "limit must be at least 0"),
        (lambda: untyped.set_limit(1.5), TypeError, "limit must be an int"),
        (lambda: untyped.set_limit(True), TypeError, "limit must be an int"),
        (lambda: untyped.set_limit("3"), TypeError, "limit must be an int"),
        (lambda: untyped.status(max_entries=-1), ValueError, "max_entries must be"),
        (lambda: untyped.status(max_entries=True), TypeError, "max_entries must be"),
        (lambda: untyped.acquire(permits=0), ValueError, "permits must be"),
        (lambda: untyped.acquire(timeout=-1), ValueError, "timeout must not be negative"),
        (lambda: untyped.acquire(2.0), TypeError, "positional"),  # a time, or a number?
    ]


async def _refused(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        await call()


async def test_bad_calls_send_nothing(kind: type[AnySemaphore]) -> None:
    """No server is needed to refuse them: none is even connected to."""
    connected = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected
        connected += 1
        writer.close()

    async with await asyncio.start_server(count, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        sem = kind(Redis(port=port), "nothing is sent", 3)
        for call, error, message in await _calls(sem):
            await _refused(call, error, message)
    assert connected == 0


async def test_release_of_a_permit_says_how(make: Make) -> None:
    """The likeliest slip: the message has to name the way out."""
    sem = make(1)
    untyped: Any = sem
    async with sem as permit:
        with pytest.raises(TypeError, match=r"Permit.*release\(\)|release.*Permit"):
            await untyped.release(permit)
        with pytest.raises(TypeError, match=r"Permit"):
            await untyped.adopt(permit)
        permit.check()


@pytest.mark.parametrize("expires_in", [0, -1, 0.01, NAN, INFINITY, "5", True])
async def test_bad_detaches_detach_nothing(make: Make, expires_in: Any) -> None:
    """A permit that was detached by mistake would be nobody's."""
    async with make(1) as permit:
        with pytest.raises((ValueError, TypeError), match="expires_in must be"):
            await permit.detach(expires_in)
        permit.check()
        await permit.refresh()


def test_a_synchronous_client_is_refused(kind: type[AnySemaphore]) -> None:
    """It would block the event loop; the message says which one to use."""
    untyped: Any = redis.Redis(port=1)
    with untyped, pytest.raises(TypeError, match=r"redis\.asyncio"):
        kind(untyped, "good", 1)


@pytest.mark.parametrize(
    "client", [None, "redis://localhost", object(), Redis], ids=["None", "url", "object", "class"]
)
def test_what_is_no_client_is_refused(kind: type[AnySemaphore], client: Any) -> None:
    """A URL is the likeliest."""
    with pytest.raises(TypeError, match=r"redis\.asyncio"):
        kind(client, "good", 1)


def test_arguments_in_the_wrong_order_are_refused(kind: type[AnySemaphore]) -> None:
    """Name and limit are easily swapped."""
    untyped: Any = kind
    with pytest.raises(TypeError, match=r"str|int"):
        untyped(MemoryBackend(), 3, "good")
    with pytest.raises(TypeError):
        untyped(MemoryBackend(), "good")
    with pytest.raises(TypeError, match="positional"):
        untyped(MemoryBackend(), "good", 3, 10.0)
    with pytest.raises(TypeError, match="unexpected"):
        untyped(MemoryBackend(), "good", 3, leese=10.0)


@pytest.mark.parametrize("options", [{}, {"limit": 3, "leese": 10.0}, {"mode": "fair"}])
def test_wrong_arguments_name_the_class_that_was_called(
    kind: type[AnySemaphore], options: dict[str, Any]
) -> None:
    """The base class is not what the user wrote, and the message shows the right call."""
    untyped: Any = kind
    with pytest.raises(TypeError) as caught:
        untyped(MemoryBackend(), "good", **options)
    message = str(caught.value)
    assert message.startswith(f"{kind.__name__}(): ")
    assert f"use {kind.__name__}(redis, name, limit), with options as keywords" in message
    assert "AnySemaphore" not in message
    assert "__init__" not in message


def test_wrong_arguments_of_a_subclass_name_the_subclass() -> None:
    """It inherits the constructor."""

    class Slots(FairSemaphore):
        pass

    untyped: Any = Slots
    with pytest.raises(TypeError, match=r"^Slots\(\): missing .*'limit'; use Slots\(redis"):
        untyped(MemoryBackend(), "good")


def test_a_mutex_takes_no_limit() -> None:
    """The message says which class takes one."""
    untyped: Any = Mutex
    with pytest.raises(TypeError, match=r"limit of a Mutex is 1: .*FairSemaphore"):
        untyped(MemoryBackend(), "good", limit=2)
    for arguments, options in [((2,), {}), ((), {"leese": 1.0})]:
        with pytest.raises(TypeError, match=r"^Mutex\(\): .*use Mutex\(redis, name\)"):
            untyped(MemoryBackend(), "good", *arguments, **options)


def test_an_unknown_option_of_a_group_names_the_group() -> None:
    """It makes the semaphores, and the user has not called their class."""
    untyped: Any = SemaphoreGroup
    for option in ("leese", "name"):
        with pytest.raises(TypeError, match=rf"^SemaphoreGroup\(\): .*'{option}'"):
            untyped(MemoryBackend(), "good", 1, **{option: 1})


def test_a_mutex_is_as_strict() -> None:
    """It passes its options on."""
    with pytest.raises(ValueError, match="lease must be"):
        Mutex(MemoryBackend(), "good", lease=0.01)
    with pytest.raises(ValueError, match="name must"):
        Mutex(MemoryBackend(), "")


@pytest.mark.parametrize("drain", [-1, -0.001, NAN, "1", True])
async def test_bad_drains(client: Client, drain: Any) -> None:
    """Infinity is fine: whoever wants to wait for ever may."""
    with pytest.raises((ValueError, TypeError), match="drain must"):
        await aclose(client, drain=drain)


@pytest.mark.parametrize("client", [None, "redis://localhost", 7], ids=repr)
async def test_what_is_no_client_cannot_be_closed(client: Any) -> None:
    """Closing nothing in silence would hide a mistake."""
    with pytest.raises(TypeError):
        await aclose(client)


async def test_the_facts_of_a_semaphore_are_read_only(make: Make) -> None:
    """Assigning a limit would change this object only, and not what was promised of it."""
    sem: Any = make(1)
    for attribute in ("name", "limit", "lease"):
        with pytest.raises(AttributeError):
            setattr(sem, attribute, 5)
    async with sem as permit:
        for attribute in ("id", "name", "fencing_token", "waited", "expires_in", "lost"):
            with pytest.raises(AttributeError):
                setattr(permit, attribute, 5)
