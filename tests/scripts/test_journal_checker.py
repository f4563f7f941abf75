"""The checker of the journal finds nothing wrong with a real one, and can fail."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, Permit, Semaphore
from tests.harness.wait import until
from tests.scripts.journal import COMPLETE, EARLY, GRANTED, TRUSTED, JournalChecker, Stay
from tests.scripts.recording import Flushed, Key, Record, install, journal_key, record_of
from tests.worlds import judge
from tests.worlds.look import Permit as Held

LIMIT = 2
OPTIONS: dict[str, tuple[Callable[..., AnySemaphore], dict[str, Any]]] = {
    "zset": (Semaphore, {"limit": LIMIT}),
    "fair": (FairSemaphore, {"limit": LIMIT}),
    "keys": (FairSemaphore, {"limit": LIMIT, "key_limit": LIMIT, "share": True}),
    "slots": (FairSemaphore, {"slots": ["cuda:0", "cuda:1"], "key_limit": LIMIT}),
}


async def use(here: AnySemaphore, there: AnySemaphore) -> None:
    """Two hold, two wait, and the one process serves the other; some do twice what they do."""
    key = {"key": "ü:"} if here.keyed else {}
    acquire = {sem: cast("Callable[..., Awaitable[Permit]]", sem.acquire) for sem in (here, there)}
    first, second = await acquire[here](**key), await acquire[here](**key)
    waiters: list[asyncio.Future[Permit]] = []
    for place in (1, 2):
        waiters.append(asyncio.ensure_future(acquire[there](**key)))

        def waits(place: int = place) -> bool:
            return len(there._bound().waiting) == place

        await until(waits, "it waits")
    await first.refresh()
    assert await first.release()
    third = await waiters[0]
    assert not await there.release(first.id)
    assert await second.release()
    fourth = await waiters[1]
    last = await here.adopt(await third.detach())
    assert await fourth.release()
    assert await last.release()


@pytest.fixture(params=OPTIONS)
async def records(request: pytest.FixtureRequest, server_url: str, prefix: str) -> list[Record]:
    undo, (kind, options) = install(), OPTIONS[request.param]
    try:
        async with Redis.from_url(server_url) as first, Redis.from_url(server_url) as second:
            here, there = (kind(c, "jobs", prefix=prefix, **options) for c in (first, second))
            await use(here, there)
            await use(there, here)
            journal: list[Any] = await first.lrange(journal_key(prefix), 0, -1)
            await first.delete(journal_key(prefix))
    finally:
        undo()
    return [record_of(data) for data in journal]


def checked(records: Sequence[Record]) -> JournalChecker:
    checker = JournalChecker()
    checker.feed(records)
    return checker


def test_nothing_is_wrong_with_what_the_scripts_did(records: list[Record]) -> None:
    """A checker that finds fault with everybody is none either."""
    checker = checked(records)
    assert not checker.wrong, "\n".join(checker.wrong)
    assert checker.grants == 8
    assert len(records) > 20


def without(keys: Sequence[Key], *kinds: str) -> list[Key]:
    return [key for key in keys if key.kind not in kinds]


def test_a_journal_that_is_wrong_in_one_place(records: list[Record]) -> None:
    """A checker that finds fault with nobody is none."""
    at = next(i for i, record in enumerate(records) if record.operation == "release")
    release, of_all = records[at], slice(0, at)
    grant = next(r for r in records if r.operation == "acquire" and r.before != r.after)
    late = grant._replace(server_us=release.server_us)
    endless = [key._replace(left_ms=-1) for key in release.after]
    for wrong, rule in (
        ([*records[of_all], *records[at + 1 :]], COMPLETE),
        ([*records[of_all], release._replace(after=release.before)], judge.ANSWERS),
        (
            [*records[of_all], release._replace(after=without(release.after, "holders"))],
            judge.MEET,
        ),
        ([*records[of_all], release._replace(messages=[])], judge.TOLD),
        ([*records[of_all], release._replace(after=endless)], judge.LEFT),
        ([*records[of_all], late], judge.TOKENS),
    ):
        assert rule in checked(wrong).counts, rule


HUB = "a" * 32
HELD = Held(0, 7, 1)


@pytest.mark.parametrize(
    ("trusted", "since", "until", "flushed", "rule"),
    [
        (HELD, 10.0, 12.0, False, None),
        (HELD, 10.0, 12.2, False, TRUSTED),
        (HELD, 9.0, 11.0, False, EARLY),
        (HELD._replace(token=8), 10.0, 11.0, False, GRANTED),
        (HELD._replace(slots=(1,)), 10.0, 11.0, False, GRANTED),
        (HELD, 10.0, 12.0, True, None),
        (HELD, 10.0, 12.2, True, TRUSTED),
    ],
)
def test_a_stay_beside_its_tenure(
    trusted: Held, since: float, until: float, flushed: bool, rule: str | None
) -> None:
    """A client trusts what was granted, from then on, and no longer than it was held or taken."""
    checker = JournalChecker()
    checker.granted(f"{HUB}.1", HELD, 9.99, 12.1)
    checker.feed([Flushed(10_500_000)] * flushed)
    checker.left(Stay("w", f"{HUB}.1", trusted, since, until))
    checker.advance(20.0)
    assert rule in checker.counts if rule else not checker.counts
