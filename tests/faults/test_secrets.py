"""Passwords and ids stay out of logs and errors, whatever goes wrong.

Whoever knows an id can release the permit; 128 random bits keep it from being guessed, and
nothing that is written down for people may have them. What asyncio and redis-py log counts too.
"""

import asyncio
import gc
import logging
import re
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis

import redsem_async
from redsem_async import BackendError, BackendUnavailable, Permit, PermitLost, SemaphoreError
from redsem_async._core.keys import channel
from redsem_async._redis.acl import acl_rules
from redsem_async._redis.faults import error_from
from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import Connect, Kind, hub_of, key_of
from tests.harness.proxy import Proxy
from tests.harness.servers import StartServer
from tests.harness.wait import in_background, until, waits_in_line

pytestmark = pytest.mark.one_mode

PASSWORD = "hunter2-of-the-test"
AN_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")


class Ears:
    """Everything that was said to people: records, warnings, and errors with their causes."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.secrets: set[str] = {PASSWORD}

    def know(self, permit: Permit) -> Permit:
        """A permit whose id, and the beginning of it, is not to be heard."""
        self.secrets |= {permit.id, hub_of(permit)[:12]}
        self.said += [repr(permit), str(permit)]
        return permit

    def hear(self, error: BaseException) -> None:
        self.said += traceback.format_exception(error)
        links: list[BaseException | None] = [error]
        for link in links:
            if link is not None:
                self.said += [str(link), repr(link), *map(str, link.args)]
                links += [link.__cause__, link.__context__]

    def nothing_given_away(self) -> None:
        assert self.said, "nothing was heard, so nothing is shown"
        for said in self.said:
            for secret in self.secrets:
                assert secret not in said
            assert not AN_ID.search(said), said


class _Listening(logging.Handler):
    def __init__(self, ears: Ears) -> None:
        super().__init__(logging.DEBUG)
        self._ears = ears

    def emit(self, record: logging.LogRecord) -> None:
        self._ears.said += [self.format(record), repr(record.args)]


@contextmanager
def listening() -> Generator[Ears]:
    """Hears all that is logged."""
    ears = Ears()
    root, handler = logging.getLogger(), _Listening(ears)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield ears
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


@pytest.fixture
def ears() -> Iterator[Ears]:
    """Hears all that is logged, and looks through it after the test."""
    with listening() as ears:
        yield ears
    ears.nothing_given_away()


@pytest.fixture
def client(server: EmbeddedRedis, connect: Connect) -> Redis:
    """A client that gives a password, as most do."""
    return connect(f"redis://default:{PASSWORD}@127.0.0.1:{server.port}")


@pytest.fixture
def warned(ears: Ears) -> Iterator[None]:
    """Warnings are heard too, and are no errors."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert caught
    ears.said += [str(warning.message) for warning in caught]


# -- nobody to talk to


@pytest.mark.parametrize("user", ["", "somebody", "default"])
async def test_nobody_listens(ears: Ears, kind: Kind, connect: Connect, user: str) -> None:
    """The address is told, and who knocked is not."""
    redis = connect(f"redis://{user}:{PASSWORD}@127.0.0.1:1/2")
    semaphore = kind(redis, "jobs", 1)
    for asked in (semaphore.acquire(timeout=0.2), semaphore.try_acquire()):
        with pytest.raises(BackendUnavailable, match=r"127\.0\.0\.1:1") as caught:
            await asked
        ears.hear(caught.value)
    ears.said.append(repr(semaphore))


