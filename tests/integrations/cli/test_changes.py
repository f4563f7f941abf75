"""Commands that change a semaphore: limits, pauses, ``revoke`` and ``clear``."""

import asyncio
import subprocess

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, PermitLost
from tests.harness.clients import Connect, Kind
from tests.integrations.cli.commands import (
    COMMAND,
    command,
    queued,
    terminal,
)


async def test_a_raised_limit_serves_waiters(kind: Kind, url: str, redis: Redis) -> None:
    semaphore = kind(redis, "jobs", 1)
    permit = await semaphore.acquire()
    tasks = await queued(semaphore)
    result = await command("set-limit", "jobs", "2", url=url)
    assert (result.code, result.out) == (0, "jobs: limit 2\n")
    more = await asyncio.wait_for(tasks[0], 2)
    assert (await semaphore.status()).limit == 2
    result = await command("set-limit", "jobs", "1", url=url)
    assert result.out == (
        "jobs: limit 1; the set limit was 2;"
        " 2 permits still held, new ones are granted once fewer than 1 are held\n"
    )
    assert (await command("set-limit", "jobs", "none", url=url)).out == (
        "jobs: set limit removed, the clients' own limit applies (1)\n"
    )
    assert (await semaphore.status()).set_limit is None
    assert await permit.release()
    assert await more.release()


async def test_what_a_clear_leaves_is_no_semaphore(kind: Kind, url: str, redis: Redis) -> None:
    """Some keys stay for a while, because a delayed command may still come."""
    async with kind(redis, "jobs", 1):
        pass
    assert (await command("clear", "jobs", "--yes", url=url)).code == 0
    assert await redis.keys("*")
    result = await command("status", "jobs", url=url)
    assert result.error_line == "No semaphore named 'jobs' (prefix 'redsem')."
    assert (await command("ls", url=url)).error_line == "No semaphores in use (prefix 'redsem')."


async def test_a_pause_stops_grants_until_it_is_resumed(
    kind: Kind, url: str, redis: Redis
) -> None:
    semaphore = kind(redis, "jobs", 1)
    await (await semaphore.acquire()).release()
    assert (await command("pause", "jobs", url=url)).out == "jobs: paused\n"
    assert await semaphore.try_acquire() is None
    assert "limit 0 (paused); clients declare 1" in (await command("status", "jobs", url=url)).out
    assert "0 (paused)" in (await command("ls", url=url)).out
    tasks = await queued(semaphore)
    assert (await command("resume", "jobs", url=url)).code == 0
    assert await (await asyncio.wait_for(tasks[0], 2)).release()
    await semaphore.set_limit(5)
    result = await command("resume", "jobs", url=url)
    assert result.out == "jobs: not paused; its set limit is 5\n"
    assert (await semaphore.status()).set_limit == 5


async def test_resume_says_which_limit_it_gives_back(url: str, redis: Redis) -> None:
    semaphore = FairSemaphore(redis, "jobs", 1)
    await semaphore.set_limit(5)
    for _ in range(2):
        result = await command("pause", "jobs", url=url)
        assert result.out.startswith("jobs: paused")
        assert (await command("ls", "--json", url=url)).json_output[0]["set_limit"] == 0
    result = await command("resume", "jobs", url=url)
    assert result.out == "jobs: resumed; limit 5, which was set before the pause\n"
    assert (await semaphore.status()).set_limit == 5


async def test_a_limit_can_be_set_before_the_first_use(kind: Kind, url: str, redis: Redis) -> None:
    result = await command("pause", "jobs", "--create", url=url)
    assert result.code == 0
    assert "not in use yet" in result.err
    [listed] = (await command("ls", "--json", url=url)).json_output
    assert (listed["mode"], listed["limit"]) == (None, 0)
    assert await kind(redis, "jobs", 1).try_acquire() is None


@pytest.mark.parametrize(
    "arguments", [(), ("-1",), ("1.5",), ("many",), ("3", "--clear"), ("9" * 5000,)]
)
async def test_an_invalid_limit_is_a_usage_error(arguments: tuple[str, ...], url: str) -> None:
    assert (await command("set-limit", "jobs", *arguments, url=url)).code == 2
    async with Redis.from_url(url) as redis:
        assert await redis.keys() == []


