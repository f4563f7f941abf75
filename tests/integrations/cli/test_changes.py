"""Commands that change a semaphore: limits, pauses, back-offs, ``revoke`` and ``delete``."""

import asyncio
import re
import socket
import subprocess
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, PermitLost
from tests.harness.clients import Connect
from tests.harness.wait import queue_up, soon
from tests.integrations.cli.commands import COMMAND, Cli, queued, terminal

BY = rf"redsem-async@{re.escape(socket.gethostname())}:\d+"


@pytest.fixture
def semaphore(redis: Redis) -> FairSemaphore:
    """Of every test. `test_every_mode_and_clock` has the other class."""
    return FairSemaphore(redis, "jobs", 1)


async def test_a_raised_limit_serves_waiters(cli: Cli, semaphore: FairSemaphore) -> None:
    permit = await semaphore.acquire()
    [waiter] = await queued(semaphore)
    result = await cli("set-limit", "jobs", "2")
    assert (result.code, result.out) == (0, "jobs: limit 2\n")
    more = await soon(waiter)
    result = await cli("set-limit", "jobs", "1")
    assert result.out == (
        "jobs: limit 1; the set limit was 2;"
        " 2 permits still held; no new permit until fewer than 1 are held\n"
    )
    shown = (await cli("status", "jobs")).out
    assert re.search(rf"limit 1 \(set \S+ s ago by {BY}; clients declare 1\), 2 held", shown)
    assert (await cli("set-limit", "jobs", "--unset")).out == (
        "jobs: set limit removed, the clients' own limit applies (1)\n"
    )
    assert (await semaphore.status()).set_limit is None
    assert await permit.release()
    assert await more.release()


async def test_a_pause_stops_grants_until_it_is_resumed(
    cli: Cli, semaphore: FairSemaphore
) -> None:
    """And `resume` gives back the limit from before it."""
    async with semaphore:
        pass
    assert (await cli("pause", "jobs")).out == "jobs: paused\n"
    assert await semaphore.try_acquire() is None
    shown = (await cli("status", "jobs")).out
    assert re.search(rf"limit 0 \(paused \S+ s ago by {BY}; clients declare 1\)", shown)
    assert "0 (paused)" in (await cli("ls")).out
    [waiter] = await queued(semaphore)
    assert (await cli("resume", "jobs")).code == 0
    assert await (await soon(waiter)).release()
    await semaphore.set_limit(5)
    assert (await cli("resume", "jobs")).out == "jobs: not paused; its set limit is 5\n"
    for _ in range(2):
        assert (await cli("pause", "jobs")).out.startswith("jobs: paused")
    result = await cli("resume", "jobs")
    assert result.out == "jobs: resumed; limit 5, which was set before the pause\n"
    assert (await semaphore.status()).set_limit == 5


async def test_back_off_pauses_for_some_seconds(cli: Cli, semaphore: FairSemaphore) -> None:
    async with semaphore:
        pass
    result = await cli("back-off", "jobs", "30")
    told = "jobs: no permit for 30 s, then the limit in force rises again\n"
    assert (result.code, result.out) == (0, told)
    assert await semaphore.try_acquire() is None
    shown = (await cli("status", "jobs")).out
    assert re.search(rf"backing off: No permit for .* started \S+ s ago by {BY}\.", shown)
    data = await cli.json("status", "jobs")
    assert re.fullmatch(BY, data["back_off"]["by"])
    assert data["back_off"]["limit"] == 0 < data["back_off"]["seconds_left"] <= 30
    result = await cli("back-off", "jobs", "0")
    assert (result.code, result.out) == (0, "jobs: back-off ended\n")
    async with semaphore.acquire(timeout=0):
        pass


async def test_limits_and_back_offs_of_a_key(cli: Cli, redis: Redis) -> None:
    semaphore = FairSemaphore(redis, "llm", 5, key_limit=1)
    permit = await semaphore.acquire(key="acme")
    waiter = await queue_up(semaphore, key="acme")
    result = await cli("set-limit", "llm", "2", "--key", "acme")
    assert (result.code, result.out, result.err) == (0, "llm: key acme: limit 2\n", "")
    await (await soon(waiter)).release()
    status = await semaphore.status()
    assert (status.set_limit, status.keys[0].set_limit) == (None, 2)
    result = await cli("set-limit", "llm", "0", "--key", "acme")
    assert result.out == "llm: key acme: paused\n"
    assert re.search(rf"acme +0 +1 +0 +paused \S+ s ago by {BY}", (await cli("status", "llm")).out)
    result = await cli("set-limit", "llm", "--unset", "--key", "acme")
    assert result.out == "llm: key acme: set limit removed\n"
    await permit.release()
    result = await cli("back-off", "llm", "30", "--key", "acme")
    assert result.out.startswith("llm: key acme: no permit for 30 s")
    assert await semaphore.try_acquire(key="acme") is None
    async with semaphore.acquire(key="globex", timeout=0):
        pass
    await cli("back-off", "llm", "0", "--key", "acme")
    async with semaphore.acquire(key="acme", timeout=0):
        pass


@pytest.mark.parametrize("key", [(), ("--key", "acme")])
async def test_a_limit_can_be_set_before_the_first_use(
    key: tuple[str, ...], cli: Cli, redis: Redis
) -> None:
    """It has no expiry, so that it can be found and removed for as long as it applies."""
    arguments = ("set-limit", "jobs", "0", *key)
    result = await cli(*arguments)
    assert (result.code, "--create" in result.error_line) == (3, True)
    result = await cli(*arguments, "--create")
    assert (result.code, "not in use yet: " in result.err) == (0, True)
    [listed] = await cli.json("ls")
    assert (listed["name"], listed["mode"]) == ("jobs", None)
    semaphore = FairSemaphore(redis, "jobs", 1, share=bool(key))
    of_key: dict[str, Any] = {"key": "acme"} if key else {}
    assert await semaphore.try_acquire(**of_key) is None
    assert (await cli("delete", "jobs", "--yes")).code == 0
    assert (await cli("status", "jobs")).code == 3
    await cli(*arguments, "--create")
    removed = await cli("set-limit", "jobs", "--unset", *key)
    assert (removed.code, removed.err) == (0, ""), "no limit applies any more"
    assert (await cli("status", "jobs")).code == 3


