"""The documented user can do everything, and could do with no command less."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis

from redsem_async import AnySemaphore, BackendError, FairSemaphore, Permit, Semaphore, aclose
from redsem_async._acl import ADDITIONS, COMMANDS, HARMLESS_DENIALS, Addition, acl_rules
from redsem_async.testing import EmbeddedRedis
from tests import restricted
from tests.behaviour.conftest import cancelled, eventually, soon
from tests.conftest import StartServer

LATER = 2.5  # seconds: a heartbeat of a lease of 3 s is sent every 1 to 1.5
AT_ONCE = 0.5
FALLBACKS = {"publish", "subscribe"}  # without these, heartbeats find the grants

Client = Callable[..., Redis]


@pytest.fixture
def server(embedded: StartServer) -> EmbeddedRedis:
    """A server to add users to."""
    return embedded()


@pytest.fixture
async def admin(server: EmbeddedRedis) -> AsyncGenerator[Redis]:
    """Who may do everything."""
    async with Redis.from_url(server.url) as client:
        yield client


async def allow(admin: Redis, rules: tuple[str, ...], user: str = "semaphores") -> None:
    untyped: Any = admin
    await untyped.execute_command("ACL", "SETUSER", user, "reset", "on", ">secret", *rules)


def without(command: str) -> tuple[str, ...]:
    return tuple(rule for rule in acl_rules() if rule != f"+{command}")


async def denied_since(admin: Redis) -> set[str]:
    """What the server's log says was denied."""
    return {str(entry["object"]).lower() for entry in await admin.acl_log()}


@asynccontextmanager
async def two_processes(server: EmbeddedRedis, **options: Any) -> AsyncGenerator[tuple[Redis, Redis]]:
    """Two clients of the restricted user: to the semaphores, two processes."""

    def client() -> Redis:
        url = f"redis://semaphores:secret@127.0.0.1:{server.port}"
        return Redis.from_url(url, **options)

    async with client() as here, client() as there:
        try:
            yield here, there
        finally:
            await aclose(here)
            await aclose(there)


async def in_line(semaphore: AnySemaphore) -> "asyncio.Task[Permit]":
    """A task that waits for a permit, of which the server knows; raises what it was refused by."""
    task = asyncio.create_task(semaphore.acquire(timeout=30.0))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def known() -> bool:
        return task.done() or (await semaphore.status(0)).waiting > 0

    await eventually(known)
    if task.done():
        await (await task).release()
        raise AssertionError("it did not have to wait")
    return task


async def everything(
    kind: type[AnySemaphore], here: Redis, there: Redis, name: str, *, told_within: float
) -> None:
    """All that semaphores do, each step of which raises when it was denied."""
    ours, theirs = kind(here, name, 3, lease=3.0), kind(there, name, 3, lease=3.0)
    for _ in range(3):  # the first and the quick path
        assert await (await ours.acquire()).release()

    permit = await theirs.acquire(permits=3)
    assert await ours.try_acquire() is None
    waiter = await in_line(ours)
    await permit.refresh()
    status = await ours.status()
    assert (status.held, status.waiting) == (3, 1)
    assert await permit.release()
    permit = await soon(waiter, told_within)

    await theirs.set_limit(1)
    assert await ours.try_acquire() is None
    await theirs.set_limit(None)
    await theirs.reap()

    job = await permit.detach(5.0)
    adopted = await soon(theirs.adopt(job))
    assert adopted.fencing_token == permit.fencing_token
    assert await ours.release(adopted.id)
    assert not await adopted.release()

    abandoned = await ours.acquire(permits=3)
    late = await in_line(theirs)
    await cancelled(late)
    assert await abandoned.release()

    await (await ours.acquire(permits=2)).detach(5.0)
    assert await ours.exists()
    await ours.clear()
    assert await theirs.available() == 3


