"""Semaphores of a cluster whose slots move: each answer that a node may give, and where it leads.

In memory, and in simulated time: the nodes keep what they store together, so that only what they
say of it moves. `test_cluster` has a real one.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import repeat
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

import redsem_async
from redsem_async import BackendError, BackendUnavailable, FairSemaphore
from redsem_async._redis.backend import EXPLORING_TIME
from tests.harness.inside import remote_of
from tests.harness.peer import SILENCE, Network, Peer, error, push
from tests.harness.wait import in_background
from tests.worlds.simulated_time import simulated

AT_ONCE = 0.01  # simulated seconds
LEASE = 30.0  # with a heartbeat every ten seconds: whatever is quicker came by message
MOVED, ASK = "MOVED 1 two:1", "ASK 1 two:1"


@asynccontextmanager
async def cluster_client(**options: Any) -> AsyncGenerator[RedisCluster]:
    """A client that knows the first node."""
    client = RedisCluster(host="one", port=1, **options)
    yield client
    await redsem_async.aclose(client)
    await client.aclose()


def of(client: Any, **options: Any) -> FairSemaphore:
    return FairSemaphore(client, "jobs", 1, lease=LEASE, **options)


@pytest.fixture
def one(network: Network) -> Peer:
    return network.peer("one")


@pytest.fixture
def two(network: Network) -> Peer:
    return network.peer("two")


def asked(peer: Peer) -> list[str]:
    """The commands for semaphores since this was last looked at."""
    names = ("ASKING", "EVAL", "EVALSHA", "SSUBSCRIBE", "SUBSCRIBE")
    return [name for name in peer.names if name in names]


async def seconds_of(semaphore: FairSemaphore, **options: Any) -> float:
    """How long it takes to be served."""
    clock = asyncio.get_running_loop().time
    began = clock()
    assert await (await semaphore.acquire(**options)).release()
    return clock() - began


async def used(semaphore: FairSemaphore, *peers: Peer) -> None:
    """Have it known to its node, and forget what was asked so far."""
    for _ in range(2):
        await seconds_of(semaphore)
    for peer in peers:
        asked(peer)


async def connected_to_both(client: RedisCluster, one: Peer) -> None:
    """So that what comes next is due to a redirection, and not to a new connection."""
    one.refuses(MOVED)
    async with FairSemaphore(client, "neighbours", 1) as permit:
        await permit.refresh()
    one.says.clear()


@simulated
async def test_where_a_slot_moved_is_followed_and_remembered(one: Peer, two: Peer) -> None:
    """By all of the slot's semaphores in this process."""
    one.refuses(MOVED)
    async with cluster_client() as client:
        assert await seconds_of(of(client)) < AT_ONCE
        asked(one)
        await used(of(client, prefix="others"))
        assert asked(one) == []
        assert "EVAL" in asked(two)


@pytest.mark.parametrize(
    ("told", "host", "port"),
    [(":2", "one", 2), ("two:1", "two", 1), ("::1:7000", "::1", 7000), ("inner:9", "outer", 5)],
)
@simulated
async def test_a_node_is_where_the_answer_names_it(
    network: Network, one: Peer, told: str, host: str, port: int
) -> None:
    """An empty host is that of the node that answered. The user's client may map addresses."""
    there = network.peer(host, port)
    one.refuses(f"MOVED 1 {told}")

    def remapped(address: tuple[str, int]) -> tuple[str, int]:
        return ("outer", 5) if address == ("inner", 9) else address

    async with cluster_client(address_remap=remapped) as client:
        assert await seconds_of(of(client)) < AT_ONCE
    assert "EVAL" in asked(there)


@simulated
async def test_ask_is_for_the_next_commands_and_no_move(one: Peer, two: Peer) -> None:
    """Nothing is remembered or asked about, and messages come as before."""
    async with cluster_client() as client, cluster_client() as other:
        for each in (client, other):
            await connected_to_both(each, one)
        semaphore = of(client)
        await used(semaphore)
        async with of(other) as permit:
            waiter = in_background(semaphore.acquire())
            await asyncio.sleep(AT_ONCE)
            await permit.refresh()
            asked(one)
            asked(two)
            one.refuses(ASK, "EVALSHA", times=1)
            await permit.refresh()
            await asyncio.sleep(1)
            assert asked(one) == ["EVALSHA"]
            assert asked(two) == ["ASKING", "EVALSHA"]
            await permit.refresh()
            assert (asked(one), asked(two)) == (["EVALSHA"], [])
            one.refuses(ASK, "EVALSHA", times=1)
            assert await semaphore.try_acquire() is None
            await asyncio.sleep(1)
            assert (asked(one), asked(two)) == (["EVALSHA"], ["ASKING", "EVALSHA"])
            assert await of(client, prefix="others").try_acquire() is not None
            assert (asked(one)[0], asked(two)) == ("SSUBSCRIBE", [])
        assert await (await asyncio.wait_for(waiter, AT_ONCE)).release()


