"""Commands that change a semaphore: limits, pauses, ``revoke`` and ``delete``."""

import asyncio
import re
import socket
import subprocess

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, PermitLost
from tests.harness.clients import Connect, Kind
from tests.integrations.cli.commands import COMMAND, Cli, queued, terminal

BY = rf"redsem-async@{re.escape(socket.gethostname())}:\d+"


async def test_a_raised_limit_serves_waiters(kind: Kind, cli: Cli, redis: Redis) -> None:
    semaphore = kind(redis, "jobs", 1)
    permit = await semaphore.acquire()
    tasks = await queued(semaphore)
    result = await cli("set-limit", "jobs", "2")
    assert (result.code, result.out) == (0, "jobs: limit 2\n")
    more = await asyncio.wait_for(tasks[0], 2)
    assert (await semaphore.status()).limit == 2
    result = await cli("set-limit", "jobs", "1")
    assert result.out == (
        "jobs: limit 1; the set limit was 2;"
        " 2 permits still held; no new permit until fewer than 1 are held\n"
    )
    assert (await cli("set-limit", "jobs", "--unset")).out == (
        "jobs: set limit removed, the clients' own limit applies (1)\n"
    )
    assert (await semaphore.status()).set_limit is None
    assert await permit.release()
    assert await more.release()


async def test_what_a_deletion_leaves_is_no_semaphore(kind: Kind, cli: Cli, redis: Redis) -> None:
    """Some keys stay for a while, because a delayed command may still come."""
    async with kind(redis, "jobs", 1):
        pass
    assert (await cli("delete", "jobs", "--yes")).code == 0
    assert await redis.keys("*")
    result = await cli("status", "jobs")
    assert result.error_line == "No semaphore named 'jobs' (prefix 'redsem')."
    assert (await cli("ls")).error_line == "No semaphores in use (prefix 'redsem')."


async def test_a_pause_stops_grants_until_it_is_resumed(
    kind: Kind, cli: Cli, redis: Redis
) -> None:
    semaphore = kind(redis, "jobs", 1)
    await (await semaphore.acquire()).release()
    assert (await cli("pause", "jobs")).out == "jobs: paused\n"
    assert await semaphore.try_acquire() is None
    shown = (await cli("status", "jobs")).out
    assert re.search(rf"limit 0 \(paused \d s ago by {BY}\); clients declare 1", shown)
    assert "0 (paused)" in (await cli("ls")).out
    tasks = await queued(semaphore)
    assert (await cli("resume", "jobs")).code == 0
    assert await (await asyncio.wait_for(tasks[0], 2)).release()
    await semaphore.set_limit(5)
    result = await cli("resume", "jobs")
    assert result.out == "jobs: not paused; its set limit is 5\n"
    assert (await semaphore.status()).set_limit == 5


async def test_resume_says_which_limit_it_gives_back(cli: Cli, redis: Redis) -> None:
    semaphore = FairSemaphore(redis, "jobs", 1)
    await semaphore.set_limit(5)
    for _ in range(2):
        result = await cli("pause", "jobs")
        assert result.out.startswith("jobs: paused")
        assert (await cli.json("ls"))[0]["set_limit"] == 0
    result = await cli("resume", "jobs")
    assert result.out == "jobs: resumed; limit 5, which was set before the pause\n"
    assert (await semaphore.status()).set_limit == 5


async def test_a_limit_can_be_set_before_the_first_use(kind: Kind, cli: Cli, redis: Redis) -> None:
    result = await cli("pause", "jobs", "--create")
    assert result.code == 0
    assert "not in use yet" in result.err
    [listed] = await cli.json("ls")
    assert (listed["mode"], listed["limit"]) == (None, 0)
    assert await kind(redis, "jobs", 1).try_acquire() is None


NUMBER = "the limit must be a whole number"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), ""),
        (("-1",), NUMBER),  # which is not taken for an option
        (("1.5",), NUMBER),
        (("many",), NUMBER),
        (("3", "--unset"), ""),
        (("9" * 5000,), ""),
    ],
)
async def test_an_invalid_limit_is_a_usage_error(
    arguments: tuple[str, ...], says: str, cli: Cli, url: str
) -> None:
    result = await cli("set-limit", "jobs", *arguments)
    assert result.code == 2
    assert says in result.error_line
    async with Redis.from_url(url) as redis:
        assert await redis.keys() == []