@pytest.mark.parametrize("prefix", ["redsem", "a*b [c]"])
async def test_the_documented_user_can_do_everything(
    server: EmbeddedRedis, admin: Redis, kind: type[AnySemaphore], prefix: str
) -> None:
    """With messages, and without a word in the server's log of denials but for redis-py's own."""
    await allow(admin, acl_rules(prefix))
    async with two_processes(server) as (here, there):

        def under_prefix(client: Redis, name: str, limit: int, **options: Any) -> AnySemaphore:
            return kind(client, name, limit, prefix=prefix, **options)

        made: Any = kind if prefix == "redsem" else under_prefix
        await everything(made, here, there, "jobs", told_within=AT_ONCE)
    # 6.2 does not tell the subcommand.
    assert await denied_since(admin) <= {*HARMLESS_DENIALS, "client"}


async def test_not_one_command_is_idle(
    server: EmbeddedRedis, admin: Redis, kind: type[AnySemaphore]
) -> None:
    """What is in the line and never missed would be there for an intruder alone."""
    needless: list[str] = []
    for command in COMMANDS:
        if command in FALLBACKS:
            continue
        await allow(admin, without(command))
        await admin.acl_log_reset()
        async with two_processes(server) as (here, there):
            try:
                await everything(kind, here, there, command, told_within=AT_ONCE)
            except BackendError:
                assert command in await denied_since(admin)
            else:
                needless.append(command)
    assert needless == []


@pytest.mark.parametrize("command", sorted(FALLBACKS))
async def test_without_messages_heartbeats_find_the_grants(
    server: EmbeddedRedis,
    admin: Redis,
    kind: type[AnySemaphore],
    command: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Later, and nothing else is missing."""
    await allow(admin, without(command))
    with caplog.at_level(logging.WARNING, "redsem_async"):
        async with two_processes(server) as (here, there):
            await everything(kind, here, there, "jobs", told_within=LATER)
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == (2 if command == "subscribe" else 0), warned
    assert all("heartbeats" in said for said in warned)


@pytest.mark.parametrize("addition", sorted(ADDITIONS))
async def test_additions_are_for_what_they_say(
    server: EmbeddedRedis, admin: Redis, kind: type[AnySemaphore], addition: Addition
) -> None:
    """Without one, a client that needs it is refused, and told so; with it, all works."""
    options = {"client_name": {"client_name": "us"}, "database": {"db": 1}}[addition]
    await allow(admin, acl_rules())
    async with two_processes(server, **options) as (here, there):
        with pytest.raises(BackendError, match="NOPERM|no permissions"):
            await kind(here, "jobs", 1).acquire(timeout=2)
        await allow(admin, acl_rules(additions=[addition]))
        await everything(kind, here, there, "jobs", told_within=AT_ONCE)


Denied = Callable[[Redis], Awaitable[Any]]
BEYOND: dict[str, Denied] = {
    "read other keys": lambda client: client.get("theirs"),
    "write other keys": lambda client: client.set("theirs", "x"),
    "a prefix that only begins alike": lambda client: client.set("redsem-other:{x}:limit", "1"),
    "list keys": lambda client: client.keys("*"),
    "list clients": lambda client: client.client_list(),
    "read the settings": lambda client: client.config_get("*"),
    "make users": lambda client: client.acl_setuser("mine", enabled=True),
    "flush": lambda client: client.flushall(),
    "other channels": lambda client: client.publish("theirs", "x"),
    "other keys in a script": lambda client: client.eval("return redis.call('GET', 'theirs')", 0),
}


@pytest.mark.parametrize("deed", BEYOND)
async def test_the_documented_user_can_do_nothing_else(
    server: EmbeddedRedis, admin: Redis, deed: str
) -> None:
    """What a stolen password is worth."""
    await allow(admin, acl_rules())
    await admin.set("theirs", "secret")
    async with two_processes(server) as (client, _):
        with pytest.raises(errors.ResponseError, match="(?i)no permission|can't access"):
            await BEYOND[deed](client)
    assert await admin.get("theirs") == b"secret"


async def test_the_suite_runs_as_who_it_says(redis: Redis, name: str) -> None:
    """Else a run under the documented user would show nothing."""
    expected = restricted.USER if restricted.REQUESTED else "default"
    async with Semaphore(redis, name, 1), FairSemaphore(redis, f"{name} fair", 1):
        subscribed = [c for c in await redis.client_list() if c["sub"] == "1"]
        assert {c["user"] for c in subscribed} == {expected}
        assert (await redis.acl_whoami()) in ("default", b"default")
