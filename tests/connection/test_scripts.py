"""A script is called by its digest, and sent as text only to a server that does not have it."""

import asyncio

import pytest
from redis.asyncio import Redis

from redsem_async import Permit
from tests.harness.clients import Kind
from tests.harness.inside import state_of
from tests.harness.proxy import Proxy
from tests.harness.wait import give_back, in_background, until


def names(proxy: Proxy, operation: str) -> list[bytes]:
    """How each call of *operation* was written."""
    return [sent.arguments[0] for sent in proxy.operations(operation)]


@pytest.mark.fault(29)
async def test_a_text_is_sent_to_a_server_that_lacks_it_and_on_no_later_connection(
    kind: Kind, proxied: Redis, proxy: Proxy, admin: Redis
) -> None:
    await admin.script_flush()
    semaphore = kind(proxied, "jobs", 1)
    for _ in range(3):
        assert await (await semaphore.acquire()).release()
        proxy.drop()
        await until(lambda: not proxy.open_connections(), "the connection is closed")
    assert names(proxy, "acquire") == [b"EVALSHA", b"EVAL", b"EVALSHA", b"EVALSHA"]
    assert names(proxy, "release") == [b"EVAL", b"EVALSHA", b"EVALSHA"], "it lacked the first one"


@pytest.mark.fault(29)
async def test_nothing_overtakes_a_call_that_the_server_has_no_script_for(
    kind: Kind, proxied: Redis, proxy: Proxy, admin: Redis
) -> None:
    """The others are written behind it, once it is known what became of it."""
    await admin.script_flush()
    semaphore = kind(proxied, "jobs", 3)
    go_on = proxy.stop("acquire")
    asked: list[asyncio.Task[Permit]] = []
    for _ in range(3):
        asked.append(in_background(semaphore.acquire(timeout=5)))
        await until(lambda: len(asked) == len(state_of(semaphore).acquires_in_flight))
    assert names(proxy, "acquire") == [b"EVALSHA"]
    go_on.set()
    permits = await asyncio.gather(*asked)
    assert names(proxy, "acquire") == [b"EVALSHA", b"EVAL", b"EVALSHA", b"EVALSHA"]
    assert permits == sorted(permits, key=lambda permit: permit.fencing_token)
    await give_back(*permits)


@pytest.mark.fault(29, 32)
@pytest.mark.parametrize("error", ["BUSY A script.", "TRYAGAIN A slot."])
async def test_what_waits_behind_a_refused_call_stays_behind_it(
    kind: Kind, proxied: Redis, proxy: Proxy, error: str
) -> None:
    semaphore = kind(proxied, "jobs", 3)
    await semaphore.reap()
    fault = proxy.answer("acquire", error)
    go_on = proxy.stop("acquire")
    asked: list[asyncio.Task[Permit]] = []
    for _ in range(3):
        asked.append(in_background(semaphore.acquire(timeout=5)))
        await until(lambda: len(asked) == len(state_of(semaphore).acquires_in_flight))
    go_on.set()
    permits = await asyncio.gather(*asked)
    assert fault.struck.is_set()
    assert permits == sorted(permits, key=lambda permit: permit.fencing_token)
    await give_back(*permits)