@simulated
async def test_a_waiter_whose_slot_left_is_served_by_message_where_it_went(
    one: Peer, two: Peer
) -> None:
    """The node ends its subscription: it asks, is told where to go, and subscribes there."""
    async with cluster_client() as client, cluster_client() as other:
        permit = await of(client).acquire()
        waiter = in_background(of(other).acquire())
        await asyncio.sleep(AT_ONCE)
        one.refuses(MOVED)
        for wire in one.wires:
            for channel in wire.channels:
                wire.say(push("sunsubscribe", channel, 0))
            wire.channels.clear()
        await asyncio.sleep(AT_ONCE)
        assert [name for name in asked(two) if "SUBSCRIBE" in name]
        assert await permit.release()
        assert await (await asyncio.wait_for(waiter, AT_ONCE)).release()


@pytest.mark.parametrize("counts", [True, False])
@simulated
async def test_a_grant_that_nobody_hears_goes_to_the_next_in_line(
    network: Network, one: Peer, counts: bool
) -> None:
    """Where the server says that nobody does. Where it never says, it stands, and is heard."""
    network.counts = counts
    async with cluster_client() as client, cluster_client() as other, cluster_client() as third:
        permit, first = await of(client).acquire(), of(other)
        waiters: list[asyncio.Task[Any]] = []
        for semaphore in (first, of(third)):
            waiters.append(in_background(semaphore.acquire()))
            await asyncio.sleep(AT_ONCE)
        if counts:
            hub = remote_of(first).identity.id.encode()
            for wire in one.wires:
                wire.channels = {channel for channel in wire.channels if hub not in channel}
        assert await permit.release()
        for waiter in reversed(waiters) if counts else waiters:
            assert await (await asyncio.wait_for(waiter, 10.0 if counts else AT_ONCE)).release()


@simulated
async def test_a_waiter_whose_semaphore_moved_asks_about_itself(
    network: Network, one: Peer, two: Peer
) -> None:
    """It may have been told of a grant at the node that it left."""
    async with cluster_client() as client, cluster_client() as other:
        await connected_to_both(other, one)
        permit, semaphore = await of(client).acquire(), of(other)
        waiter = in_background(semaphore.acquire())
        await asyncio.sleep(AT_ONCE)
        network.loses = True
        assert await permit.release()
        one.refuses(MOVED)
        assert await semaphore.try_acquire() is None
        assert await (await asyncio.wait_for(waiter, AT_ONCE)).release()


@simulated
async def test_commands_in_flight_have_their_replies_before_a_semaphore_moves(
    one: Peer, two: Peer
) -> None:
    """Who is written behind them at another node would overtake them."""
    async with cluster_client() as client:
        semaphore = FairSemaphore(client, "jobs", 2, lease=LEASE)
        permit = await semaphore.acquire()
        await permit.refresh()
        one.says["EVALSHA"] = repeat(SILENCE)
        acquiring = in_background(semaphore.acquire())
        await asyncio.sleep(AT_ONCE)
        refreshing = in_background(permit.refresh())
        for _ in (acquiring, refreshing):
            await asyncio.sleep(AT_ONCE)
            assert asked(two) == []
            one.wires[-1].say(error(MOVED))
        await refreshing
        assert await (await acquiring).release()
        assert await permit.release()


@simulated
async def test_nodes_that_send_each_other_what_neither_has_are_not_asked_all_the_time(
    one: Peer, two: Peer
) -> None:
    one.refuses(MOVED, times=20)
    two.refuses("MOVED 1 one:1", times=20)
    async with cluster_client() as client:
        assert 0.1 < await seconds_of(of(client)) < 10.0


@pytest.mark.parametrize("text", ["TRYAGAIN", "CLUSTERDOWN"])
@simulated
async def test_what_no_node_carries_out_now_is_asked_again_in_a_moment(
    one: Peer, text: str
) -> None:
    """Who does not wait is told so at once, and who waits until its deadline, too."""
    async with cluster_client() as client:
        semaphore = of(client)
        await used(semaphore)
        async with FairSemaphore(client, "short", 1, lease=0.5) as permit:
            await permit.refresh()
            one.refuses(text, "EVALSHA", times=8)
            await permit.refresh()
        one.refuses(text, times=4)
        assert 0.0 < await seconds_of(semaphore) < 1.0
        one.refuses(text)
        with pytest.raises(BackendUnavailable, match=text):
            await asyncio.wait_for(semaphore.try_acquire(), AT_ONCE)
        with pytest.raises(BackendUnavailable, match=text):
            await semaphore.acquire(timeout=0.5)
        with pytest.raises(BackendUnavailable, match=text):
            await asyncio.wait_for(semaphore.acquire(), 2 * LEASE)