async def test_revoke_notifies_the_holder_and_serves_the_next_waiter(
    kind: Kind, cli: Cli, url: str, redis: Redis, connect: Connect
) -> None:
    here, there = kind(redis, "jobs", 1), kind(connect(url), "jobs", 1)
    permit = await here.acquire()
    [waiter] = await queued(there)
    assert (await cli("revoke", "jobs", permit.id)).out == "jobs: permit revoked\n"
    lost = await asyncio.wait_for(permit.wait_lost(), 2)
    assert isinstance(lost, PermitLost)
    assert await (await asyncio.wait_for(waiter, 2)).release()

    result = await cli("revoke", "jobs", permit.id)
    assert result.code == 4
    assert permit.id not in result.error_line
    assert (await cli("revoke", "jobs", "no-id")).code == 2


@pytest.mark.parametrize(("answer", "code", "held"), [("n\n", 1, 1), ("", 1, 1), ("y\n", 0, 0)])
async def test_delete_asks_for_confirmation(
    answer: str, code: int, held: int, cli: Cli, redis: Redis
) -> None:
    semaphore = FairSemaphore(redis, "jobs", 1)
    permit = await semaphore.acquire()
    result = await cli("delete", "jobs", answer=answer)
    assert result.code == code
    assert "Delete jobs (1 held, 0 waiting)?" in result.err
    assert (await semaphore.status()).held == held
    assert permit.lost == (held == 0)
    await permit.release()


async def test_delete_that_is_interrupted_deletes_nothing(url: str, redis: Redis) -> None:
    permit = await FairSemaphore(redis, "jobs", 1).acquire()
    with terminal("delete", "jobs", "--url", url) as shown:
        await shown.shows("Delete jobs (1 held, 0 waiting)? [y/N]: ")
        assert await shown.interrupt() == 130
    assert shown.screen.splitlines()[-1] == "interrupted"
    assert await permit.release()


async def test_delete_without_input_requires_yes(url: str, redis: Redis) -> None:
    permit = await FairSemaphore(redis, "jobs", 1).acquire()
    done = await asyncio.to_thread(
        subprocess.run,
        ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "delete", "jobs", "--url", url],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "delete asks for confirmation, but there is no input: use --yes\n",
    )
    assert await permit.release()


async def test_json_may_be_asked_for_before_the_command(cli: Cli) -> None:
    assert (await cli("--json", "ls")).json_output == []


async def test_back_off_pauses_for_some_seconds(kind: Kind, cli: Cli, redis: Redis) -> None:
    semaphore = kind(redis, "jobs", 2)
    assert await (await semaphore.acquire()).release()
    result = await cli("back-off", "jobs", "30")
    told = "jobs: no permit for 30 s, then as many as the ramp allows\n"
    assert (result.code, result.out) == (0, told)
    assert await semaphore.try_acquire() is None
    shown = await cli("status", "jobs")
    assert "backing off" in shown.out
    assert re.search(rf"more \(back-off started \d s ago by {BY}\)", shown.out)
    data = await cli.json("status", "jobs")
    assert re.fullmatch(BY, data["back_off"]["by"])
    assert 0 <= data["back_off"]["age"] < 5
    assert 0 < data["back_off"]["seconds_left"] <= 30
    assert data["back_off"]["ramp"] == 0
    assert "backing off" in (await cli("ls")).out
    result = await cli("back-off", "jobs", "0")
    assert (result.code, result.out) == (0, "jobs: back-off ended\n")
    async with semaphore.acquire(timeout=0):
        pass


async def test_back_off_of_a_key(cli: Cli, redis: Redis) -> None:
    semaphore = FairSemaphore(redis, "jobs", 2, key_limit=2)
    async with semaphore.acquire(key="acme"):
        result = await cli("back-off", "jobs", "30", "--key", "acme")
        assert result.out.startswith("jobs: key acme: no permit for 30 s")
        assert await semaphore.try_acquire(key="acme") is None
        shown = await cli("status", "jobs")
        assert "2 (backing off)" in shown.out
        data = await cli.json("status", "jobs")
        assert data["keys"][0]["back_off"]["ramp"] == 0
        async with semaphore.acquire(key="globex", timeout=0):
            pass
    await cli("back-off", "jobs", "0", "--key", "acme")
    async with semaphore.acquire(key="acme", timeout=0):
        pass


@pytest.mark.parametrize("seconds", ["-1", "soon", "nan", "1e9"])
async def test_back_off_says_what_it_needs(cli: Cli, redis: Redis, seconds: str) -> None:
    semaphore = FairSemaphore(redis, "jobs", 1)
    assert await (await semaphore.acquire()).release()
    result = await cli("back-off", "jobs", seconds)
    assert result.code == 2
    assert result.error_line == "seconds must be a number from 0 to 86400"