async def test_wrong_password(
    ears: Ears, kind: Kind, embedded: StartServer, connect: Connect
) -> None:
    """Neither the wrong one nor the right one."""
    ears.secrets.add("right-password")
    server = embedded("--requirepass", "right-password")
    for user in ("", "nobody"):
        redis = connect(f"redis://{user}:{PASSWORD}@127.0.0.1:{server.port}")
        with pytest.raises(BackendError, match="rejects this client") as caught:
            await kind(redis, "jobs", 1).acquire(timeout=2)
        ears.hear(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{PASSWORD}/rest@127.0.0.1:6379",
        f"redis://me:{PASSWORD}#rest@127.0.0.1",
        f"redis://:{PASSWORD}?rest@127.0.0.1",
        f"redis://:{PASSWORD}℀@127.0.0.1",
        f"http://:{PASSWORD}@127.0.0.1",
        f"redis://:{PASSWORD}@127.0.0.1:6379?socket_timeout=soon",
    ],
)
async def test_a_url_that_cannot_be_read(ears: Ears, url: str) -> None:
    """A password that should have been percent-encoded looks like a port, and is quoted."""
    with pytest.raises(ValueError, match=r"URL") as caught:
        _ = redsem_async.from_url(url)
    ears.hear(caught.value)


# -- a server that refuses


async def test_a_user_who_may_not(
    ears: Ears, kind: Kind, server: EmbeddedRedis, admin: Redis, connect: Connect
) -> None:
    """Commands, keys and channels are refused each in words of their own."""
    untyped: Any = admin
    allowed = acl_rules()
    other_keys = tuple(rule.replace("~redsem:", "~other:") for rule in allowed)
    other_channels = tuple(rule.replace("&redsem:", "&other:") for rule in allowed)
    for rules in (
        tuple(rule for rule in allowed if rule != "+zadd"),
        tuple(rule for rule in allowed if rule != "+evalsha"),
        tuple(rule for rule in allowed if rule != "+eval"),
        other_keys,
    ):
        await untyped.execute_command(
            "ACL", "SETUSER", "me", "reset", "on", f">{PASSWORD}", *rules
        )
        redis = connect(f"redis://me:{PASSWORD}@127.0.0.1:{server.port}")
        semaphore = kind(redis, "jobs", 1)
        with pytest.raises(BackendError) as caught:
            for _ in range(3):
                await (await semaphore.acquire(timeout=2)).release()
        assert isinstance(caught.value.__cause__, errors.ResponseError)
        ears.hear(caught.value)
    await untyped.execute_command(
        "ACL", "SETUSER", "me", "reset", "on", f">{PASSWORD}", *other_channels
    )
    semaphore = kind(connect(f"redis://me:{PASSWORD}@127.0.0.1:{server.port}"), "jobs", 1)
    async with semaphore as permit:
        ears.know(permit)
    assert any("no push messages" in said for said in ears.said)


async def test_no_memory(ears: Ears, kind: Kind, client_a: Redis, admin: Redis) -> None:
    """Refused at maxmemory, whatever the name has in it."""
    semaphore = kind(client_a, "jobs", 2)
    async with semaphore as permit:
        ears.know(permit)
        await admin.config_set("maxmemory", "1")
        with pytest.raises(BackendError) as caught:
            await semaphore.acquire(timeout=2)
        assert isinstance(caught.value.__cause__, errors.OutOfMemoryError)
        ears.hear(caught.value)
        await admin.config_set("maxmemory", "0")


async def test_a_key_of_another_type(
    ears: Ears, kind: Kind, client_a: Redis, admin: Redis
) -> None:
    """A release that fails at the end of a block is logged."""
    semaphore = kind(client_a, "jobs", 1)
    async with semaphore as permit:
        ears.know(permit)
        await admin.delete(key_of(semaphore, "holders"))
        await admin.rpush(key_of(semaphore, "holders"), permit.id)
        with pytest.raises(SemaphoreError) as caught:
            await semaphore.status()
        ears.hear(caught.value)
    assert any("could not be released" in said for said in ears.said)
    await admin.delete(key_of(semaphore, "holders"))


@pytest.mark.parametrize("command", ["SUBSCRIBE", "EVALSHA", "EVAL", "HELLO"])
async def test_a_command_that_the_server_does_not_know(
    ears: Ears, embedded: StartServer, connect: Connect, kind: Kind, command: str
) -> None:
    """It says so, and quotes what came with it: of a SUBSCRIBE that is the hub's id."""
    server = embedded("--rename-command", command, "")
    redis = connect(f"redis://default:{PASSWORD}@127.0.0.1:{server.port}")
    semaphore = kind(redis, "j", 1, prefix="r")
    failed: SemaphoreError | None = None
    try:
        for _ in range(2):
            permit = ears.know(await semaphore.acquire(timeout=2))
            await permit.refresh()
            assert await permit.release()
    except SemaphoreError as error:
        failed = error
        ears.hear(error)
    assert (failed is not None) == command.startswith("EVAL")
    assert failed is not None or any("no push messages" in said for said in ears.said)