LIMIT, SECONDS = "LIMIT must be a whole number", "SECONDS must be a number from 0 to 86400"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("set-limit", "jobs"), ""),
        (("set-limit", "jobs", "-1"), LIMIT),  # which is not taken for an option
        (("set-limit", "jobs", "1.5"), LIMIT),
        (("set-limit", "jobs", "9" * 5000), LIMIT),
        (("set-limit", "jobs", "3", "--unset"), ""),
        (("set-limit", "jobs", "1", "--key", "a"), "'jobs' has no keys"),
        (("status", "jobs", "--keys-after", "a"), "'jobs' has no keys"),
        (("set-limit", "keyed", "1", "--key", ""), "key must have 1 to 512 bytes"),
        (("set-limit", "keyed", "1", "--key", "x" * 513), "key must have 1 to 512 bytes"),
        (("revoke", "jobs", "no-id"), "not a permit id"),
        *((("back-off", "jobs", wrong), SECONDS) for wrong in ("-1", "soon", "nan", "1e9")),
    ],
)
async def test_nonsense_is_a_usage_error(
    arguments: tuple[str, ...], says: str, cli: Cli, redis: Redis, semaphore: FairSemaphore
) -> None:
    async with semaphore, FairSemaphore(redis, "keyed", 5, key_limit=1).acquire(key="a"):
        result = await cli(*arguments)
        assert (result.code, says in result.error_line) == (2, True)
        assert (await semaphore.status()).set_limit is None


async def test_revoke_notifies_the_holder_and_serves_the_next_waiter(
    cli: Cli, url: str, semaphore: FairSemaphore, connect: Connect
) -> None:
    permit = await semaphore.acquire()
    [waiter] = await queued(FairSemaphore(connect(url), "jobs", 1))
    assert (await cli("revoke", "jobs", permit.id)).out == "jobs: permit revoked\n"
    assert isinstance(await soon(permit.wait_lost()), PermitLost)
    assert await (await soon(waiter)).release()
    result = await cli("revoke", "jobs", permit.id)
    assert (result.code, permit.id in result.error_line) == (4, False)


@pytest.mark.parametrize(("answer", "code", "held"), [("n\n", 1, 1), ("", 1, 1), ("y\n", 0, 0)])
async def test_delete_asks_for_confirmation(
    answer: str, code: int, held: int, cli: Cli, redis: Redis, semaphore: FairSemaphore
) -> None:
    """What it leaves is no semaphore: some keys stay, because a delayed command may come."""
    permit = await semaphore.acquire()
    result = await cli("delete", "jobs", answer=answer)
    assert result.code == code
    assert "Delete jobs (1 held, 0 waiting)?" in result.err
    assert (len(await cli.json("ls")), permit.lost) == (held, held == 0)
    assert await redis.keys("*")
    await permit.release()


async def test_delete_that_is_interrupted_deletes_nothing(
    url: str, semaphore: FairSemaphore
) -> None:
    permit = await semaphore.acquire()
    with terminal("delete", "jobs", "--url", url) as shown:
        await shown.shows("Delete jobs (1 held, 0 waiting)? [y/N]: ")
        assert await shown.interrupt() == 130
    assert shown.screen.splitlines()[-1] == "redsem-async: interrupted"
    done = await asyncio.to_thread(
        subprocess.run,
        ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "delete", "jobs", "--url", url],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    without = "redsem-async: delete asks for confirmation, but there is no input: use --yes\n"
    assert (done.returncode, done.stderr) == (2, without)
    assert await permit.release()


async def test_a_back_off_of_a_name_that_is_not_in_use_can_be_seen(cli: Cli) -> None:
    """Its first client has to wait for it, so it must not stay hidden until then."""
    for key in ((), ("--key", "acme")):
        assert (await cli("back-off", "later", "3600", "--create", *key)).code == 0
        [row] = await cli.json("ls")
        assert (row["name"], row["class"], bool(row["back_off"])) == ("later", None, not key)
        assert "not in use" in (await cli("status", "later")).out
        assert (await cli("back-off", "later", "0", *key)).code == 0
        assert await cli.json("ls") == []


async def test_the_set_limit_of_an_idle_key_can_be_found(cli: Cli, redis: Redis) -> None:
    """It has no expiry, so a forgotten one would hold the key up when it comes back."""
    llm = FairSemaphore(redis, "llm", 5, key_limit=2)
    async with llm.acquire(key="beta"):
        for key in ("b c", "acme"):
            assert (await cli("set-limit", "llm", "1", "--key", key)).code == 0
        shown = (await cli("status", "llm", "--most", "3")).out
        assert re.search(r"^acme +1 +0 +0 +set .* ago by ", shown, re.MULTILINE)
        assert "--keys-after" not in shown
        for arguments in (("status", "llm"), ("watch", "llm", "--count", "1")):
            keys = (await cli.json(*arguments))["keys"]
            assert [(key["key"], key["set_limit"]) for key in keys] == [
                *(("beta", None), ("acme", 1), ("b c", 1))
            ]
    await redis.delete("redsem:{llm}:meta", "redsem:{llm}:hubs")
    assert len((await cli.json("status", "llm"))["keys"]) == 2, "also once nobody uses the name"
