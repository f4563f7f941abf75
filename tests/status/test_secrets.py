"""Passwords and ids stay out of logs and errors, whatever goes wrong.

An id is all that is needed to release a permit. What asyncio and redis-py write counts too.
"""

import asyncio
import gc
import logging
import re
import traceback
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis

import redsem_async
from redsem_async import (
    BackendError,
    BackendUnavailable,
    FairSemaphore,
    Permit,
    PermitLost,
    SemaphoreError,
)
from redsem_async._core.keys import channel
from redsem_async._redis.acl import acl_rules
from redsem_async._redis.faults import error_from
from redsem_async.testing import EmbeddedRedis, MemoryBackend
from tests.harness.clients import Connect, hub_of
from tests.harness.proxy import Proxy
from tests.harness.servers import StartServer
from tests.harness.wait import soon, until, waits_in_queue

PASSWORD = "hunter2-of-the-test"
HUB = "0123456789abcdef" * 2
AN_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")

Raised = TypeVar("Raised", bound=Exception)


class Written:
    """All that was written for people: log records, warnings, and errors with their causes."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.secrets: set[str] = {PASSWORD}

    def know(self, permit: Permit) -> Permit:
        """A permit whose id, and the beginning of it, must not be written."""
        self.secrets |= {permit.id, hub_of(permit)[:12]}
        self.texts += [repr(permit), str(permit)]
        return permit

    def add(self, error: BaseException) -> None:
        self.texts += traceback.format_exception(error)
        links: list[BaseException | None] = [error]
        for link in links:
            if link is not None:
                self.texts += [str(link), repr(link), *map(str, link.args)]
                links += [link.__cause__, link.__context__]

    @contextmanager
    def error(
        self, kind: type[Raised], match: str | None = None
    ) -> Generator[pytest.ExceptionInfo[Raised]]:
        """Expect an error, and take it down."""
        with pytest.raises(kind, match=match) as caught:
            yield caught
        self.add(caught.value)

    def has(self, text: str) -> bool:
        return any(text in each for each in self.texts)

    def check(self) -> None:
        assert self.texts, "nothing was written, so nothing is shown"
        assert not [secret for secret in self.secrets if self.has(secret)]
        assert not [text for text in self.texts if AN_ID.search(text)]


@contextmanager
def recording() -> Generator[Written]:
    """Takes down all that is logged."""
    written = Written()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.texts += [self.format(record), repr(record.args)]

    root, handler = logging.getLogger(), Handler()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield written
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


@pytest.fixture
def written() -> Iterator[Written]:
    """Takes down all that is logged, and looks through it after the test."""
    with recording() as written:
        yield written
    written.check()


@pytest.mark.parametrize("user", ["", "somebody", "default"])
async def test_no_secret_is_written_of_a_server_that_is_not_there(
    written: Written, connect: Connect, user: str
) -> None:
    """The error has the address, and not the user."""
    semaphore = FairSemaphore(connect(f"redis://{user}:{PASSWORD}@127.0.0.1:1/2"), "jobs", 1)
    for asked in (semaphore.acquire(timeout=0.2), semaphore.try_acquire()):
        with written.error(BackendUnavailable, match=r"'jobs'.* 127\.0\.0\.1:1"):
            await asked
    written.texts.append(repr(semaphore))


async def test_no_secret_is_written_of_a_wrong_password(
    written: Written, embedded: StartServer, connect: Connect
) -> None:
    """Neither the wrong one nor the right one. The error comes at once: waiting would not help."""
    written.secrets.add("right-password")
    server = embedded("--requirepass", "right-password")
    for user in ("", "nobody"):
        redis = connect(f"redis://{user}:{PASSWORD}@127.0.0.1:{server.port}")
        with written.error(BackendError, match="rejects this client"):
            await soon(FairSemaphore(redis, "jobs", 1).acquire(), 1.0)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{PASSWORD}/rest@127.0.0.1:6379",
        f"redis://me:{PASSWORD}#rest@127.0.0.1",
        f"redis://:{PASSWORD}?rest@127.0.0.1",
        f"redis://:{PASSWORD}℀@127.0.0.1",
        f"http://:{PASSWORD}@127.0.0.1",
        f"me:{PASSWORD}@127.0.0.1:6379",
        f"127.0.0.1:6379?password={PASSWORD}",
        f"redis://:{PASSWORD}@127.0.0.1:6379?socket_timeout=soon",
    ],
)
async def test_no_secret_is_written_of_a_url_that_is_none(written: Written, url: str) -> None:
    """A password that should have been percent-encoded looks like a port, and is quoted."""
    with written.error(ValueError, match=r"URL"):
        _ = redsem_async.from_url(url)


async def test_no_secret_is_written_of_a_user_without_rights(
    written: Written, server: EmbeddedRedis, admin: Redis, connect: Connect
) -> None:
    """The server refuses commands, keys and channels with different messages."""
    untyped: Any = admin

    async def of_a_user_with(denied: str, *, instead_of: str) -> FairSemaphore:
        rules = [denied if rule == instead_of else rule for rule in acl_rules()]
        assert denied in rules
        await untyped.execute_command(
            "ACL", "SETUSER", "me", "reset", "on", f">{PASSWORD}", *rules
        )
        redis = connect(f"redis://me:{PASSWORD}@127.0.0.1:{server.port}")
        return FairSemaphore(redis, f"jobs {denied}", 1)

    for rule in ("+zadd", "+evalsha", "+eval", "~redsem:*"):
        denied = rule.replace("+", "-").replace("redsem", "other")
        semaphore = await of_a_user_with(denied, instead_of=rule)
        with written.error(BackendError) as caught:
            for _ in range(3):
                await (await semaphore.acquire(timeout=2)).release()
        assert isinstance(caught.value.__cause__, errors.ResponseError)
    async with await of_a_user_with("&other:*", instead_of="&redsem:*") as permit:
        written.know(permit)
    assert written.has("no push messages")


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
    assert str(error_from(f"ERR call to f_{HUB}01234567")).endswith("01234567")


async def test_no_secret_is_written_in_debug_mode_of_asyncio(
    written: Written, client_a: Redis, client_b: Redis
) -> None:
    """It prints every callback that takes long, with what it is called with."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 0  # all of them
    try:
        semaphore, there = FairSemaphore(client_a, "jobs", 1), FairSemaphore(client_b, "jobs", 1)
        permit = written.know(await semaphore.acquire())
        waiter = await waits_in_queue(there)
        await permit.refresh()
        assert await permit.release()
        job = await written.know(await waiter).detach()
        written.know(adopted := await semaphore.adopt(job))
        assert await there.release(adopted.id)
        written.add(await soon(adopted.wait_lost()))
    finally:
        loop.set_debug(False)
    assert written.has("Executing")


