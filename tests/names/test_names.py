"""Names and prefixes: any text will do, and equal names below two prefixes are apart."""

from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore
from tests.harness.clients import MakePair
from tests.harness.wait import give_back, queue_up, soon

ODD = [
    "größe \N{SNOWMAN} 漢字 \N{PILE OF POO}",
    " leading, trailing and  inner ",
    "two\nlines\r\nand\ttabs",
    "a:b::c:holders",
    "glob*[a-z]?\\",
    "quotes ' \" ` $(rm) %s %(x)s",
    "0",
    "-1",
    "nul\0inside",
    "x" * 512,
    "é" * 256,
]


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
async def test_any_text_will_do_for_a_name_and_for_a_prefix(
    redis: Redis, other_redis: Redis, prefix: str, text: str
) -> None:
    """It goes through keys, scripts, channels and messages, and comes out as it was."""
    options: dict[str, Any] = {"prefix": prefix + text[:100], "label": text, "lease": 60.0}
    here, there = (FairSemaphore(client, text, 1, **options) for client in (redis, other_redis))
    async with here as permit:
        assert permit.name == text
        status = await there.status()
        assert (status.name, status.holders[0].client.label) == (text, text)
        waiter = await queue_up(there)
    permit = await soon(waiter)  # served by a message
    assert await here.release(permit.id) is True
    await soon(permit.wait_lost())
    await here.delete()


async def test_prefixes_keep_equal_names_apart(pair: MakePair) -> None:
    """Two applications on one server may both have an `openai`."""
    ours, (theirs, from_there) = pair(1, lease=60.0)[0], pair(1, prefix="theirs", lease=60.0)
    async with ours as permit:
        held = await theirs.acquire(timeout=0)
        assert await theirs.release(permit.id) is False
        waiter, unconcerned = await queue_up(from_there), await queue_up(ours)
        await give_back(held, waiter)
        await theirs.delete()
        await permit.refresh()
        assert not unconcerned.done()
    await give_back(unconcerned)
