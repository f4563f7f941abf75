"""``ls`` and ``status``: what is in use, and by which clients."""

import asyncio
import json
import os
import re

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, Semaphore, __version__
from redsem_async._core.keys import parse_permit_id
from redsem_async._integrations.discovery import find
from redsem_async._redis.scripts import layout
from tests.harness.clients import Connect, Kind
from tests.harness.wait import cancelled, until
from tests.integrations.cli.commands import Cli, execute, program, queued


async def test_ls_lists_what_is_in_use(cli: Cli, redis: Redis) -> None:
    fair, fast = FairSemaphore(redis, "openai", 2), Semaphore(redis, "gpu:a b", 30)
    held = [await fair.acquire(permits=2), await fast.acquire(permits=3)]
    held.append(await Semaphore(redis, "elsewhere", 1, prefix="redsem:other").acquire())
    tasks = await queued(fair, 2)
    await fast.set_limit(7)

    listed = await cli.json("ls")
    assert [(row["name"], row["mode"], row["class"], row["clock"]) for row in listed] == [
        ("gpu:a b", "zset", "Semaphore", "server"),
        ("openai", "fair", "FairSemaphore", "server"),
    ]
    assert [(row["limit"], row["set_limit"], row["declared"]) for row in listed] == [
        (7, 7, [30]),
        (2, None, [2]),
    ]
    assert [(row["held"], row["waiting"]) for row in listed] == [(3, 0), (2, 2)]

    shown = await cli("ls")
    heading, *rows = shown.out.splitlines()
    assert heading.split() == ["NAME", "STATE", "IN", "USE", "LIMIT", "HELD", "WAITING"]
    assert rows[0].split() == ["gpu:a", "b", "free", "█████░░░░░", "7", "(set)", "3", "0"]
    assert [row["name"] for row in await cli.json("ls", "gpu*")] == ["gpu:a b"]
    [other] = await cli.json("ls", "--prefix", "redsem:other")
    assert other["name"] == "elsewhere"
    await cancelled(*tasks)
    await asyncio.gather(*(permit.release() for permit in held))


async def test_ls_of_a_pattern_that_matches_nothing_says_what_there_is(
    cli: Cli, redis: Redis
) -> None:
    permits = [await FairSemaphore(redis, f"{n:02}", 1).acquire() for n in range(12)]
    result = await cli("ls", "jobs*")
    assert result.error_line == (
        "No semaphore matches 'jobs*' (prefix 'redsem'). In use: '00', '01', '02', '03', '04',"
        " '05', '06', '07', '08', '09' and 2 more."
    )
    await asyncio.gather(*(permit.release() for permit in permits))


async def test_ls_where_nothing_is_in_use(cli: Cli) -> None:
    assert await cli.json("ls") == []
    result = await cli("ls")
    assert (result.code, result.out, result.err) == (
        0,
        "",
        "No semaphores in use (prefix 'redsem').\n",
    )


FOREIGN: dict[str, tuple[str | int, ...]] = {
    "text for a table": ("SET", "redsem:{foreign}:meta", "text"),
    "no number": ("SET", "redsem:{foreign}:limit", "many"),
    "no time": (
        *("HSET", "redsem:{foreign}:meta", "mode", "fair server"),
        *("layout", layout(), "lead", "soon"),
    ),
    "a slot twice": (
        *("HSET", "redsem:{foreign}:meta", "mode", "fair+slots server"),
        *("layout", layout(), "slots", "a,a"),
    ),
    "a name that no semaphore can have": ("SET", f"redsem:{{{'x' * 600}}}:limit", 1),
}


@pytest.mark.parametrize("written", FOREIGN.values(), ids=FOREIGN)
async def test_foreign_keys_are_an_error_of_that_name_only(
    written: tuple[str | int, ...], cli: Cli, redis: Redis
) -> None:
    async with FairSemaphore(redis, "good", 1):
        await execute(redis, *written)
        result = await cli("ls", "--json")
        assert result.code == 1
        assert [row["name"] for row in result.json_output] == ["good"]
        [line] = result.err.splitlines()
        assert ": its keys do not hold a semaphore" in line
        if "{foreign}" in str(written):
            assert "'foreign'" in line
            result = await cli("status", "foreign")
            assert result.code == 1
            assert "'foreign': its keys do not hold a semaphore" in result.error_line


