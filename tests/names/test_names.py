"""Names and prefixes: any text will do, and equal names below two prefixes are apart."""

import pytest

from tests.harness.clients import Make, MakePair
from tests.harness.wait import queue_up, soon

pytestmark = pytest.mark.one_mode

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
    pair: MakePair, prefix: str, text: str
) -> None:
    """It goes through keys, scripts, channels and messages, and comes out as it was."""
    here, there = pair(1, name=text, prefix=prefix + text[:100], label=text, lease=60.0)
    async with here as permit:
        assert permit.name == text
        status = await there.status()
        assert status.name == text
        assert status.holders[0].client.label == text
        waiter = await queue_up(there)
    permit = await soon(waiter, 0.5)  # served by a message
    assert await here.release(permit.id) is True
    await soon(permit.wait_lost(), 0.5)
    await here.delete()


async def test_prefixes_keep_equal_names_apart(make: Make, pair: MakePair, prefix: str) -> None:
    """Two applications on one server may both have an `openai`."""
    ours = make(1, lease=60.0)
    theirs, from_there = pair(1, prefix=prefix, lease=60.0)
    async with ours as permit:
        held = await theirs.acquire(timeout=1.0)
        assert (await theirs.status()).held == 1
        assert await theirs.release(permit.id) is False
        waiter, unconcerned = await queue_up(from_there), await queue_up(ours)
        await held.release()
        await (await soon(waiter, 0.5)).release()
        await theirs.delete()
        await permit.refresh()
        assert not unconcerned.done()
    await (await soon(unconcerned, 0.5)).release()
