"""The checker of the journal finds nothing wrong with a real one, and can fail."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, Permit, Semaphore
from tests.harness.wait import until
from tests.scripts.history import End, Stay
from tests.scripts.journal import JournalChecker
from tests.scripts.recording import Record, Write, install, journal_key, record_of

LIMIT = 2
Found = dict[str, int]


Make = Callable[..., AnySemaphore]


async def _used(here: AnySemaphore, there: AnySemaphore) -> None:
    """Two hold, two wait, and the one process serves the other; some do twice what they do."""
    key = {"key": "ü:"} if here.keyed else {}
    first, second = await _acquire(here, key), await _acquire(here, key)
    ledger = there._bound().remote
    waiters: list[asyncio.Future[Permit]] = []
    for place in (1, 2):
        waiters.append(asyncio.ensure_future(_acquire(there, key)))

        def waits(place: int = place) -> bool:
            return len(ledger.waiting) == place

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


def _acquire(semaphore: AnySemaphore, key: dict[str, str]) -> Awaitable[Permit]:
    acquire = cast("Callable[..., Awaitable[Permit]]", semaphore.acquire)
    return acquire(**key)


async def _journal(kind: Make, url: str, prefix: str) -> list[Record]:
    undo = install()
    try:
        async with Redis.from_url(url) as first, Redis.from_url(url) as second:
            here, there = (
                kind(client, "jobs", LIMIT, prefix=prefix) for client in (first, second)
            )
            await _used(here, there)
            await _used(there, here)
            journal: list[Any] = await first.lrange(journal_key(prefix), 0, -1)
            await first.delete(journal_key(prefix))
    finally:
        undo()
    return [record_of(data) for data in journal]


def with_keys(client: Redis, name: str, limit: int, prefix: str) -> FairSemaphore:
    return FairSemaphore(client, name, limit, prefix=prefix, key_limit=LIMIT, share=True)


def with_slots(client: Redis, name: str, limit: int, prefix: str) -> FairSemaphore:
    slots = [f"cuda:{number}" for number in range(limit)]
    return FairSemaphore(client, name, slots=slots, prefix=prefix, key_limit=LIMIT)


@pytest.fixture(
    params=[Semaphore, FairSemaphore, with_keys, with_slots], ids=["zset", "fair", "keys", "slots"]
)
async def records(request: pytest.FixtureRequest, server_url: str, prefix: str) -> list[Record]:
    return await _journal(request.param, server_url, prefix)


def found(records: Sequence[Record]) -> Found:
    checker = JournalChecker()
    checker.feed(records)
    return dict(checker.findings.counts)


def changed(
    records: Sequence[Record],
    operation: str,
    command: str,
    key: str,
    change: Callable[[Write], Write | None],
) -> list[Record]:
    """The journal with the last such write changed, or left out."""
    result = list(records)
    for i, record in reversed(list(enumerate(records))):
        for j, write in enumerate(record.writes):
            if (record.operation, write.command) == (operation, command) and key in write.key:
                new = change(write)
                writes = [*record.writes[:j], *([new] if new else []), *record.writes[j + 1 :]]
                result[i] = record._replace(writes=writes)
                return result
    raise AssertionError(f"no {operation} wrote {command} to {key}")


def first(records: Sequence[Record], operation: str) -> int:
    return next(i for i, record in enumerate(records) if record.operation == operation)


def test_nothing_is_wrong_with_what_the_scripts_did(records: list[Record]) -> None:
    """A checker that finds fault with everybody is none either."""
    checker = JournalChecker()
    checker.feed(records)
    assert not checker.findings.counts, str(checker.findings)
    assert checker.grants == 8
    assert checker.operations >= len(records) > 20


def without_a_release(records: list[Record]) -> list[Record]:
    at = first(records, "release")
    return [*records[:at], *records[at + 1 :]]


def without_a_removal(records: list[Record]) -> list[Record]:
    at = first(records, "release")
    writes = [w for w in records[at].writes if (w.command, w.key[-8:]) != ("ZREM", ":holders")]
    return [*records[:at], records[at]._replace(writes=writes), *records[at + 1 :]]


def with_a_token_again(records: list[Record]) -> list[Record]:
    writes = records[first(records, "acquire")].writes
    token = next(write.arguments[1] for write in writes if write.key.endswith(":tokens"))
    return changed(
        *(records, "acquire", "HSET", ":tokens"),
        lambda write: write._replace(arguments=[write.arguments[0], token]),
    )


def with_a_late_duplicate(records: list[Record]) -> list[Record]:
    duplicate, after = records[first(records, "acquire")], first(records, "release") + 1
    now = records[after]
    late = duplicate._replace(present=now.present, server_us=now.server_us)
    return [*records[:after], late]


def without_a_message(records: list[Record]) -> list[Record]:
    return changed(records, "release", "PUBLISH", ":@", lambda write: None)


def with_a_message_that_nobody_received(records: list[Record]) -> list[Record]:
    return changed(records, "release", "PUBLISH", ":@", lambda write: write._replace(receivers=0))


@pytest.mark.parametrize(
    ("corrupt", "rules"),
    [
        (without_a_release, {"the answer is what happened", "a free permit and a waiter meet"}),
        (without_a_removal, {"never more than the limit"}),
        (with_a_token_again, {"fencing tokens grow"}),
        (with_a_late_duplicate, {"a number is granted once"}),
        (without_a_message, {"who is granted is told"}),
        (with_a_message_that_nobody_received, {"who is granted is told"}),
    ],
)
def test_a_journal_that_is_wrong_in_one_place(
    records: list[Record],
    corrupt: Callable[[list[Record]], list[Record]],
    rules: set[str],
) -> None:
    """A checker that finds fault with nobody is none."""
    assert rules <= found(corrupt(records)).keys()


async def test_a_slot_that_is_given_twice(server_url: str, prefix: str) -> None:
    records = await _journal(with_slots, server_url, prefix)

    def second(write: Write) -> bool:
        return write.key.endswith(":slots") and write.arguments[1:] == ["1"]

    at = next(i for i, record in enumerate(records) if any(map(second, record.writes)))
    writes = [
        write._replace(arguments=[write.arguments[0], "0"]) if second(write) else write
        for write in records[at].writes
    ]
    wrong = [*records[:at], records[at]._replace(writes=writes)]
    assert "no slot is given twice" in found(wrong)


def block_until_gone(url: str, key: str) -> None:
    """Nothing else happens in this thread meanwhile."""
    with SyncRedis.from_url(url) as client:
        while client.exists(key):
            time.sleep(0.05)


@pytest.mark.release
async def test_holders_that_expired_as_a_whole(server_url: str, prefix: str) -> None:
    """The next call after that puts back the key whose permits they had, and serves it."""
    undo = install()
    try:
        async with Redis.from_url(server_url) as first, Redis.from_url(server_url) as second:
            here, there = (
                FairSemaphore(client, "jobs", 1, prefix=prefix, key_limit=1, lease=0.5)
                for client in (first, second)
            )
            await (await here.acquire(key="a")).detach(0.4)
            waiter = asyncio.ensure_future(there.acquire(key="a"))
            await until(lambda: bool(there._bound().remote.waiting), "it waits")
            block_until_gone(server_url, f"{prefix}:{{jobs}}:holders")
            await (await waiter).release()
            await (await here.acquire(key="a")).detach(0.4)
            block_until_gone(server_url, f"{prefix}:{{jobs}}:holders")
            assert await here.reap() == 0, "they are gone with their key"
            journal: list[Any] = await first.lrange(journal_key(prefix), 0, -1)
            await first.delete(journal_key(prefix))
    finally:
        undo()
    records = [record_of(data) for data in journal]
    served = next(record for record in records if record.operation == "heartbeat")
    assert served.present[len(served.address.first_keys)] == "0", "the holders were there"
    assert not found(records)


# -- what clients saw


HUB = "a" * 32
ID = f"{HUB}.1"
STAY = Stay("w", ID, "jobs", token=7, permits=1, since=10.0, trusted_until=12.0)


@pytest.mark.parametrize(
    ("stay", "until", "released", "ended", "rules"),
    [
        (STAY, 11.0, True, "released", {}),
        (STAY, 12.0, False, "expired", {}),
        (STAY, 11.9, True, "expired", {}),
        (STAY, 12.2, None, "expired", {"trust ends first": 1}),
        (STAY, 13.0, True, "expired", {"trust ends first": 1, "released only if it was held": 1}),
        (replace(STAY, token=8), 11.0, True, "released", {"tokens are the journal's": 1}),
        (replace(STAY, since=9.0), 11.0, True, "released", {"nothing before its grant": 1}),
    ],
)
def test_a_stay_beside_its_tenure(
    stay: Stay, until: float, released: bool | None, ended: End, rules: Found
) -> None:
    """A client trusts what was granted, from then on, and not for longer than it was held."""
    checker = JournalChecker({"jobs": 1})
    history = checker.history
    history.reported("w")
    history.granted(ID, "jobs", 7, 1, 9.99, 12.1)
    history.got(ID, replace(stay))
    history.left(ID, until, until, released)
    history.ended(ID, 11.1 if ended == "released" else 12.5, ended)
    history.reported("w", 20.0)
    history.advance(20.0)
    history.finish()
    assert not len(history)
    assert dict(checker.findings.counts) == rules


@pytest.mark.parametrize(
    ("how", "until", "rules"),
    [
        # Cut off, a client trusts its permit until the lease ends that was confirmed.
        ("taken", 11.9, {}),
        ("flushed", 11.9, {}),
        ("taken", 12.1, {"trust ends first": 1}),
        # Nobody took it: no end in the journal is an excuse.
        ("released", 10.8, {"trust ends first": 1, "certain holding fits the limit": 1}),
        ("abandoned", 10.8, {"trust ends first": 1, "certain holding fits the limit": 1}),
    ],
)
def test_trust_in_a_permit_that_was_given_to_another(how: End, until: float, rules: Found) -> None:
    """At 10.5 the first ends, and another is granted; after a flush it may have the same id."""
    checker = JournalChecker({"jobs": 1})
    history = checker.history
    for number, since, last in ((1, 10.0, until), (2, 10.5, 10.9)):
        identity, stay = f"{HUB}.{1 if how == 'flushed' else number}", str(number)
        history.granted(identity, "jobs", 7 + number, 1, since, 12.0)
        history.got(stay, Stay("w", identity, "jobs", 7 + number, 1, since, 11.9))
        history.left(stay, last, last, released=None)
        history.ended(identity, 10.5 if number == 1 else 11.0, how if number == 1 else "released")
    history.finish()
    assert dict(checker.findings.counts) == rules
