"""What a deadline gives: a permit, or *full* as the server said lately, or that it was silent."""

import asyncio
import os
import signal
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import AcquireTimeout, BackendUnavailable, Permit
from redsem_async._hub.route import GRACE
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.clients import Connect, Kind
from tests.harness.proxy import Proxy
from tests.harness.wait import EPSILON, NOISE, in_background, waits_in_line

TIMEOUT = 2.0  # long enough that all is prepared before it is over, on any machine
LEASE = 30.0  # long enough that no heartbeat falls into it


async def outcome(waiter: "asyncio.Task[Permit]") -> tuple[Any, float]:
    """What came of *waiter*, and for how long after its beginning it was waited for."""
    loop = asyncio.get_running_loop()
    [result] = await asyncio.gather(waiter, return_exceptions=True)
    return result, loop.time()


async def without_messages(admin: Redis, server: EmbeddedRedis, connect: Connect) -> Redis:
    """A client that may not subscribe."""
    untyped: Any = admin
    await untyped.execute_command(
        "ACL", "SETUSER", "deaf", "on", ">x", "~*", "+@all", "resetchannels"
    )
    return connect(server.url, username="deaf", password="x")


async def test_who_is_cut_off_is_not_told_that_it_is_full(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """It was full when it was heard of last; a permit has been free ever since."""
    here, there = kind(proxied, "jobs", 1, lease=LEASE), kind(client_b, "jobs", 1, lease=LEASE)
    holder = await there.acquire()
    began = asyncio.get_running_loop().time()
    waiter = await waits_in_line(here, timeout=TIMEOUT)
    proxy.half_open()
    assert await holder.release()
    result, ended = await outcome(waiter)
    assert isinstance(result, BackendUnavailable), repr(result)
    assert "no answer came in time" in str(result)
    assert TIMEOUT <= ended - began <= TIMEOUT + EPSILON + NOISE
    assert proxy.operations("heartbeat"), "the server was asked"


async def test_who_hears_no_replies_is_not_told_that_it_is_full(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """What the server granted, or hinted at, is given back, or passed on, later."""
    here, there = kind(proxied, "jobs", 1, lease=LEASE), kind(client_b, "jobs", 1, lease=LEASE)
    holder = await there.acquire()
    waiter = await waits_in_line(here, timeout=TIMEOUT)
    proxy.mute()
    assert await holder.release()
    result, _ = await outcome(waiter)
    assert isinstance(result, BackendUnavailable), repr(result)
    proxy.drop()
    assert await (await there.acquire(timeout=5)).release()


async def test_who_was_not_answered_at_all_is_not_told_that_it_is_full(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """Asked, and no answer by the deadline: the link may be alive, the server is not."""
    here, there = kind(proxied, "jobs", 1, lease=LEASE), kind(client_b, "jobs", 1, lease=LEASE)
    holder = await there.acquire()
    await here.reap()  # connected
    held = proxy.hold("acquire")
    began = asyncio.get_running_loop().time()
    result, ended = await outcome(in_background(here.acquire(timeout=0.3)))
    assert held.struck.is_set()
    assert isinstance(result, BackendUnavailable), repr(result)
    assert 0.3 <= ended - began <= 0.3 + EPSILON + NOISE
    held.lift()
    assert await holder.release()


async def test_one_question_for_all_whose_deadline_comes(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis
) -> None:
    """Nothing was heard for long, so the server is asked: and says that it is full."""
    here, there = kind(proxied, "jobs", 1, lease=LEASE), kind(client_b, "jobs", 1, lease=LEASE)
    holder = await there.acquire()
    waiters = [in_background(here.acquire(timeout=TIMEOUT)) for _ in range(50)]
    last = await waits_in_line(here, timeout=None, place=51)
    asked = len(proxy.operations("heartbeat"))
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert {type(result) for result in results} == {AcquireTimeout}
    assert 1 <= len(proxy.operations("heartbeat")) - asked <= 5  # more than one on a slow machine
    assert not last.done()
    assert await holder.release()
    assert await (await last).release()


async def test_a_word_that_is_young_costs_no_question(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where many are turned away there are answers all the time, and any of them will do."""
    for module in ("_hub.route", "_hub.deadlines"):  # young and near, on any machine
        monkeypatch.setattr(f"redsem_async.{module}.GRACE", 60.0)
    here, there = kind(proxied, "jobs", 1, lease=LEASE), kind(client_b, "jobs", 1, lease=LEASE)
    holder = await there.acquire()
    waiters = [in_background(here.acquire(timeout=TIMEOUT)) for _ in range(50)]
    last = await waits_in_line(here, timeout=None, place=51)
    asked = len(proxy.operations("heartbeat"))
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert {type(result) for result in results} == {AcquireTimeout}
    assert len(proxy.operations("heartbeat")) == asked
    assert not last.done()
    assert await holder.release()
    assert await (await last).release()


async def test_who_hears_no_messages_gets_what_is_free_at_its_deadline(
    kind: Kind, server: EmbeddedRedis, admin: Redis, connect: Connect, client_b: Redis
) -> None:
    """The last question finds the permit that no message could tell of."""
    deaf = await without_messages(admin, server, connect)
    here, there = kind(deaf, "jobs", 1, lease=LEASE), kind(client_b, "jobs", 1, lease=LEASE)
    holder = await there.acquire()
    waiter = await waits_in_line(here, timeout=TIMEOUT)
    assert await holder.release()
    permit = await waiter
    assert permit.waited >= TIMEOUT / 2, "it was told before"
    assert await permit.release()


async def test_who_hears_no_messages_is_told_that_it_is_full(
    kind: Kind, server: EmbeddedRedis, admin: Redis, connect: Connect, client_b: Redis
) -> None:
    """An answer to somebody else says nothing of a grant, so each is asked about."""
    deaf = await without_messages(admin, server, connect)
    here, there = kind(deaf, "jobs", 1, lease=LEASE), kind(client_b, "jobs", 1, lease=LEASE)
    holder = await there.acquire()
    waiters = [in_background(here.acquire(timeout=TIMEOUT)) for _ in range(50)]
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert {type(result) for result in results} == {AcquireTimeout}
    assert await holder.release()


async def test_a_server_that_stops_for_longer_than_the_grace(
    kind: Kind, server: EmbeddedRedis, client_a: Redis, client_b: Redis
) -> None:
    """The socket is open and says nothing; then the server is back, and serves who waits on."""
    here, there = kind(client_a, "jobs", 1, lease=LEASE), kind(client_b, "jobs", 1, lease=LEASE)
    holder = await there.acquire()
    patient = await waits_in_line(here, timeout=None)
    hasty = await waits_in_line(here, timeout=TIMEOUT, place=2)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        result, _ = await outcome(hasty)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert isinstance(result, BackendUnavailable), repr(result)
    assert await holder.release()
    assert await (await asyncio.wait_for(patient, 10)).release()


@pytest.mark.parametrize("timeout", [0.2, 0.3, 1.0])
async def test_a_far_server_is_asked_before_the_deadline(
    kind: Kind, proxied: Redis, proxy: Proxy, client_b: Redis, timeout: float
) -> None:
    """Its answer takes longer than the grace: it comes in time all the same."""
    here, there = kind(proxied, "jobs", 1, lease=LEASE), kind(client_b, "jobs", 1, lease=LEASE)
    holder = await there.acquire()
    proxy.delay = 0.08
    await here.reap()  # connected
    began = asyncio.get_running_loop().time()
    result, ended = await outcome(in_background(here.acquire(timeout=timeout)))
    assert isinstance(result, AcquireTimeout), repr(result)
    assert timeout - 0.01 <= ended - began <= timeout + EPSILON + NOISE
    waiter = await waits_in_line(here, timeout=TIMEOUT)
    proxy.half_open()
    result, _ = await outcome(waiter)
    assert isinstance(result, BackendUnavailable), repr(result)
    proxy.delay = 0.0
    proxy.drop()
    assert await holder.release()


def test_the_grace_is_within_the_promise() -> None:
    """A deadline is kept within 100 ms."""
    assert GRACE <= EPSILON / 2