async def test_revoke_notifies_the_holder_and_serves_the_next_waiter(
    kind: Kind, url: str, redis: Redis, connect: Connect
) -> None:
    here, there = kind(redis, "jobs", 1), kind(connect(url), "jobs", 1)
    permit = await here.acquire()
    [waiter] = await queued(there)
    assert (await command("revoke", "jobs", permit.id, url=url)).out == "jobs: permit revoked\n"
    lost = await asyncio.wait_for(permit.wait_lost(), 2)
    assert isinstance(lost, PermitLost)
    assert await (await asyncio.wait_for(waiter, 2)).release()

    result = await command("revoke", "jobs", permit.id, url=url)
    assert result.code == 4
    assert permit.id not in result.error_line
    assert (await command("revoke", "jobs", "no-id", url=url)).code == 2


@pytest.mark.parametrize(("answer", "code", "held"), [("n\n", 1, 1), ("", 1, 1), ("y\n", 0, 0)])
async def test_clear_asks_for_confirmation(
    answer: str, code: int, held: int, url: str, redis: Redis
) -> None:
    semaphore = FairSemaphore(redis, "jobs", 1)
    permit = await semaphore.acquire()
    result = await command("clear", "jobs", url=url, answer=answer)
    assert result.code == code
    assert "1 permits held and 0 requests waiting" in result.err
    assert (await semaphore.status()).held == held
    assert permit.lost == (held == 0)
    await permit.release()


async def test_clear_that_is_interrupted_deletes_nothing(url: str, redis: Redis) -> None:
    permit = await FairSemaphore(redis, "jobs", 1).acquire()
    with terminal("clear", "jobs", "--url", url) as shown:
        await shown.shows("Delete it? [y/N]: ")
        assert await shown.interrupt() == 130
    assert shown.screen.splitlines()[-1] == "interrupted"
    assert await permit.release()


async def test_clear_without_input_requires_yes(url: str, redis: Redis) -> None:
    permit = await FairSemaphore(redis, "jobs", 1).acquire()
    done = await asyncio.to_thread(
        subprocess.run,
        ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "clear", "jobs", "--url", url],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "clear asks for confirmation, but there is no input: use --yes\n",
    )
    assert await permit.release()


async def test_a_negative_limit_is_not_taken_for_an_option(url: str) -> None:
    result = await command("set-limit", "jobs", "-1", url=url)
    assert result.code == 2
    assert "the limit must be a whole number" in result.error_line


async def test_json_may_be_asked_for_before_the_command(url: str) -> None:
    assert (await command("--json", "ls", url=url)).json_output == []


async def test_hold_off_pauses_for_some_seconds(kind: Kind, url: str, redis: Redis) -> None:
    semaphore = kind(redis, "jobs", 2)
    assert await (await semaphore.acquire()).release()
    result = await command("hold-off", "jobs", "30", url=url)
    told = "jobs: no permit for 30 s, then as many as the ramp allows\n"
    assert (result.code, result.out) == (0, told)
    assert await semaphore.try_acquire() is None
    shown = await command("status", "jobs", url=url)
    assert "backing off" in shown.out and "more (back-off)" in shown.out
    data = (await command("status", "jobs", "--json", url=url)).json_output
    assert 0 < data["back_off"]["seconds_left"] <= 30
    assert data["back_off"]["ramp"] == 0
    assert "backing off" in (await command("ls", url=url)).out
    result = await command("hold-off", "jobs", "0", url=url)
    assert (result.code, result.out) == (0, "jobs: back-off ended\n")
    async with semaphore.acquire(timeout=0):
        pass


async def test_hold_off_of_a_key(url: str, redis: Redis) -> None:
    semaphore = FairSemaphore(redis, "jobs", 2, key_limit=2)
    async with semaphore.acquire(key="acme"):
        result = await command("hold-off", "jobs", "30", "--key", "acme", url=url)
        assert result.out.startswith("jobs: key acme: no permit for 30 s")
        assert await semaphore.try_acquire(key="acme") is None
        shown = await command("status", "jobs", url=url)
        assert "2 (backing off)" in shown.out
        data = (await command("status", "jobs", "--json", url=url)).json_output
        assert data["keys"][0]["back_off"]["ramp"] == 0
        async with semaphore.acquire(key="globex", timeout=0):
            pass
    await command("hold-off", "jobs", "0", "--key", "acme", url=url)
    async with semaphore.acquire(key="acme", timeout=0):
        pass


@pytest.mark.parametrize("seconds", ["-1", "soon", "nan", "1e9"])
async def test_hold_off_says_what_it_needs(url: str, redis: Redis, seconds: str) -> None:
    semaphore = FairSemaphore(redis, "jobs", 1)
    assert await (await semaphore.acquire()).release()
    result = await command("hold-off", "jobs", seconds, url=url)
    assert result.code == 2
    assert result.error_line == "seconds must be a number from 0 to 86400"