async def test_status_shows_holders_and_waiters(
    cli: Cli, url: str, redis: Redis, connect: Connect
) -> None:
    here = FairSemaphore(redis, "jobs", 3, label="api")
    there = FairSemaphore(connect(url), "jobs", 3, label="batch")
    permit, other = await here.acquire(), await there.acquire(permits=2)
    first = await queued(there)
    second = await queued(here)

    facts = await cli.json("status", "jobs")
    assert facts["limit"] == 3
    holders = {holder["id"]: holder for holder in facts["holders"]}
    assert holders[permit.id]["fencing_token"] == permit.fencing_token
    assert holders[permit.id]["client"]["label"] == "api"
    assert holders[permit.id]["client"]["pid"] == os.getpid()
    assert holders[other.id]["permits"] == 2
    assert 0 <= holders[permit.id]["age"] < 10
    assert 0 < holders[permit.id]["expires_in"] <= 10
    waiters = [(waiter["position"], waiter["client"]["label"]) for waiter in facts["waiters"]]
    assert waiters == [(1, "batch"), (2, "api")]

    shown = (await cli("status", "jobs")).out
    headline = "jobs: FairSemaphore, limit 3, 3 held, 2 waiting; a new request would wait about "
    assert shown.splitlines()[1] == "██████████ full"
    assert permit.id not in shown
    assert max(map(len, shown.splitlines()[1:])) <= 80
    shown = (await cli("status", "jobs", "--ids")).out
    assert shown.splitlines()[0].startswith(headline)
    assert re.search(
        rf"api \(\S+, pid {os.getpid()}\) +[\d.]+ s +[\d.]+ s +1 +{permit.fencing_token} +"
        rf"{re.escape(permit.id)}",
        shown,
    )
    assert re.search(r"^1 +batch .*\n2 +api ", shown, re.MULTILINE)
    await cancelled(*first + second)
    await asyncio.gather(permit.release(), other.release())


async def test_status_lists_a_limited_number(cli: Cli, redis: Redis) -> None:
    semaphore = FairSemaphore(redis, "jobs", 5)
    held = [await semaphore.acquire() for _ in range(5)]
    tasks = await queued(semaphore, 4)
    result = (await cli("status", "jobs", "--most", "2")).out
    assert "... and 3 more permits held" in result
    assert "... and 2 more requests waiting" in result
    await cancelled(*tasks)
    await asyncio.gather(*(permit.release() for permit in held))


async def test_the_versions_of_the_library_are_shown(
    cli: Cli, url: str, redis: Redis, connect: Connect
) -> None:
    """Which says whether an upgrade is over."""
    pair = [FairSemaphore(client, "jobs", 3) for client in (redis, connect(url))]
    permits = [await semaphore.acquire() for semaphore in pair]
    await describe(redis, permits[1].id, version="98.0", pid=1)
    [row] = await cli.json("ls")
    assert row["versions"] == [__version__, "98.0"]
    facts = await cli.json("status", "jobs")
    assert facts["versions"] == row["versions"]
    versions = {holder["id"]: holder["client"]["version"] for holder in facts["holders"]}
    assert versions == {permits[0].id: __version__, permits[1].id: "98.0"}
    shown = (await cli("status", "jobs")).out.splitlines()
    assert shown[2] == f"versions: {__version__} (1 process), 98.0 (1 process)"
    await asyncio.gather(*(permit.release() for permit in permits))


