"""What cannot be meant is refused at the call, with a message that helps, and nothing is sent."""

import copy
import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.asyncio import ConnectionPool, Redis

from redsem_async import FairSemaphore, Mutex, Semaphore, SemaphoreGroup, aclose, from_url
from redsem_async._core import config
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client, Kind, Make

NAN, INFINITY = math.nan, math.inf
REFUSED = (TypeError, ValueError)

Bad = tuple[str, type[Exception], str, list[Any]]

BAD_TIMEOUTS: list[Bad] = [
    ("timeout", ValueError, "timeout must be 0 or more", [-1, -0.001, -INFINITY]),
    ("timeout", ValueError, "timeout must be a number", [NAN]),
    ("timeout", TypeError, "timeout must be a number", ["1", True, False]),
]
BAD_OPTIONS: list[Bad] = [
    *BAD_TIMEOUTS,
    ("limit", TypeError, "limit must be an int", [True, False, 2.0, "2", None]),
    ("limit", ValueError, "limit must be at least 0", [-1]),
    ("limit", ValueError, "limit must be at most", [10**15 + 1, 10**400]),
    ("lease", ValueError, "lease must be .*at least 0.05", [0.049]),
    ("lease", ValueError, "lease must be", [0, -1.0, NAN, -INFINITY]),
    ("lease", ValueError, "lease must be finite", [INFINITY]),
    ("lease", TypeError, "lease must be", ["10", True, None]),
    ("refresh_interval", ValueError, "refresh_interval must be", [0, -1, NAN, INFINITY]),
    ("refresh_interval", ValueError, "refresh_interval .*lease", [10.0]),
    ("refresh_interval", TypeError, "refresh_interval must be", ["1"]),
    ("max_waiters", ValueError, "max_waiters must be at least 0", [-1]),
    ("max_waiters", ValueError, "max_waiters must be at most", [10**400]),
    ("max_waiters", TypeError, "max_waiters must be an int", [1.5, True]),
    ("cancel_on_loss", TypeError, "cancel_on_loss must be True or False", [None, 1]),
    ("max_hold", ValueError, "max_hold must be at least the lease", [9.9, -1, 1e10, INFINITY]),
    ("max_hold", ValueError, "max_hold must be a number", [NAN]),
    ("max_hold", TypeError, "max_hold must be a number", ["900", True]),
    ("clock", ValueError, "'server' or 'local'", ["servers", None]),
    ("name", ValueError, "name must have 1 to 512 bytes", [""]),
    ("name", ValueError, "name must have 1 to 512 bytes, not 513", ["x" * 513]),
    ("name", ValueError, "name must have 1 to 512 bytes, not 514", ["é" * 257]),
    ("name", ValueError, "name must not contain a brace", ["a{b", "a}b", "{tag}"]),
    ("name", ValueError, "name must be text", ["\ud800"]),
    ("name", TypeError, "name must be a str", [b"bytes", None, 7]),
    ("prefix", ValueError, "prefix must have 1 to 512 bytes", ["", "x" * 513]),
    ("prefix", ValueError, "prefix must not contain a brace", ["a{b}"]),
    ("prefix", TypeError, "prefix must be a str", [7]),
    ("label", TypeError, "label must be a str", [7]),
    ("label", ValueError, "label must have 1 to 512 bytes", ["x" * 513]),
]
BAD_WEIGHTS: list[Bad] = [
    ("permits", ValueError, "permits must be at least 1", [0, -1]),
    ("permits", ValueError, "permits must be at most the limit of 3", [4]),
    ("permits", TypeError, "permits must be an int", [True, 1.0, "1", None]),
]
BAD_HEAD_STARTS: list[Bad] = [
    ("ahead", ValueError, "ahead must be at least 0 and at most 3600", [-1, 3601, INFINITY]),
    ("ahead", ValueError, "ahead must be a number", [NAN]),
    ("ahead", TypeError, "ahead must be a number", ["30", None, True]),
]


def each(bad: list[Bad], **beside: Any) -> pytest.MarkDecorator:
    """A run of the test with each bad value of the table."""
    runs = [
        pytest.param({argument: value, **beside}, error, message, id=f"{argument}-{value!a:.20}")
        for argument, error, message, values in bad
        for value in values
    ]
    return pytest.mark.parametrize(("given", "error", "message"), runs)