HUB = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    "text",
    [
        f"ERR unknown command 'EVALSHA', with args beginning with: 'r:{{j}}:x' '{HUB[:20]}",
        f"ERR unknown command `SUBSCRIBE`, with args beginning with: `redsem:@{HUB}`, ",
        f"NOPERM User me has no permissions to access the 'redsem:@{HUB}' channel",
        f"ERR user_script:12: attempt to compare nil with '{HUB}.17'",
    ],
)
def test_what_a_server_quotes_is_left_out(text: str) -> None:
    """And what it means is kept."""
    said = str(error_from(text))
    assert HUB[:12] not in said
    assert ".17" not in said
    assert said[:15] in text
    assert type(error_from("ERR no such key")) is errors.ResponseError
    assert str(error_from("ERR call to f_" + "0123456789abcdef" * 2 + "01234567")).endswith(
        "01234567"
    )


async def test_asyncio_in_debug_mode(
    ears: Ears, kind: Kind, client_a: Redis, client_b: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """It prints every callback that takes long, with what it is called with."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 0  # all of them
    try:
        semaphore, there = kind(client_a, "jobs", 1), kind(client_b, "jobs", 1)
        permit = ears.know(await semaphore.acquire())
        waiter = await waits_in_line(there)
        await permit.refresh()
        assert await permit.release()
        job = await ears.know(await waiter).detach()
        ears.know(adopted := await semaphore.adopt(job))
        assert await there.release(adopted.id)
        ears.hear(await asyncio.wait_for(adopted.wait_lost(), 5))
    finally:
        loop.set_debug(False)
    assert any("Executing" in said for said in ears.said)
    caplog.clear()


# -- permits that are lost


async def taken(semaphore: redsem_async.AnySemaphore, permit: Permit, admin: Redis) -> None:
    assert await semaphore.release(permit.id)


async def cleared(semaphore: redsem_async.AnySemaphore, permit: Permit, admin: Redis) -> None:
    await semaphore.clear()


async def flushed(semaphore: redsem_async.AnySemaphore, permit: Permit, admin: Redis) -> None:
    await admin.flushall()


Loss = Callable[[redsem_async.AnySemaphore, Permit, Redis], Any]


@pytest.mark.parametrize("lose", [taken, cleared, flushed])
async def test_lost_permits(
    ears: Ears, kind: Kind, client_a: Redis, client_b: Redis, admin: Redis, lose: Loss
) -> None:
    """The error has the id as an attribute, for programs."""
    semaphore = kind(client_a, "jobs", 1, lease=1.0, refresh_interval=0.1)
    permit = ears.know(await semaphore.acquire())
    with pytest.raises(PermitLost) as caught:
        async with permit:
            await lose(kind(client_b, "jobs", 1, lease=1.0), permit, admin)
            await asyncio.sleep(5)
    assert caught.value.permit_id == permit.id
    ears.hear(caught.value)
    with pytest.raises(PermitLost) as adopting:
        await semaphore.adopt(permit.id)
    ears.hear(adopting.value)
    with pytest.raises(PermitLost) as again:
        permit.check()
    ears.hear(again.value)


async def test_a_server_that_dies(
    ears: Ears, kind: Kind, client_a: Redis, server: EmbeddedRedis
) -> None:
    """Who holds loses it, who waits hears why, and what is left is logged."""
    semaphore = kind(client_a, "jobs", 1, lease=0.5)
    with suppress(PermitLost):
        async with semaphore as permit:
            ears.know(permit)
            waiter = await waits_in_line(semaphore, timeout=0.4)
            server.kill()
            with pytest.raises(BackendUnavailable) as caught:
                await waiter
            ears.hear(caught.value)
            ears.hear(await asyncio.wait_for(permit.wait_lost(), 2))


async def test_a_bad_id(ears: Ears, kind: Kind, client_a: Redis) -> None:
    """It may be a good one with a blank too many."""
    semaphore = kind(client_a, "jobs", 1)
    async with semaphore as permit:
        ears.know(permit)
        for wrong in (f" {permit.id}", f"{permit.id}\n", f"{permit.id}x", permit.id.upper()):
            for use in (semaphore.release, semaphore.adopt):
                try:
                    assert await use(wrong) is False
                except (ValueError, SemaphoreError) as error:
                    ears.hear(error)


@pytest.mark.usefixtures("warned")
async def test_a_permit_that_is_dropped(ears: Ears, kind: Kind, client_a: Redis) -> None:
    """The warning says which semaphore's, and not whose."""
    semaphore = kind(client_a, "jobs", 1)
    ears.know(await semaphore.acquire())
    gc.collect()
    async with semaphore.acquire(timeout=2):
        pass


# -- messages and replies that make no sense


async def test_garbled_messages(
    ears: Ears, kind: Kind, client_a: Redis, client_b: Redis, admin: Redis
) -> None:
    """Whoever may publish there may say anything; it is not repeated."""
    semaphore = kind(client_a, "jobs", 1)
    async with semaphore as permit:
        ears.know(permit)
        waiter = await waits_in_line(kind(client_b, "jobs", 1))
        for said in (
            permit.id,
            f"granted {permit.id} jobs",
            f"granted 1:2:3,{permit.id} jobs",
            f"gone {permit.id} jobs",
            f"hint {PASSWORD} jobs",
            f"granted 99:{10**18}:1000 jobs",
            b"\xff\xfe" + permit.id.encode(),
        ):
            assert await admin.publish(channel("redsem", hub_of(permit)), said) == 1
        await semaphore.status()
        assert any("ignored" in line for line in ears.said)
    assert await (await waiter).release()


async def test_replies_that_do_not_fit(
    ears: Ears, kind: Kind, proxied: Redis, proxy: Proxy
) -> None:
    """The connection is dropped, and what came over it is not repeated."""
    semaphore = kind(proxied, "jobs", 1)
    for said in ("$40\r\n{}\r\n", "*2\r\n:1\r\n$40\r\n{}\r\n", "?{}\r\n"):
        permit = ears.know(await semaphore.acquire(timeout=5))
        connections = len(proxy.connections)
        proxy.inject(said.format(permit.id.ljust(40)[:40]).encode())
        await until(lambda: len(proxy.connections) > connections, "it connects again")  # noqa: B023
        assert await permit.release()


async def test_an_error_that_quotes_a_permit(
    ears: Ears, kind: Kind, proxied: Redis, proxy: Proxy
) -> None:
    """From a proxy, say, that is proud of what it did not understand."""
    semaphore = kind(proxied, "jobs", 1)
    permit = ears.know(await semaphore.acquire())
    proxy.answer("release", f"ERR cannot route 'redsem:{{jobs}}:holders' '{permit.id}'")
    with pytest.raises(BackendError, match="cannot route") as caught:
        await permit.release()
    ears.hear(caught.value)
    waiter = in_background(semaphore.acquire(timeout=0.2))
    with pytest.raises(SemaphoreError):
        await waiter


# -- the ears themselves


@pytest.mark.parametrize("secret", [PASSWORD, f"permit {HUB}.17"])
def test_the_ears_hear(secret: str) -> None:
    """A test of silence is worth what its ears are."""
    with listening() as ears:
        logging.getLogger("redsem_async.deep.within").debug("%s", secret)
    with pytest.raises(AssertionError):
        ears.nothing_given_away()
    ears = Ears()
    error = RuntimeError()
    error.__context__ = ValueError(secret)
    error.__suppress_context__ = True  # as `from None` does
    ears.hear(error)
    with pytest.raises(AssertionError):
        ears.nothing_given_away()