async def test_a_process_that_was_idle_counts_once(
    cli: Cli, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a new id then, and would look like a second process while the old one counts."""
    monkeypatch.setattr("redsem_async._hub.hub.IDLE", 0.05)
    semaphore = FairSemaphore(redis, "jobs", 3)
    async with semaphore.acquire() as permit:
        first = permit.id.partition(".")[0]
    await until(lambda: is_left(redis, first))
    async with semaphore.acquire() as permit:
        assert not permit.id.startswith(first), "it is the same hub"
        found = await find(redis, "redsem", "jobs")
        assert found is not None
        assert len(found.clients) == 2
        assert found.versions == {__version__: 1}
        assert f"versions: {__version__} (1 process)" in (await cli("status", "jobs")).out


async def is_left(redis: Redis, hub: str) -> bool:
    """Whether the connection of *hub* is closed."""
    return (await redis.pubsub_numsub(f"redsem:@{hub}"))[0][1] == 0


async def describe(redis: Redis, permit_id: str, **facts: object) -> None:
    """Let the process of a permit say something else of itself."""
    meta, field = "redsem:{jobs}:meta", f"{permit_id.partition('.')[0]}:client"
    known = json.loads(await redis.hget(meta, field) or "")
    await redis.hset(meta, field, json.dumps(known | facts))


async def test_a_name_with_another_layout_is_an_error_of_that_name_only(
    cli: Cli, redis: Redis
) -> None:
    """With what to do, also where its mode is one that this version does not know."""
    for name in ("good", "newer"):
        async with FairSemaphore(redis, name, 1):
            pass
    await redis.hset("redsem:{newer}:meta", mapping={"mode": "better", "layout": "99"})
    listed = await cli("ls", "--json")
    assert listed.code == 1
    assert [row["name"] for row in listed.json_output] == ["good"]
    text = f"'newer' is stored in layout 99 (used by redsem-async {__version__}),"
    for arguments in (("status", "newer"), ("set-limit", "newer", "3"), ("delete", "newer", "-y")):
        result = await cli(*arguments)
        assert result.code == 1
        assert text in result.error_line
    assert text in listed.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "typo"),
        ("revoke", "typo", f"{'0' * 32}.1"),
        ("delete", "typo", "--yes"),
        ("resume", "typo"),
        ("set-limit", "typo", "--unset"),
        ("set-limit", "typo", "5"),
        ("pause", "typo"),
    ],
    ids=lambda arguments: str(arguments[0]),
)
async def test_an_unknown_name_is_an_error(arguments: tuple[str, ...], cli: Cli, url: str) -> None:
    result = await cli(*arguments)
    assert result.code == 3
    creates = arguments[0] in {"set-limit", "pause"}
    hint = " Use --create if the name is not in use yet." if creates else ""
    assert result.error_line == f"No semaphore named 'typo' (prefix 'redsem').{hint}"
    async with Redis.from_url(url) as redis:
        assert await redis.keys() == []


async def test_a_misspelt_name_gets_a_suggestion(cli: Cli, redis: Redis) -> None:
    permits = [await FairSemaphore(redis, name, 1).acquire() for name in ("openai", "gpu")]
    result = await cli("status", "opnai")
    assert result.code == 3
    assert result.error_line == (
        "No semaphore named 'opnai' (prefix 'redsem'). Did you mean 'openai'?"
    )
    result = await cli("resume", "billing")
    assert (result.code, result.error_line) == (
        3,
        "No semaphore named 'billing' (prefix 'redsem').",
    )
    await asyncio.gather(*(permit.release() for permit in permits))


async def test_clients_that_declare_different_limits_are_shown(
    cli: Cli, url: str, redis: Redis, connect: Connect
) -> None:
    old, new = FairSemaphore(redis, "jobs", 20), FairSemaphore(connect(url), "jobs", 30)
    held = [await old.acquire(), await new.acquire()]
    facts = await cli.json("status", "jobs")
    assert (facts["limit"], facts["declared"]) == (None, [20, 30])
    assert {holder["client"]["limit"] for holder in facts["holders"]} == {20, 30}
    assert "limit 20 or 30" in (await cli("status", "jobs")).out
    await asyncio.gather(*(permit.release() for permit in held))


async def test_control_characters_are_escaped(cli: Cli, redis: Redis) -> None:
    evil = "a\x1b[2Jb\rc"
    permit = await FairSemaphore(redis, f"jobs {evil}", 1, label=evil).acquire()
    for arguments in (("ls",), ("status", f"jobs {evil}"), ("watch", f"jobs {evil}")):
        more = ("--count", "1") if arguments[0] == "watch" else ()
        result = await cli(*arguments, *more)
        assert result.code == 0
        assert "jobs a\\x1b[2Jb\\rc" in result.out
        assert "\x1b" not in result.out
    result = await cli("status", f"other {evil}")
    assert "\x1b" not in result.error_line
    await permit.release()


async def test_characters_outside_the_encoding_are_escaped(url: str, redis: Redis) -> None:
    permit = await FairSemaphore(redis, "限流", 1).acquire()
    for arguments in (("ls",), ("status", "限流"), ("watch", "限流", "--count", "1")):
        result = await program(*arguments, REDIS_URL=url, PYTHONIOENCODING="latin-1")
        assert (result.code, result.err) == (0, "")
        assert "\\u9650\\u6d41" in result.out
    await permit.release()


WRONG = {
    "no JSON": "not JSON",
    "text": '{"limit":"x"}',
    "numbers": '{"limit":-1,"key_limit":1e300,"pid":true}',
    "tables": '{"label":[],"host":5,"limit":{}}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("description", WRONG.values(), ids=WRONG)
async def test_facts_of_a_client_that_cannot_be_read_are_unknown(
    description: str, kind: Kind, cli: Cli, redis: Redis
) -> None:
    async with kind(redis, "jobs", slots=["x", "y"]) as permit:
        known = parse_permit_id(permit.id)
        assert known is not None
        await redis.hset("redsem:{jobs}:meta", f"{known[0]}:client", description)
        for arguments in (("ls",), ("status", "jobs"), ("watch", "jobs", "--count", "1")):
            result = await cli(*arguments)
            assert (result.code, result.err) == (0, ""), arguments
        assert f"client {known[0][:8]}" in (await cli("status", "jobs")).out
        [row] = await cli.json("ls")
        assert (row["declared"], row["key_limit"], row["held"]) == ([], None, 1)


@pytest.mark.parametrize("index", ["-5", "7", "9" * 30])
async def test_a_slot_that_is_not_in_the_list_is_not_shown(
    index: str, kind: Kind, cli: Cli, redis: Redis
) -> None:
    permit = await kind(redis, "jobs", slots=["x", "y"]).acquire()
    facts = f"{permit.fencing_token}:1:{index}:"
    await redis.hset("redsem:{jobs}:facts", permit.id, facts)
    [holder] = (await cli.json("status", "jobs"))["holders"]
    assert (holder["id"], holder["slots"]) == (permit.id, [])
    await permit.release()
