"""How a client logs in, and what becomes of it when a server rejects that or does not answer."""

from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import BackendUnavailable, FairSemaphore
from tests.harness.clients import Connect
from tests.harness.proxy import Proxy
from tests.harness.servers import StartServer
from tests.harness.wait import in_background, is_served, queue_up, soon, until

LEASE = 30.0  # with a heartbeat every ten seconds: nothing is found by one

WITHOUT: dict[str, list[str]] = {"nothing": [], "HELLO": ["--rename-command", "HELLO", ""]}


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
