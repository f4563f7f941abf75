"""How a connection is opened: every way in which a server may answer until commands can be sent.

In memory, and in simulated time.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.exceptions as errors
from redis.asyncio import Connection, ConnectionPool, Redis
from redis.asyncio.sentinel import Sentinel
from redis.credentials import CredentialProvider

from redsem_async import BackendError, BackendUnavailable, FairSemaphore, aclose, connect
from redsem_async._core.keys import Address
from redsem_async._protocol.backend import ConnectionRejected
from redsem_async._redis import dial as dialling
from redsem_async._redis.backend import RedisBackend
from redsem_async._redis.dial import Destination, dial, on_close, slots_at, target_of
from redsem_async._redis.inquiry import Asker, Met
from redsem_async._redis.sentinels import ANSWER_TIME
from tests.harness.peer import SILENCE, Network, Peer, Wire, error, packed, packed_map, push
from tests.worlds.simulated_time import simulated

UNKNOWN = "ERR unknown command 'HELLO'"
NO_LOGIN = "NOAUTH Authentication required."
ASKER = Asker("0" * 32, Address("zset", "redsem", "jobs", "server"))


def target(*, clustered: bool = False, **settings: Any) -> Destination:
    return Destination(Connection, {"host": "one", "port": 1, **settings}, clustered)


def logins(peer: Peer) -> list[list[bytes]]:
    """What was said to be let in, on every connection."""
    return [each for wire in peer.wires for each in wire.sent if each[0] in (b"HELLO", b"AUTH")]


@pytest.mark.parametrize("text", [UNKNOWN, "NOPROTO unsupported protocol version"])
@simulated
async def test_a_server_without_resp3_is_spoken_to_in_resp2(network: Network, text: str) -> None:
    """On another connection, and without messages."""
    peer = network.peer()
    peer.refuses(text, "HELLO")
    opened = await dial(target())
    assert opened.no_push == "the server does not speak RESP3"
    assert [wire.is_closing() for wire in peer.wires] == [True, False]


@pytest.mark.parametrize("text", [UNKNOWN, NO_LOGIN])
@simulated
async def test_the_login_that_hello_was_to_bring_comes_by_auth(
    network: Network, text: str
) -> None:
    """Some servers want one before they say that they know no HELLO."""
    peer = network.peer()
    peer.refuses(text, "HELLO")
    assert (await dial(target(password="word"))).no_push
    assert logins(peer)[1:] == [[b"AUTH", b"word"]]


@pytest.mark.parametrize(
    ("settings", "text", "told"),
    [
        ({}, NO_LOGIN, r"needs a password: put it into .*REDIS_URL"),
        ({}, "NOAUTH HELLO must be called with the client already authenticated", "REDIS_URL"),
        ({"password": "wrong"}, "WRONGPASS invalid username-password pair", "invalid username"),
        ({"client_name": "x"}, "NOPERM this user has no permissions", "no permissions"),
        ({"client_name": "x"}, "ERR no such name", "no such name"),
    ],
)
@simulated
async def test_who_is_rejected_is_told_why(
    network: Network, settings: Any, text: str, told: str
) -> None:
    """Another attempt is of no use, nor is one in RESP2, unless HELLO is what is lacking."""
    peer, without = network.peer(), network.peer("two")
    without.refuses(UNKNOWN, "HELLO")
    for each, refused in ((peer, "HELLO"), (without, "AUTH")):
        each.refuses(text, "CLIENT" if "client_name" in settings else refused)
    with pytest.raises(ConnectionRejected, match=told):
        await dial(target(**settings))
    assert len(peer.wires) == 1
    if settings:
        with pytest.raises(ConnectionRejected, match=told):
            await dial(target(**settings, host="two"))


@pytest.mark.parametrize("text", ["LOADING Redis is loading", "BUSY Redis is busy"])
@simulated
async def test_a_server_that_cannot_now_is_no_rejection(network: Network, text: str) -> None:
    """It passes, and a rejection ends all that waits."""
    network.peer().refuses(text, "HELLO")
    with pytest.raises(errors.RedisError):
        await dial(target())


async def _by_auth_alone(connection: Any) -> None:
    """As Google's examples do for its IAM: no HELLO, and so RESP2."""
    connection._parser.on_connect(connection)
    await connection.send_command("AUTH", "word", check_health=False)
    assert await connection.read_response() == b"OK"


