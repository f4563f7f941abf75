"""How a client logs in, and what becomes of it when a server rejects that or does not answer."""

import asyncio
from typing import Any

import pytest
import redis
from redis.asyncio import Redis
from redis.credentials import CredentialProvider

from redsem_async import BackendError, BackendUnavailable, FairSemaphore
from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import Connect
from tests.harness.proxy import Proxy
from tests.harness.servers import StartServer, stopped
from tests.harness.wait import all_free, in_background, is_served, queue_up, soon, until

LEASE = 30.0  # with a heartbeat every ten seconds: nothing is found by one

WITHOUT: dict[str, list[str]] = {"nothing": [], "HELLO": ["--rename-command", "HELLO", ""]}


async def _log_in(connection: Any) -> None:
    """As Google's examples do for its IAM: no HELLO, and so RESP2."""
    connection._parser.on_connect(connection)
    await connection.send_command("AUTH", "hunter2", check_health=False)
    assert await connection.read_response() == b"OK"


@pytest.mark.parametrize("lacks", WITHOUT)
async def test_a_function_that_logs_in_by_auth_alone_will_do(
    embedded: StartServer, connect: Connect, lacks: str
) -> None:
    """Whichever protocol it leaves the connection with, waiters are served."""
    server = embedded("--requirepass", "hunter2", *WITHOUT[lacks])
    here, there = (
        FairSemaphore(connect(server.url, redis_connect_func=_log_in), "jobs", 1, lease=3.0)
        for _ in range(2)
    )
    for _ in range(3):
        holder = await soon(here.acquire())
        waiter = await queue_up(there)
        assert await holder.release()
        await is_served(waiter, 0.5 if lacks == "nothing" else 2.0, after=holder)
    await all_free(here)


def outages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if getattr(r, "event", "") == "outage"]


def rejections(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [said for said in outages(caplog) if "password" in said or "NOAUTH" in said]


@pytest.mark.parametrize("lacks", WITHOUT)
@pytest.mark.parametrize("password", ["hunter2", ""])
async def test_a_login_that_is_rejected_later_is_an_outage(
    embedded: StartServer, connect: Connect, caplog: Any, password: str, lacks: str
) -> None:
    """A stale token passes, and so does a change of passwords. Nothing must be lost to them.

    Logged once, and once more after an outage, of which "connection refused" was the reason.
    """
    server = embedded("--requirepass", password, *WITHOUT[lacks])
    known: dict[str, Any] = {"password": password or None}
    async with Redis(port=server.port, protocol=2, **known) as admin, Proxy(server.port) as proxy:
        sem = FairSemaphore(connect(proxy.url, **known), "jobs", 1, lease=LEASE)
        holder = await sem.acquire()
        waiter = await queue_up(sem)
        proxy.refusing = bool(password)
        proxy.drop()
        if password:
            await until(lambda: bool(outages(caplog)), "it is logged")
        await admin.config_set("requirepass", "changed")
        await admin.client_kill_filter(skipme=True)
        proxy.refusing = False
        releasing = in_background(holder.release())
        await until(lambda: bool(rejections(caplog)), "so is the rejection")
        with pytest.raises(BackendUnavailable, match=r"password|NOAUTH"):
            await sem.try_acquire()
        assert not (waiter.done() or releasing.done())
        await admin.config_set("requirepass", password)
        assert await soon(releasing)
        await is_served(waiter, 2.0, after=holder)
    [rejection] = rejections(caplog)
    assert not password or outages(caplog)[0] != rejection


@pytest.mark.parametrize("lacks", WITHOUT)
async def test_a_missing_password_is_told_at_once_and_where_to_put_it(
    embedded: StartServer, connect: Connect, lacks: str
) -> None:
    """What the server says of HELLO and of options helps nobody."""
    server = embedded("--requirepass", "hunter2", *WITHOUT[lacks])
    with pytest.raises(BackendError, match=r"needs a password: put it into .*REDIS_URL"):
        await soon(FairSemaphore(connect(server.url), "jobs", 1).acquire(), 1.0)


class _Slow(CredentialProvider):
    """Fetches a token for some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def get_credentials_async(self) -> tuple[str]:
        await asyncio.sleep(self.seconds)
        return ("hunter2",)


@pytest.mark.skipif(redis.VERSION < (5, 3), reason="this redis-py awaits no provider")
async def test_a_token_may_take_longer_than_a_connection(
    embedded: StartServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider that needs six seconds would never log in, and each attempt would ask it anew."""
    monkeypatch.setattr("redsem_async._redis.dial.CONNECT_TIMEOUT", 0.5)
    server = embedded("--requirepass", "hunter2")
    sem = FairSemaphore(connect(server.url, credential_provider=_Slow(1.0)), "jobs", 1)
    permit = await soon(sem.acquire())
    assert await permit.release()
    monkeypatch.setattr("redsem_async._redis.dial.CREDENTIALS_TIMEOUT", 0.1)
    never = FairSemaphore(connect(server.url, credential_provider=_Slow(60.0)), "jobs", 1)
    with pytest.raises(BackendUnavailable, match=r"provider gave no credentials in 0\.1 s"):
        await soon(never.acquire(timeout=1.0))


async def test_unavailable_says_why_when_nothing_is_said(
    server: EmbeddedRedis, connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """In the error and in the log."""
    early, sem = (FairSemaphore(connect(server.url), "jobs", 1) for _ in range(2))
    with stopped(server):
        with pytest.raises(BackendUnavailable, match=r": no connection in \S+ s$"):
            await early.acquire(timeout=0.1)
        monkeypatch.setattr("redsem_async._redis.dial.CONNECT_TIMEOUT", 0.4)
        with pytest.raises(BackendUnavailable, match=r" is unavailable: no answer in 0.4 s"):
            await sem.acquire(timeout=1.0)
        [said] = outages(caplog)
        assert f"{server.port} is unavailable for 'jobs': no answer in 0.4 s" in said