async def test_no_secret_is_written_of_a_lost_permit_and_a_bad_id(written: Written) -> None:
    """The error has the id as an attribute, for programs. A bad id may be a good one misspelt."""
    backend = MemoryBackend()
    semaphore = FairSemaphore(backend, "jobs", 1)
    with written.error(PermitLost) as lost:
        async with semaphore as permit:
            written.know(permit)
            backend.lose(permit)
            await asyncio.Event().wait()
    assert lost.value.permit_id == permit.id
    for wrong in (permit.id, f" {permit.id}", f"{permit.id}x", permit.id.upper()):
        for use in (semaphore.release, semaphore.adopt):
            try:
                assert await use(wrong) is False
            except (ValueError, SemaphoreError) as error:
                written.add(error)
    permit = written.know(await semaphore.acquire())
    backend.down()
    with written.error(BackendUnavailable):
        await semaphore.acquire(timeout=0.2)
    backend.advance(60.0)
    written.add(await soon(permit.wait_lost()))
    backend.up()


async def test_no_secret_is_written_of_a_dropped_permit(written: Written) -> None:
    """The warning has the semaphore's name, and not the id."""
    semaphore = FairSemaphore(MemoryBackend(), "jobs", 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        written.know(await semaphore.acquire())
        gc.collect()
        async with semaphore.acquire(timeout=2):
            pass
    assert caught
    written.texts += [str(warning.message) for warning in caught]


async def test_no_secret_is_written_of_a_garbled_message(
    written: Written, client_a: Redis, admin: Redis
) -> None:
    """A user who may publish there may send anything; it is not repeated."""
    semaphore = FairSemaphore(client_a, "jobs", 1)
    async with semaphore as permit:
        written.know(permit)
        for said in (
            *(permit.id, f"granted {permit.id} jobs", f"granted 1:2:3,{permit.id} jobs"),
            *(f"revoked {permit.id} jobs", f"recheck {PASSWORD} jobs"),
            *(f"granted 99:{10**18}:1000 jobs", b"\xff\xfe" + permit.id.encode()),
        ):
            assert await admin.publish(channel("redsem", hub_of(permit)), said) == 1
        await semaphore.status()
        assert written.has("ignored")


async def test_no_secret_is_written_of_a_reply_that_does_not_fit(
    written: Written, proxied: Redis, proxy: Proxy
) -> None:
    """The connection is dropped, and what came over it is not repeated."""
    semaphore = FairSemaphore(proxied, "jobs", 1)
    for number, said in enumerate(("$40\r\n{}\r\n", "*2\r\n:1\r\n$40\r\n{}\r\n", "?{}\r\n")):
        permit = written.know(await semaphore.acquire(timeout=5))
        proxy.inject(said.format(permit.id.ljust(40)[:40]).encode())
        await until(lambda: len(proxy.connections) > number + 1, "it connects again")  # noqa: B023
        assert await permit.release()