@pytest.mark.parametrize("hello", [True, False])
@simulated
async def test_a_function_that_logs_in_by_auth_alone_will_do(
    network: Network, hello: bool
) -> None:
    """RESP3 is asked for after it, where there is such a thing."""
    peer = network.peer()
    if not hello:
        peer.refuses(UNKNOWN, "HELLO")
    opened = await dial(target(redis_connect_func=_by_auth_alone))
    said = logins(peer)
    assert said[:2] == [[b"AUTH", b"word"], [b"HELLO", b"3"]]
    assert (opened.no_push is None, len(said)) == (hello, 2 if hello else 3)


# -- the time that it takes


class Fetching(CredentialProvider):
    """Takes its time to fetch a token."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def get_credentials_async(self) -> tuple[str]:
        await asyncio.sleep(self.seconds)
        return ("word",)


awaits_providers = pytest.mark.skipif(
    redis.VERSION < (5, 3), reason="this redis-py awaits no provider"
)


@awaits_providers
@simulated
async def test_a_token_may_take_longer_than_a_connection(network: Network) -> None:
    """A provider that needs six seconds would never log in, and each attempt would ask it anew."""
    network.peer()
    assert (await dial(target(credential_provider=Fetching(6.0)))).no_push is None
    with pytest.raises(errors.TimeoutError, match=r"gave no credentials in 30 s"):
        await dial(target(credential_provider=Fetching(31.0)))


@awaits_providers
@simulated
async def test_the_time_to_connect_is_bounded_after_the_credentials_too(network: Network) -> None:
    """A server that says nothing after it would be waited for without end."""
    network.peer().says["HELLO"] = repeat(SILENCE)
    cases: list[Any] = [{}, {"credential_provider": Fetching(6.0)}]
    for settings in cases:
        began = asyncio.get_running_loop().time()
        with pytest.raises(errors.TimeoutError, match=r"^no answer in 5 s"):
            await dial(target(**settings))
        took = asyncio.get_running_loop().time() - began
        assert took == pytest.approx(5.0 + 6.0 * len(settings))


@pytest.mark.parametrize(("own", "seconds"), [(None, 4), (9.0, 4), (0.3, 0.3)])
@simulated
async def test_a_host_that_drops_packets_is_told_from_one_that_is_silent(
    network: Network, own: float | None, seconds: float
) -> None:
    """Earlier than the attempt ends, and no later than the client has it."""
    network.drops = True
    with pytest.raises(errors.TimeoutError, match=rf"no connection in {seconds} s, as if packets"):
        await dial(target(socket_connect_timeout=own))


@simulated
async def test_a_short_timeout_of_the_clients_sockets_is_for_its_own_commands(
    network: Network,
) -> None:
    """The hub knows by itself how long a reply may take."""
    peer, loop = network.peer(), asyncio.get_running_loop()
    peer.says["HELLO"] = iter([SILENCE])
    dialled = asyncio.ensure_future(dial(target(socket_timeout=0.1, health_check_interval=1)))
    await asyncio.sleep(2)
    loop.call_soon(peer.wires[0].say, packed_map({"proto": 3}))
    assert (await dialled).no_push is None


# -- what callers are told


@simulated
async def test_a_caller_is_told_at_once_that_it_is_rejected(network: Network) -> None:
    network.peer().refuses("WRONGPASS invalid username-password pair", "HELLO")
    async with Redis(host="one", port=1, password="wrong") as client:
        with pytest.raises(BackendError, match=r"Redis at one:1 rejects this client") as raised:
            await asyncio.wait_for(FairSemaphore(client, "jobs", 1).acquire(), 0.01)
    assert not isinstance(raised.value, BackendUnavailable)


@simulated
async def test_unavailable_says_why_when_nothing_is_said(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    """In the error and in the log."""
    network.peer().says["HELLO"] = repeat(SILENCE)
    with caplog.at_level(logging.WARNING, "redsem_async"):
        client = Redis(host="one", port=1)
        semaphore = FairSemaphore(client, "jobs", 1)
        with pytest.raises(BackendUnavailable, match=r": no connection in 0\.\d+ s$"):
            await semaphore.acquire(timeout=0.1)
        with pytest.raises(BackendUnavailable, match=r" is unavailable: no answer in 5 s"):
            await semaphore.acquire(timeout=6.0)
        [record] = caplog.records
        assert "one:1 is unavailable for 'jobs': no answer in 5 s" in record.getMessage()
        await aclose(client)


@simulated
async def test_a_server_that_refuses_a_command_is_available_again(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("redsem_async").setLevel(logging.WARNING)  # until the simulation is over
    peer, client = network.peer(), Redis(host="one", port=1)
    assert not await FairSemaphore(client, "jobs", 1).locked()
    for text in ("BUSY A script.", "ERR it cannot be done"):
        peer.refuses(text)
        with pytest.raises(BackendError, match=text):
            await FairSemaphore(client, "jobs", 1).acquire(timeout=1.0)
    assert "one:1 is available again" in caplog.text
    await aclose(client)


@pytest.mark.parametrize("text", ["WRONGPASS invalid username-password pair", NO_LOGIN])
@simulated
async def test_a_login_that_is_rejected_later_is_an_outage(
    network: Network, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    """A stale token passes, and so does a change of passwords. Nothing must be lost to them.

    Logged once more after an outage, of which "connection refused" was the reason.
    """
    logging.getLogger("redsem_async").setLevel(logging.WARNING)  # until the simulation is over
    peer = network.peer()
    client = Redis(host="one", port=1)
    semaphore = FairSemaphore(client, "jobs", 1, lease=30.0)
    holder = await semaphore.acquire()
    waiter = asyncio.ensure_future(semaphore.acquire())
    del network.peers["one", 1]
    for wire in peer.wires:
        wire.hang_up()
    await asyncio.sleep(2)
    network.peers["one", 1] = peer
    peer.refuses(text, "HELLO", "AUTH")
    await asyncio.sleep(5)
    with pytest.raises(BackendUnavailable, match=r"password|NOAUTH"):
        await semaphore.try_acquire()
    assert not (waiter.done() or holder.lost)
    peer.says.clear()
    await asyncio.sleep(2)
    assert await holder.release()
    assert await (await waiter).release()
    _, refused, rejected, over = caplog.messages
    for part, said in (("nobody is", refused), ("rejects this", rejected), ("again", over)):
        assert part in said
    await aclose(client)


# -- what the server is like


@pytest.mark.parametrize(
    ("name", "said", "met"),
    [
        ("", b"", Met()),
        ("INFO", packed("maxmemory:5\r\nmaxmemory_policy:allkeys-lru\r\n"), Met("allkeys-lru")),
        ("INFO", packed("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n"), Met()),
        ("INFO", packed("maxmemory:5\r\nmaxmemory_policy:noeviction\r\n"), Met()),
        ("INFO", error("NOPERM no info"), Met()),
        ("SUBSCRIBE", error("NOPERM no channel"), Met()),
        ("EVAL", packed([0, "", 1]), Met(uncounted=True)),
        ("EVAL", packed([-1, "", 1]), Met()),
        ("EVAL", packed([1, "ERR no TIME", 1]), Met(no_time="ERR no TIME")),
        ("EVAL", packed([1, "", 0]), Met(no_set_repl=True)),
        ("EVAL", error("NOPERM no eval"), Met()),
        ("EVAL", error("BUSY a script runs"), None),
        ("EVAL", error("MOVED 1 two:1"), None),
    ],
)
@simulated
async def test_a_server_is_asked_what_it_lacks(
    network: Network, name: str, said: bytes, met: Met | None
) -> None:
    """In one trip. What another node or a later time has to say is asked again."""
    peer = network.peer()
    peer.says = {"EVAL": repeat(packed([int(name != "SUBSCRIBE"), "", 1])), name: repeat(said)}
    assert (await dial(target(), ASKER)).met == met


@simulated
async def test_a_server_that_wants_a_login_when_it_is_asked_rejects(network: Network) -> None:
    """One without HELLO takes the connection first, and says so to the first script."""
    network.peer().refuses(NO_LOGIN, "INFO", "SUBSCRIBE", "EVAL")
    with pytest.raises(ConnectionRejected, match="needs a password"):
        await dial(target(), ASKER)


@simulated
async def test_what_came_with_the_answers_is_not_lost(network: Network) -> None:
    """A part of it is in the reader already."""
    message = push("message", f"redsem:@{ASKER.hub}", "recheck - jobs")
    network.peer().says["EVAL"] = iter([packed([1, "", 1]) + message[:9]])
    opened = await dial(target(), ASKER)
    [item] = opened.replies.feed(message[9:])
    assert item.kind == b"message"


# -- clusters


@pytest.mark.parametrize(
    ("version", "sharded"), [("7.0.0", True), ("10.1", True), ("6.2.9", False)]
)
@simulated
async def test_messages_of_a_cluster_need_redis_7(
    network: Network, version: str, sharded: bool
) -> None:
    """Before it PUBLISH counts the subscribers of one node only: a grant would be taken back."""
    network.peer(version=version)
    opened = await dial(target(clustered=True))
    assert opened.sharded is sharded
    assert ("without sharded pub/sub" in str(opened.no_push)) is not sharded


@pytest.mark.parametrize("sharded", [True, False])
@simulated
async def test_a_cluster_is_asked_in_the_way_that_its_messages_take(
    network: Network, sharded: bool
) -> None:
    peer = network.peer(version="7.0.0" if sharded else "6.2.0")
    await dial(target(clustered=True), ASKER)
    sent = {each[0]: each for each in peer.wires[0].sent}
    own = b"redsem:{jobs}:@" + ASKER.hub.encode()
    assert sent.get(b"SSUBSCRIBE") == ([b"SSUBSCRIBE", own] if sharded else None)
    assert b"SUBSCRIBE" not in sent
    assert sent[b"EVAL"][-2] == (b"SPUBLISH" if sharded else b"PUBLISH")


@simulated
async def test_a_node_without_a_name_is_where_the_answer_came_from(network: Network) -> None:
    """Servers tell an empty host, or none, where they do not know their own."""
    rows = [[0, 9, ["", 1, "id"], [None, 2, "id"]], [10, 16383, ["two", 3, "id"]]]
    network.peer().says["CLUSTER"] = iter([packed(rows)])
    assert await slots_at(target()) == [
        (0, 9, [("one", 1), ("one", 2)]),
        (10, 16383, [("two", 3)]),
    ]


# -- connections that end, and what redis-py makes of them


def meddling(
    monkeypatch: pytest.MonkeyPatch, meddle: Callable[[Any], Awaitable[None]]
) -> list[Any]:
    """Let *meddle* have each connection that redis-py has made. Returns them."""
    made: list[Any] = []
    connected = dialling._connected

    async def meddled(target: Destination, protocol: int) -> Any:
        made.append(await connected(target, protocol))
        await meddle(made[-1])
        return made[-1]

    monkeypatch.setattr(dialling, "_connected", meddled)
    return made


@pytest.mark.parametrize("end", [Wire.hang_up, Wire.abort])
@simulated
async def test_a_connection_that_ended_before_it_was_ours_is_noticed(
    network: Network, monkeypatch: pytest.MonkeyPatch, end: Callable[[Wire], None]
) -> None:
    """redis-py's reader knew of its end, which is read nowhere: no caller may wait for answers."""
    peer = network.peer()

    async def ends(_: Any) -> None:
        end(peer.wires[0])
        await asyncio.sleep(0.1)

    meddling(monkeypatch, ends)
    with pytest.raises(errors.ConnectionError, match="closed while it was being made"):
        await dial(target())


