"""``watch``, in a terminal and in a log."""

import json
import os
import signal
import subprocess

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore
from tests.harness.servers import StartServer
from tests.integrations.cli.commands import COMMAND, CTRL_C, program, terminal


async def test_watch_shows_changes_in_a_terminal_until_ctrl_c(url: str, redis: Redis) -> None:
    semaphore = FairSemaphore(redis, "jobs", 2, label="api")
    with terminal("watch", "jobs", "--interval", "0.1", "--url", url) as shown:
        await shown.shows("No semaphore named 'jobs'")
        permit = await semaphore.acquire()
        await shown.shows("limit 2, 1 held, 0 waiting")
        await shown.shows("api (")
        await permit.release()
        await shown.shows("limit 2, 0 held, 0 waiting")
        shown.press(CTRL_C)
        assert await shown.ended() == 0
    assert "Traceback" not in shown.screen
    assert shown.screen.rfind("\x1b[?25h") > shown.screen.rfind("\x1b[?25l")


async def test_watch_without_a_terminal_prints_a_line_per_sample(url: str, redis: Redis) -> None:
    permit = await FairSemaphore(redis, "jobs", 2).acquire()
    arguments = ("watch", "jobs", "--interval", "0.1", "--count", "3", "--url", url)
    result = await program(*arguments)
    assert (result.code, result.err) == (0, "")
    assert result.out == "jobs: FairSemaphore, limit 2, 1 held, 0 waiting\n" * 3
    result = await program(*arguments, "--json")
    assert [json.loads(line)["held"] for line in result.out.splitlines()] == [1, 1, 1]
    await permit.release()


def test_watch_continues_after_an_outage(embedded: StartServer) -> None:
    server = embedded()
    with subprocess.Popen(
        [*COMMAND, "watch", "jobs", "--interval", "0.1", "--url", server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        looks = process.stdout
        try:
            assert "No semaphore named" in next(looks)
            server.kill()
            next(line for line in looks if "Can't reach Redis" in line)
            server.restart()
            next(line for line in looks if "No semaphore named" in line)
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


async def test_watch_shows_samples_in_a_terminal_that_is_dumb(url: str, redis: Redis) -> None:
    """It cannot show them live, because it cannot go back."""
    permit = await FairSemaphore(redis, "jobs", 2).acquire()
    with terminal("watch", "jobs", "--interval", "0.1", "--url", url, term="dumb") as shown:
        await shown.shows("limit 2, 1 held, 0 waiting")
        await permit.release()
        await shown.shows("limit 2, 0 held, 0 waiting")
        shown.press(CTRL_C)
        assert await shown.ended() == 0
    assert "\x1b" not in shown.screen


@pytest.mark.parametrize("as_json", [False, True], ids=["lines", "json"])
async def test_watch_ends_with_the_error_of_its_last_sample(as_json: bool, url: str) -> None:
    arguments = ("watch", "nosuch", "--count", "2", "--interval", "0.1", *["--json"] * as_json)

    async def errors(url: str, code: int) -> list[str]:
        result = await program(*arguments, REDIS_URL=url)
        assert (result.code, result.err) == (code, "")
        lines = result.out.splitlines()
        return [json.loads(line)["error"] for line in lines] if as_json else lines

    assert await errors(url, 3) == ["No semaphore named 'nosuch' (prefix 'redsem')."] * 2
    first, second = await errors("redis://127.0.0.1:1", 1)
    assert first == second
    assert first.startswith("Can't reach Redis at redis://127.0.0.1:1 (connection refused). ")


async def test_watch_in_a_terminal_ends_with_the_error_of_its_last_sample(url: str) -> None:
    with terminal("watch", "nosuch", "--count", "1", "--url", url) as shown:
        assert await shown.ended() == 3
    assert "No semaphore named 'nosuch'" in shown.screen
