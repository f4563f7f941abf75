"""The checker of the journal can fail: journals that are wrong in one place are found out.

Each test takes a journal of a real server's, finds nothing wrong with it, and changes one thing.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, Permit, Semaphore
from tests.harness.clients import Kind
from tests.harness.wait import until
from tests.scripts.history import End, Stay
from tests.scripts.journal import JournalChecker
from tests.scripts.recording import Record, Write, install, journal_key, record_of

LIMIT = 2
Found = dict[str, int]


async def _used(here: AnySemaphore, there: AnySemaphore) -> None:
    """Two hold, two wait, and the one process tells the other; some do twice what they do."""
    first, second = await here.acquire(), await here.acquire()
    ledger = there._bound().remote.ledger
    waiters: list[asyncio.Future[Permit]] = []
    for place in (1, 2):
        waiters.append(asyncio.ensure_future(there.acquire()))

        def told(place: int = place) -> bool:
            return len(ledger.waiting) == place

        await until(told, "it was told to wait")
    await first.refresh()
    assert await first.release()
    third = await waiters[0]
    assert not await there.release(first.id)
    assert await second.release()
    fourth = await waiters[1]
    last = await here.adopt(await third.detach())
    assert await fourth.release()
    assert await last.release()


async def _journal(kind: Kind, url: str, prefix: str) -> list[Record]:
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


@pytest.fixture(params=[Semaphore, FairSemaphore], ids=["zset", "fair"])
async def records(request: pytest.FixtureRequest, server_url: str, prefix: str) -> list[Record]:
    """What two processes did on one semaphore."""
    return await _journal(request.param, server_url, prefix)


@pytest.fixture
async def fair_records(server_url: str, prefix: str) -> list[Record]:
    """The same, of a fair one."""
    return await _journal(FairSemaphore, server_url, prefix)


def found(records: Sequence[Record]) -> Found:
    checker = JournalChecker()
    checker.feed(records)
    return dict(checker.findings.counts)


def changed(
    records: Sequence[Record],
    operation: str,
    change: Callable[[Write], Write | None],
    command: str,
    kind: str,
) -> list[Record]:
    """The journal with one write changed, or left out: the last such one of an operation."""
    result = list(records)
    for i, record in reversed(list(enumerate(records))):
        for j, write in enumerate(record.writes):
            at = write.key.endswith(f":{kind}") or f":@{kind}" in write.key
            if record.operation == operation and write.command == command and at:
                new = change(write)
                writes = [*record.writes[:j], *([new] if new else []), *record.writes[j + 1 :]]
                result[i] = record._replace(writes=writes)
                return result
    raise AssertionError(f"no {operation} wrote {command} to {kind}")


def granting(records: Sequence[Record]) -> list[int]:
    """The records that granted something."""
    return [
        i
        for i, record in enumerate(records)
        if any(w.command == "ZADD" and w.key.endswith("holders") for w in record.writes)
        and record.operation in ("acquire", "release", "abandon")
    ]


def test_nothing_is_wrong_with_what_the_scripts_did(records: list[Record]) -> None:
    """A checker that finds fault with everybody is none either."""
    checker = JournalChecker()
    checker.feed(records)
    assert not checker.findings, str(checker.findings)
    assert checker.grants == 8
    assert checker.operations >= len(records) > 20


def test_a_release_that_is_missing(records: list[Record]) -> None:
    """A place in the journal that is empty is noticed by what comes after it."""
    index = next(i for i, record in enumerate(records) if record.operation == "release")
    rules = found([*records[:index], *records[index + 1 :]])
    assert rules["never more than the limit"]
    assert rules["agrees with the specification"]


def test_a_grant_too_many(records: list[Record]) -> None:
    """The limit of one request was read as one lower: a place is missing."""
    index = granting(records)[1]
    record = records[index]
    arguments = [*record.arguments]
    assert record.operation == "acquire"
    assert arguments[5] == str(LIMIT)
    arguments[5] = str(LIMIT - 1)
    rules = found([*records[:index], record._replace(arguments=arguments), *records[index + 1 :]])
    assert rules["never more than the limit"] == 1
    assert rules["agrees with the specification"] == 1


def test_a_token_that_was_used_before(records: list[Record]) -> None:
    """Both of the last two grants have the token of the first."""
    token = _token_of(records[granting(records)[0]])

    def again(write: Write) -> Write:
        return write._replace(arguments=[write.arguments[0], token])

    rules = found(changed(records, "acquire", again, "HSET", "tokens"))
    assert rules["fencing tokens grow"] == 1
    assert rules["agrees with the specification"] == 1


def test_two_entries_in_the_wrong_order(records: list[Record]) -> None:
    """Order is what the journal is for."""
    first, second = granting(records)[:2]
    swapped = list(records)
    swapped[first], swapped[second] = swapped[second], swapped[first]
    assert found(swapped)["agrees with the specification"]
    assert found(swapped)["fencing tokens grow"]


def test_a_release_that_takes_somebody_elses(records: list[Record]) -> None:
    """The last release of the journal ends a permit whose id it was not given."""
    victim = "f" * 32 + ".7"
    seeded = _with_holder(records, "release", victim)

    def takes(write: Write) -> Write:
        return write._replace(arguments=[*write.arguments, victim])

    rules = found(changed(seeded, "release", takes, "ZREM", "holders"))
    assert rules["only its own permits end"] == 1


def test_a_lease_that_was_renewed_for_somebody_else(records: list[Record]) -> None:
    """A refresh writes what it was not asked for."""
    victim = "f" * 32 + ".7"
    seeded = _with_holder(records, "refresh", victim)

    def renews(write: Write) -> Write:
        return write._replace(arguments=[*write.arguments, write.arguments[0], victim])

    rules = found(changed(seeded, "refresh", renews, "ZADD", "holders"))
    assert rules["only its own lease is renewed"] == 1


def test_a_released_permit_that_came_back(records: list[Record]) -> None:
    """An acquire ran once more, late, and granted once more."""
    first = records[granting(records)[0]]
    assert first.operation == "acquire"
    after = next(i for i, record in enumerate(records) if record.operation == "release") + 1
    late = first._replace(present=records[after].present, server_us=records[after].server_us)
    assert found([*records[:after], late])["what ended does not come back"] == 1


def test_a_key_that_would_stay_for_ever(records: list[Record]) -> None:
    """The first grant forgets to give its key an expiry."""
    silent = [
        record._replace(
            writes=[w for w in record.writes if (w.command, w.key[-7:]) != ("PEXPIRE", "holders")]
        )
        for record in records
    ]
    assert found(silent)["every key expires but a set limit"]


def test_a_grant_out_of_order(fair_records: list[Record]) -> None:
    """The second in line is served while the first waits on."""
    index = next(i for i in granting(fair_records) if fair_records[i].operation == "release")
    served, passed = (
        request
        for record in fair_records[:index]
        for write in record.writes
        if write.command == "ZADD" and write.key.endswith(":queue")
        for request in write.arguments[1::2]
    )
    texts = {served: passed, served.partition(":")[0]: passed.partition(":")[0]}
    record = fair_records[index]
    writes = [
        write._replace(arguments=[texts.get(text, text) for text in write.arguments])
        for write in record.writes
    ]
    rules = found([*fair_records[:index], record._replace(writes=writes)])
    assert rules["first come, first served"] == 1
    assert rules["agrees with the specification"] == 1


def test_a_waiter_who_was_not_told(records: list[Record]) -> None:
    """A hand-off, or a hint, to another process that nobody said anything about."""
    rules = found(changed(records, "release", lambda write: None, "PUBLISH", ""))
    assert rules == {"agrees with the specification": 1}


def test_a_message_that_was_not_heard(records: list[Record]) -> None:
    """Nobody was there, and the permit was handed over all the same."""
    rules = found(
        changed(records, "release", lambda write: write._replace(heard=0), "PUBLISH", "")
    )
    assert rules == {"agrees with the specification": 1}


def _token_of(record: Record) -> str:
    return next(w.arguments[1] for w in record.writes if w.key.endswith(":tokens"))


def _with_holder(records: Sequence[Record], operation: str, identity: str) -> list[Record]:
    """The journal with one holder more, since just before the last such operation."""
    index = max(i for i, record in enumerate(records) if record.operation == operation) - 1
    record = records[index]
    base = record.base
    expiry = str(record.server_us // 1000 + 1_000_000)
    more = [
        Write(1, "ZADD", f"{base}holders", [expiry, identity]),
        Write(1, "HSET", f"{base}tokens", [identity, "1"]),
        Write(1, "PEXPIRE", f"{base}holders", ["3000000"]),
        Write(1, "PEXPIRE", f"{base}tokens", ["3000000"]),
    ]
    writes = [*record.writes, *more]
    return [*records[:index], record._replace(writes=writes), *records[index + 1 :]]


# -- what clients saw


HUB = "a" * 32
ID = f"{HUB}.1"
STAY = Stay("w", "jobs", token=7, permits=1, since=10.0, trusted_until=12.0)


def judged(
    *,
    stay: Stay = STAY,
    until: float = 11.0,
    released: bool | None = True,
    ended: str | None = "released",
    at: float = 11.1,
) -> Found:
    """A permit as the journal has it, and as a client says that it had it."""
    checker = JournalChecker({"jobs": 1})
    history = checker.history
    history.joins("w")
    history.granted(ID, "jobs", 7, 1, 9.99, 12.1)
    history.got(ID, replace(stay))
    history.left(ID, until, until, released)
    if ended == "released":
        history.ended(ID, at, "released")
    elif ended == "expired":
        history.ended(ID, at, "expired")
    history.heard("w", 20.0)
    history.advance(20.0)
    history.finish()
    assert not len(history)
    return dict(checker.findings.counts)


def test_a_client_and_the_journal_that_agree() -> None:
    """Also where the release came late and was said to be, or where the lease ran out."""
    assert judged() == {}
    assert judged(released=False, ended="expired", until=12.0, at=12.5) == {}
    assert judged(released=True, ended="expired", until=11.9, at=12.5) == {}


def test_a_client_with_another_token() -> None:
    """The token that a client hands on is the one that the server granted."""
    assert judged(stay=replace(STAY, token=8)) == {"tokens are the journal's": 1}


def test_a_client_that_trusted_for_too_long() -> None:
    """Trust ends before the server lets go."""
    assert judged(ended="expired", until=12.2, released=None) == {"trust ends first": 1}


def test_a_client_that_had_it_before_it_was_granted() -> None:
    """Nobody holds what nobody gave."""
    assert judged(stay=replace(STAY, since=9.0)) == {"nothing before its grant": 1}


def test_a_release_that_says_true_and_came_too_late() -> None:
    """The journal knows that the lease had run out by then."""
    rules = judged(ended="expired", until=13.0, released=True)
    assert rules["released only if it was held"] == 1


def test_a_permit_out_of_thin_air() -> None:
    """A client was handed what no script granted."""
    checker = JournalChecker()
    checker.history.got(f"{HUB}.2", replace(STAY))
    checker.history.left(f"{HUB}.2", 11.0, 11.0, True)
    checker.history.finish()
    assert dict(checker.findings.counts) == {"what is handed out was granted": 1}


def test_two_clients_inside_at_once() -> None:
    """Certain holding that overlaps is more than the limit, whatever the journal says."""
    checker = JournalChecker({"jobs": 1})
    history = checker.history
    for number, since in ((1, 10.0), (2, 10.9)):
        identity = f"{HUB}.{number}"
        history.granted(identity, "jobs", 7 + number, 1, since - 0.01, since + 2)
        stay = Stay("w", "jobs", 7 + number, 1, since, since + 1.9)
        history.got(identity, stay)
        history.left(identity, since + 1.0, since + 1.0, True)
        history.ended(identity, since + 1.01, "released")
    history.finish()
    assert dict(checker.findings.counts) == {"certain holding fits the limit": 1}
    assert checker.history.most_inside["jobs"] == 2


def after_a_loss(how: End, *, until: float, recovering: bool = False) -> Found:
    """One permit is taken at 10.5, and another granted then; the first is trusted *until*."""
    checker = JournalChecker({"jobs": 1}, {"jobs"} if recovering else ())
    history = checker.history
    for number, since, last in ((1, 10.0, until), (2, 10.5, 10.9)):
        identity = f"{HUB}.{number}"
        history.granted(identity, "jobs", 7 + number, 1, since, 12.0)
        history.got(identity, Stay("w", "jobs", 7 + number, 1, since, 11.9))
        history.left(identity, last, last, released=None)
        history.ended(identity, 10.5 if number == 1 else 11.0, how if number == 1 else "released")
    history.finish()
    return dict(checker.findings.counts)


def test_a_client_that_does_not_know_yet_that_its_permit_was_taken() -> None:
    """Cut off, it goes on until the lease ends that was confirmed: no longer than that."""
    assert after_a_loss("taken", until=11.9) == {}
    assert after_a_loss("flushed", until=11.9) == {}
    assert after_a_loss("taken", until=12.1) == {"trust ends first": 1}


def test_a_stay_is_not_cut_to_what_the_journal_says() -> None:
    """Nobody took it: then two trusted one permit, and no end in the journal is an excuse."""
    found = {"trust ends first": 1, "certain holding fits the limit": 1}
    assert after_a_loss("released", until=10.8) == found
    assert after_a_loss("abandoned", until=10.8) == found


def test_a_permit_lost_with_the_state_counts_in_a_grace_period() -> None:
    """Nobody new is let in: an overlap is one, whoever forgot what."""
    found = after_a_loss("flushed", until=10.8, recovering=True)
    assert found == {"certain holding fits the limit": 1}


def test_a_restored_permit_of_which_the_client_says_first() -> None:
    """The journal is behind: the permit was restored after the flush, and trusted for longer."""
    checker = JournalChecker({"jobs": 1}, {"jobs"})
    history = checker.history
    history.joins("w")
    history.granted(ID, "jobs", 7, 1, 10.0, 12.0)
    history.got(ID, replace(STAY))
    history.ended(ID, 10.5, "flushed")
    history.left(ID, 13.0, 13.0, released=True)
    history.heard("w", 13.5)
    history.advance(10.6)
    history.restored(ID, "jobs", 7, 1, 10.7, 14.0)
    history.ended(ID, 13.1, "released")
    history.finish()
    assert not checker.findings


def test_what_a_killed_client_held() -> None:
    """It held it until it died, as far as its trust is known to have reached."""
    checker = JournalChecker({"jobs": 1})
    history = checker.history
    history.joins("w")
    history.granted(ID, "jobs", 7, 1, 9.99, 12.1)
    history.got(ID, replace(STAY))
    history.died("w", 11.5)
    history.advance(13.5)
    assert not checker.findings
    assert not len(history)