@each(BAD_OPTIONS)
def test_bad_options_are_refused(
    kind: Kind, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    """At the call, where the traceback shows the mistake: not at the first acquire."""
    untyped: Any = kind
    options = {"name": "good", "limit": 1, **given}
    with pytest.raises(error, match=message):
        untyped(MemoryBackend(), options.pop("name"), options.pop("limit"), **options)


@pytest.mark.parametrize(
    "options",
    [
        *({"name": "x" * 512, "limit": 0}, {"lease": 0.05, "refresh_interval": 0.01}),
        *({"lease": 86_400, "timeout": 0, "max_waiters": 0}, {"timeout": INFINITY}),
        dict.fromkeys(("timeout", "max_waiters", "label", "refresh_interval")),
        *({"lease": 1, "max_hold": 1}, {"lease": 0.1 * 3, "max_hold": 0.3}),
        *({"lease": 0.35 - 0.3}, {"lease": 1e9 + 1e-7}),
    ],
    ids=str,
)
def test_odd_options_that_can_be_meant_are_taken(options: dict[str, Any]) -> None:
    """What arithmetic on floats put beyond a bound counts as the bound, which no part exceeds."""
    given: dict[str, Any] = {"name": "good", "limit": 1, **options}
    terms = FairSemaphore(MemoryBackend(), **given)._terms
    assert config.SHORTEST_LEASE <= terms.lease <= config.LONGEST_LEASE
    assert terms.lease <= (terms.max_hold or math.inf)
    assert (terms.timeout or 0) < math.inf


# -- calls


@each([*BAD_WEIGHTS, *BAD_TIMEOUTS, *BAD_HEAD_STARTS])
async def test_bad_acquires_are_refused_at_the_call(
    make: Make, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    """`acquire(...)` itself raises, before it is awaited."""
    sem: Any = make(3)
    with pytest.raises(error, match=message):
        sem.acquire(**given)
    if "permits" in given:
        with pytest.raises(error, match=message):
            await sem.try_acquire(**given)


def _bad_calls(sem: Any) -> list[tuple[Callable[[], Any], type[Exception], str]]:
    zset: Any = Semaphore(MemoryBackend(), "zset", 1)
    return [
        (sem.adopt, TypeError, "permit_id|id"),
        (lambda: sem.adopt(None), TypeError, "id"),
        (lambda: sem.adopt(7), TypeError, "id"),
        (lambda: sem.set_limit(-1), ValueError, "limit must be at least 0"),
        (lambda: sem.set_limit(1.5), TypeError, "limit must be an int"),
        (lambda: sem.set_limit(True), TypeError, "limit must be an int"),
        (lambda: sem.set_limit("3"), TypeError, "limit must be an int"),
        (lambda: sem.status(max_entries=-1), ValueError, "max_entries must be"),
        (lambda: sem.status(max_entries=True), TypeError, "max_entries must be"),
        (lambda: sem.ready(timeout=0), ValueError, "timeout must be at least 0.001"),
        (lambda: sem.ready(timeout=None), TypeError, "timeout must be a number"),
        (lambda: sem.acquire(permits=0), ValueError, "permits must be"),
        (lambda: sem.acquire(timeout=-1), ValueError, "timeout must be 0 or more"),
        (lambda: zset.acquire(ahead=1.0), TypeError, "ahead"),
        (lambda: sem.acquire(2.0), TypeError, "positional"),  # a time, or a number?
    ]


async def test_bad_calls_send_nothing() -> None:
    """What is sent while no server is there has another error."""
    memory = MemoryBackend()
    memory.down()
    for call, error, message in _bad_calls(FairSemaphore(memory, "nothing is sent", 3)):
        with pytest.raises(error, match=message):
            await call()


async def test_release_of_a_permit_says_how(make: Make) -> None:
    """The likeliest slips: the message names the way out, also where no await is written."""
    untyped: Any = make(1)
    for arguments in ((), (None,), (7,), (b"0.1",)):
        with pytest.raises(TypeError, match=r"await permit\.release\(\)"):
            untyped.release(*arguments)
    async with untyped as permit:
        with pytest.raises(TypeError, match=r"Permit.*release\(\)|release.*Permit"):
            await untyped.release(permit)
        with pytest.raises(TypeError, match=r"Permit"):
            await untyped.adopt(permit)
        permit.check()


@pytest.mark.parametrize("expires_in", [0, -1, 0.01, NAN, INFINITY, "5", True])
async def test_bad_detaches_detach_nothing(make: Make, expires_in: Any) -> None:
    async with make(1) as permit:
        with pytest.raises(REFUSED, match="expires_in must be"):
            await permit.detach(expires_in)
        permit.check()
        await permit.refresh()


@pytest.mark.parametrize("drain", [-1, -0.001, NAN, "1", True])
async def test_a_bad_drain_is_refused(client: Client, drain: Any) -> None:
    """Infinity is fine: a program may want to wait forever."""
    with pytest.raises(REFUSED, match="drain must"):
        await aclose(client, drain=drain)


# -- clients, and arguments of the classes


NO_CLIENTS: dict[str, Any] = {
    "None": None,
    "url": "redis://localhost",
    "object": object(),
    "class": Redis,
    "synchronous": redis.Redis(port=1),  # it would block the event loop
}


@pytest.mark.parametrize("client", NO_CLIENTS.values(), ids=NO_CLIENTS)
async def test_what_is_no_client_is_refused(client: Any) -> None:
    """When a semaphore is made, and when it is closed: in silence it would hide a mistake."""
    with pytest.raises(TypeError, match=r"redis\.asyncio"):
        FairSemaphore(client, "good", 1)
    with pytest.raises(TypeError):
        await aclose(client)


_FAKE: Any = type("FakeRedis", (Redis,), {"__module__": "fakeredis._clients._async"})
NEARLY_CLIENTS: dict[str, tuple[Callable[[], object], str]] = {
    "fakeredis": (_FAKE, "use redsem_async.testing.MemoryBackend()"),
    "a client over its connections": (
        lambda: Redis(connection_pool=ConnectionPool(_FAKE)),
        "use redsem_async.testing.MemoryBackend()",
    ),
    "a pool": (ConnectionPool, "use redis.asyncio.Redis(connection_pool=pool)"),
    "a pool that is not awaited": (
        redis.ConnectionPool,
        "use redis.asyncio.Redis(connection_pool",
    ),
    "no scheme": (
        lambda: from_url("localhost:6379"),
        "'localhost:6379' is not a URL: write 'redis:",
    ),
}


@pytest.mark.parametrize("what", NEARLY_CLIENTS)
def test_what_is_nearly_a_client_is_told_what_to_use(what: str) -> None:
    """Each is near to a client, and fails at its first use in ways that say nothing."""
    make, advice = NEARLY_CLIENTS[what]
    untyped: Any = FairSemaphore
    with pytest.raises((TypeError, ValueError), match=re.escape(advice)):
        untyped(make(), "jobs", 1)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((3, "good"), {}, r"str|int"),  # in the wrong order
        (("good",), {}, "missing .*'limit'"),
        (("good", 3, 10.0), {}, "positional"),
        (("good", 3), {"leese": 10.0}, "unexpected"),
        (("good",), {"mode": "fair"}, "unexpected|missing"),
    ],
)
def test_wrong_arguments_name_the_class_that_was_called(
    kind: Kind, arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    """Not one of its bases, and the message shows the right call."""
    called: Any = type("Slots", (kind,), {})
    with pytest.raises(TypeError, match=message) as caught:
        called(MemoryBackend(), *arguments, **options)
    said = str(caught.value)
    assert not {"AnySemaphore", "__init__"} & {*re.findall(r"\w+", said)}
    if arguments[0] == "good":
        assert said.startswith("Slots(): ")
        assert "use Slots(redis, name, limit), with options as keywords" in said


def test_a_mutex_takes_no_limit() -> None:
    """The message says which class takes one; other options are those of its base."""
    untyped: Any = Mutex
    with pytest.raises(TypeError, match=r"limit of a Mutex is 1: .*FairSemaphore"):
        untyped(MemoryBackend(), "good", limit=2)
    for arguments, options in [((2,), {}), ((), {"leese": 1.0})]:
        with pytest.raises(TypeError, match=r"^Mutex\(\): .*use Mutex\(redis, name\)"):
            untyped(MemoryBackend(), "good", *arguments, **options)
    with pytest.raises(ValueError, match="lease must be"):
        Mutex(MemoryBackend(), "good", lease=0.01)
    with pytest.raises(ValueError, match="name must"):
        Mutex(MemoryBackend(), "")


async def test_pickling_or_copying_says_what_to_do_instead(client: Client) -> None:
    """A copy of a permit would release it."""
    sem = FairSemaphore(client, "jobs", 1)
    async with sem as permit:
        for made, says in (
            (sem, "create one in each process"),
            (SemaphoreGroup(client, "jobs", limit=1), "create one in each process"),
            (permit, "detach it, and adopt its id"),
        ):
            for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match=says):
                    attempt(made)
        permit.check()