@simulated
async def test_a_change_that_was_not_taken_is_not_void_behind_the_next(one: Peer) -> None:
    """Two back-offs are in flight together, and the node takes the second alone."""
    async with cluster_client() as client:
        semaphore = FairSemaphore(client, "jobs", 4, key_limit=4, lease=LEASE)
        await semaphore.back_off(0.0)  # the node has its script
        held = [await semaphore.acquire(key=key) for key in "ab"]
        one.refuses("TRYAGAIN", "EVALSHA", times=1)
        for permit in held:
            permit.back_off(5.0, key=True)
        await asyncio.sleep(1.0)
        assert all(key.back_off for key in (await semaphore.status()).keys)


@simulated
async def test_a_master_that_is_gone_is_looked_for_at_the_other_nodes(
    network: Network, one: Peer, two: Peer
) -> None:
    """Those that the first one named: the client was given no other. Its permits are kept."""
    network.peer("three")
    network.nodes = [("one", 1), ("two", 1), ("three", 1)]
    async with cluster_client() as client:
        semaphore = of(client)
        permit = await semaphore.acquire()
        network.nodes.reverse()
        assert "CLUSTER" not in two.names
        del network.peers["one", 1]
        for wire in one.wires:
            wire.hang_up()
        await asyncio.sleep(LEASE)
        assert not permit.lost
        assert remote_of(semaphore).route.link_state.node.place == "Redis at three:1"
        assert await permit.release()


@simulated
async def test_silent_neighbours_delay_nobody(network: Network, one: Peer, two: Peer) -> None:
    """A lost connection is made again at once, although the other nodes of the cluster stall."""
    network.nodes = [("one", 1), ("two", 1)]
    two.says["CLUSTER"] = repeat(SILENCE)
    async with cluster_client() as client:
        permit = await of(client).acquire()
        one.wires[-1].hang_up()
        await asyncio.sleep(AT_ONCE)
        await asyncio.wait_for(permit.refresh(), AT_ONCE)
        assert "CLUSTER" in two.names
        assert await permit.release()


@simulated
async def test_one_node_is_asked_for_the_others_and_no_longer_than_a_second(
    network: Network, one: Peer, two: Peer
) -> None:
    one.says["CLUSTER"] = repeat(SILENCE)
    one.refuses(MOVED)
    async with cluster_client() as client:
        assert await seconds_of(of(client)) == pytest.approx(EXPLORING_TIME, abs=AT_ONCE)
        assert [peer.names.count("CLUSTER") for peer in (one, two)] == [1, 1]
        network.peer("three")
        two.refuses("MOVED 1 three:1")
        assert await seconds_of(of(client)) < AT_ONCE
    assert network.peer("three").names.count("CLUSTER") == 0, "what two said will do"


@pytest.mark.filterwarnings("ignore:.*read_from_replicas:DeprecationWarning")
@simulated
async def test_a_client_that_reads_from_replicas_writes_to_masters(one: Peer) -> None:
    """It asks its nodes to answer reads for others."""
    async with cluster_client(read_from_replicas=True) as client:
        assert await seconds_of(of(client)) < AT_ONCE
    assert "READONLY" not in one.names


@simulated
async def test_a_cluster_before_redis_7_serves_its_waiters_by_heartbeats(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    """And subscribes to nothing: the count of a message would be that of one node."""
    one = network.peer("one", version="6.2.0")
    with caplog.at_level(logging.WARNING, "redsem_async"):
        async with cluster_client() as client, cluster_client() as other:
            permit = await of(client).acquire()
            waiter = in_background(of(other).acquire())
            await asyncio.sleep(AT_ONCE)
            assert await permit.release()
            assert await (await asyncio.wait_for(waiter, 10.0 + AT_ONCE)).release()
    assert not {"SUBSCRIBE", "SSUBSCRIBE"} & {*one.names}
    assert sum("without sharded pub/sub" in each.getMessage() for each in caplog.records) == 2


@simulated
async def test_one_server_that_names_another_refuses(one: Peer) -> None:
    """The client is not that of a cluster: it is told what the server said."""
    one.refuses(MOVED)
    async with Redis(host="one", port=1) as client:
        with pytest.raises(BackendError, match="MOVED") as raised:
            await of(client).acquire()
        assert not isinstance(raised.value, BackendUnavailable)
        await redsem_async.aclose(client)