@simulated
async def test_a_redis_py_that_keeps_its_streams_otherwise_is_named(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and with the versions that will do: no attempt would ever succeed."""
    peer = network.peer()

    async def otherwise(connection: Any) -> None:
        connection._writer = SimpleNamespace(close=connection._writer.close)

    meddling(monkeypatch, otherwise)
    with pytest.raises(ConnectionRejected, match=r"with redis-py \S+, .* than 5\.2 to "):
        await dial(target())
    assert peer.wires[0].is_closing()


@simulated
async def test_a_server_that_hangs_up_while_it_is_asked_is_left(network: Network) -> None:
    peer = network.peer()
    peer.says["INFO"] = iter([SILENCE])
    dialled = asyncio.ensure_future(dial(target(), ASKER))
    await asyncio.sleep(0.1)
    peer.wires[0].hang_up()
    with pytest.raises(errors.ConnectionError):
        await dialled
    assert peer.wires[0].is_closing()


# -- Sentinel


@asynccontextmanager
async def watched(*hosts: str) -> AsyncGenerator[Any]:
    """The pool of a client that sentinels give."""
    untyped: Any = Sentinel
    sentinel = untyped([(host, 26379) for host in hosts])
    yield sentinel.master_for("service").connection_pool
    for each in sentinel.sentinels:
        await each.aclose()


@simulated
async def test_the_next_attempt_asks_the_next_sentinel_first(network: Network) -> None:
    """The first one is silent, and an attempt ends before redis-py would ask another."""
    master = network.peer()
    network.peer("other", 26379)
    network.peer("silent", 26379).says["HELLO"] = network.peer("silent", 26379).says["CLIENT"] = (
        repeat(SILENCE)
    )
    async with watched("silent", "other") as pool:
        with pytest.raises(errors.TimeoutError):
            await dial(target_of(pool))
        opened = await dial(target_of(pool))
    assert opened.transport is master.wires[0]


@simulated
async def test_a_url_of_sentinels_gives_each_of_them_a_second(network: Network) -> None:
    """So that the first attempt comes to the one that answers."""
    network.peer()
    network.peer("other", 26379)
    network.peer("silent", 26379).says["SENTINEL"] = repeat(SILENCE)
    async with connect("redis+sentinel://silent,other/service") as client:
        pool: Any = client.connection_pool
        began = asyncio.get_running_loop().time()
        assert (await dial(target_of(pool))).no_push is None
        assert asyncio.get_running_loop().time() - began == pytest.approx(ANSWER_TIME, abs=0.01)


@simulated
async def test_a_failover_closes_the_idle_connections_and_not_the_hub(network: Network) -> None:
    """redis-py calls the same method for it as a user does who is done with the client."""
    network.peer("watch", 26379)
    closed = Closings()
    async with watched("watch") as pool:
        RedisBackend(pool).on_close(closed.note)
        for host in ("old", "new"):
            network.nodes = [(host, 1)]
            master = network.peer(host)
            opened = await dial(target_of(pool))
            assert opened.transport is master.wires[0]
        assert closed.count == 0
        await pool.disconnect(False)
        assert closed.count == 0
        await pool.disconnect()
        assert closed.count == 1


class Closings:
    """Counts how often the owner was closed."""

    count = 0

    def note(self) -> None:
        self.count += 1


@simulated
async def test_every_backend_of_a_pool_hears_of_its_end_while_it_is_there() -> None:
    """Although the pool raises, and however often."""
    first, second = Closings(), Closings()
    pool: Any = ConnectionPool()
    raised = iter([OSError("no network")])

    async def disconnect(*_: Any) -> None:
        for each in raised:
            raise each

    pool.disconnect = disconnect
    for each in (first, second):
        on_close(pool, "disconnect", each.note)
    with pytest.raises(OSError, match="no network"):
        await pool.disconnect()
    del second
    await pool.disconnect(True)
    assert first.count == 2
