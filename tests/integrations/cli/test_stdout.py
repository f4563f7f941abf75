"""A stdout that takes no more output, which is not Redis's fault."""

import asyncio
import subprocess
from pathlib import Path

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore
from tests.integrations.cli.commands import COMMAND, TIMEOUT

FULL = Path("/dev/full")
INTO_A_FULL_DISK = 'exec "$@" > /dev/full'
INTO_A_PIPE_THAT_ENDS = """
"$@" | head -n 1 > /dev/null
exit ${PIPESTATUS[0]}
"""


async def outcome(*words: str) -> tuple[int, str]:
    """The exit code of a program, and its stderr."""
    done = await asyncio.to_thread(
        subprocess.run,
        words,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has it")
@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor",),
        ("ls",),
        ("status", "jobs", "--json"),
        ("watch", "jobs"),
        ("set-limit", "jobs", "7"),
        ("serve", "--port", "0"),
        ("--help",),
    ],
    ids=lambda arguments: str(arguments[0]),
)
async def test_a_full_disk_is_one_line_that_names_stdout(
    arguments: tuple[str, ...], url: str, redis: Redis
) -> None:
    semaphore = FairSemaphore(redis, "jobs", 2)
    async with semaphore:
        words = ("sh", "-c", INTO_A_FULL_DISK, "-", *COMMAND, "--url", url, *arguments)
        assert await outcome(*words) == (1, "redsem-async: stdout: No space left on device\n")
        changed = arguments[0] == "set-limit"
        assert (await semaphore.status()).set_limit == (7 if changed else None)


@pytest.mark.parametrize(
    "arguments", [("doctor",), ("watch", "jobs", "--interval", "0.1")], ids=["doctor", "watch"]
)
async def test_the_end_of_a_reader_ends_the_command_without_a_word(
    arguments: tuple[str, ...], url: str, redis: Redis
) -> None:
    async with FairSemaphore(redis, "jobs", 2):
        words = ("bash", "-c", INTO_A_PIPE_THAT_ENDS, "-", *COMMAND, "--url", url, *arguments)
        assert await outcome(*words) == (1, "")
