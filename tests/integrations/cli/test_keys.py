"""Commands for semaphores whose requests have keys, and whose permits have slots."""

import re
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, Permit, Semaphore, SemaphoreStatus
from redsem_async._core.keys import MODES
from tests.harness.clients import Connect, Kind
from tests.harness.wait import cancelled, queue_up, soon
from tests.integrations.cli.commands import Cli, program, queued

HOSTILE = "a\x1b[2J{b}\n[bold]c: ü\u202e"
ESCAPED = "a\\x1b[2J{b}\\n[bold]c: ü\\u202e"

OPTIONS: dict[str, dict[str, Any]] = {
    "fair": {"limit": 3},
    "fair+keys": {"limit": 3, "key_limit": 2},
    "fair+share": {"limit": 3, "share": True},
    "zset": {"limit": 3},
}


async def let_go(*permits: Permit) -> None:
    for permit in permits:
        await permit.release()


@pytest.mark.parametrize("clock", ["server", "local"])
@pytest.mark.parametrize("mode", MODES)
async def test_every_mode_and_clock_is_detected_and_opened(
    mode: str, clock: str, cli: Cli, redis: Redis
) -> None:
    plain = mode.removesuffix("+slots")
    options: dict[str, Any] = {**OPTIONS[plain], "clock": clock}
    if mode != plain:
        options["slots"] = [f"cuda:{n}" for n in range(options.pop("limit"))]
    kind: Kind = Semaphore if plain == "zset" else FairSemaphore
    semaphore = kind(redis, "jobs", **options)
    no_key: dict[str, Any] = {} if plain == "zset" else {"key": None}
    permit = await semaphore.acquire(permits=3, **no_key)
    [waiter] = await queued(semaphore, **no_key)
    [row] = await cli.json("ls")
    assert (row["mode"], row["clock"], row["class"]) == (mode, clock, kind.__name__)
    assert row["limit"] == 3
    for name, *more in (["status"], ["watch", "--count", "1"]):
        facts = await cli.json(name, "jobs", *more)
        assert facts["holders"][0]["slots"] == [*permit.slots]
        assert (facts["mode"], facts["clock"]) == (mode, clock)
        assert (facts["held"], facts["waiting"]) == (3, 1)
    assert f"jobs: {kind.__name__}, " in (await cli("status", "jobs")).out
    assert (await cli("set-limit", "jobs", "2")).out.startswith("jobs: limit 2")
    assert (await semaphore.status(0)).set_limit == 2
    assert (await cli("pause", "jobs")).code == 0
    assert (await cli("revoke", "jobs", permit.id)).code == 0
    assert not waiter.done()
    assert (await cli("resume", "jobs")).code == 0
    assert await (await soon(waiter)).release()
    assert (await cli("delete", "jobs", "--yes")).code == 0
    assert not await semaphore.exists()
    await let_go(await semaphore.acquire(**no_key))


# -- keys


async def test_the_use_the_limit_and_the_line_of_each_key(
    cli: Cli, url: str, redis: Redis, connect: Connect
) -> None:
    options: dict[str, Any] = {"key_limit": 2}
    here = FairSemaphore(redis, "llm", 5, **options)
    there = FairSemaphore(connect(url), "llm", 5, **options)
    held = [await here.acquire(key="acme", permits=2), await there.acquire(key="beta")]
    held.append(await here.acquire(key=None))
    waiters = [await queue_up(there, key="acme") for _ in range(2)]
    await here.set_limit(7, key="beta")

    none = {"back_off": None}
    acme = {"key": "acme", "limit": 2, "held": 2, "waiting": 2, "set_limit": None, **none}
    beta = {"key": "beta", "limit": 7, "held": 1, "waiting": 0, "set_limit": 7, **none}
    [row] = await cli.json("ls")
    facts = await cli.json("status", "llm")
    watched = await cli.json("watch", "llm", "--count", "1")
    for each in (row, facts, watched):
        assert (each["key_limit"], each["keys"]) == (2, [acme, beta])
    for each in (facts, watched):
        assert {holder["key"] for holder in each["holders"]} == {"acme", "beta", None}
        assert [waiter["key"] for waiter in each["waiters"]] == ["acme", "acme"]

    heading, line = (await cli("ls")).out.splitlines()
    assert heading.split()[-1] == "KEYS"
    assert line.endswith("acme 2/2 +2, beta 1/7")
    shown = (await cli("status", "llm", "--ids")).out
    assert "FairSemaphore, limit 5, key_limit=2, 4 held, 2 waiting" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["acme", "2", "2", "2"] in rows
    assert ["beta", "7", "(set)", "1", "0"] in rows
    assert [row[-3] for row in rows if held[1].id in row] == ["beta"]
    assert [row[-1] for row in rows if row[:1] in (["1"], ["2"])] == ["acme", "acme"]
    watch = await program("watch", "llm", "--count", "1", "--url", url)
    assert watch.out.endswith("; keys: acme 2/2 +2, beta 1/7\n")
    await cancelled(*waiters)
    await let_go(*held)


async def test_keys_are_listed_by_pages(cli: Cli, redis: Redis) -> None:
    """Those with the most permits first."""
    semaphore = FairSemaphore(redis, "llm", 100, key_limit=12)
    keys = [f"tenant {n:02}" for n in range(12)]
    held = [await semaphore.acquire(key=key, permits=12 - n) for n, key in enumerate(keys)]
    found: list[str] = []
    arguments = ["status", "llm", "--most", "5"]
    while not found or len(found) % 5 == 0:
        after = ["--keys-after", found[-1]] if found else []
        page = await cli(*arguments, *after, "--json")
        found += [entry["key"] for entry in page.json_output["keys"]]
    assert found == keys
    shown = await cli(*arguments)
    assert "more keys than 5: --keys-after 'tenant 04' lists the next" in shown.out
    assert "more keys than" not in (await cli("status", "llm")).out
    [row] = await cli.json("ls")
    assert [entry["key"] for entry in row["keys"]] == keys[:5]
    assert (await cli("ls")).out.rstrip().endswith("tenant 04 8/12, ...")
    await let_go(*held)


async def test_a_limit_that_is_a_function_is_not_known(cli: Cli, redis: Redis) -> None:
    semaphore = FairSemaphore(redis, "llm", 5, key_limit=lambda _: 3)
    permit = await semaphore.acquire(key="acme")
    facts = await cli.json("status", "llm")
    assert (facts["key_limit"], facts["keys"][0]["limit"]) == (None, None)
    assert (await cli("ls")).out.rstrip().endswith("acme 1/-")
    await permit.release()


async def test_a_semaphore_that_shares_says_so(cli: Cli, redis: Redis) -> None:
    permit = await FairSemaphore(redis, "llm", 5, share=True).acquire(key="acme")
    shown = (await cli("status", "llm")).out
    assert "FairSemaphore, limit 5, share=True, 1 held" in shown
    await permit.release()


# -- limits of keys


async def test_a_limit_of_a_key_serves_its_waiters(cli: Cli, redis: Redis) -> None:
    semaphore = FairSemaphore(redis, "llm", 5, key_limit=1)
    permit = await semaphore.acquire(key="acme")
    waiter = await queue_up(semaphore, key="acme")
    result = await cli("set-limit", "llm", "2", "--key", "acme")
    assert (result.code, result.out, result.err) == (0, "llm: key acme: limit 2\n", "")
    more = await soon(waiter)
    status: SemaphoreStatus = await semaphore.status()
    assert (status.set_limit, status.keys[0].set_limit) == (None, 2)
    result = await cli("set-limit", "llm", "0", "--key", "acme")
    assert result.out == "llm: key acme: paused\n"
    assert "0 (paused)" in (await cli("status", "llm")).out
    result = await cli("set-limit", "llm", "--unset", "--key", "acme")
    assert result.out == "llm: key acme: set limit removed\n"
    assert (await semaphore.status()).keys[0].set_limit is None
    await let_go(permit, more)


async def test_a_limit_of_a_key_can_be_set_before_the_first_use(cli: Cli, redis: Redis) -> None:
    """It has no expiry, so that it can be found and removed for as long as it applies."""
    arguments = ("set-limit", "llm", "1", "--key", "acme")
    result = await cli(*arguments)
    assert (result.code, "--create" in result.error_line) == (3, True)
    result = await cli(*arguments, "--create")
    assert result.code == 0
    assert result.err.startswith("not in use yet")
    assert [row["name"] for row in await cli.json("ls")] == ["llm"]
    semaphore = FairSemaphore(redis, "llm", 5, share=True)
    async with semaphore.acquire(key="acme"):
        assert await semaphore.try_acquire(key="acme") is None
    assert (await cli("delete", "llm", "--yes")).code == 0
    assert (await cli("status", "llm")).code == 3
    await cli(*arguments, "--create")
    result = await cli("set-limit", "llm", "--unset", "--key", "acme")
    assert result.code == 0
    assert (await cli("status", "llm")).code == 3


async def test_where_requests_have_no_keys_there_is_no_limit_of_one(
    kind: Kind, cli: Cli, redis: Redis
) -> None:
    permit = await kind(redis, "jobs", 1).acquire()
    for arguments in (
        ("set-limit", "jobs", "1", "--key", "a"),
        ("status", "jobs", "--keys-after", "a"),
    ):
        result = await cli(*arguments)
        assert (result.code, result.error_line) == (2, "'jobs' has no keys")
    await permit.release()


@pytest.mark.parametrize("key", ["", "x" * 513])
async def test_a_key_that_cannot_be_is_a_usage_error(key: str, cli: Cli, redis: Redis) -> None:
    async with FairSemaphore(redis, "llm", 5, key_limit=1).acquire(key=None):
        result = await cli("set-limit", "llm", "1", "--key", key)
        assert (result.code, "key must have 1 to 512 bytes" in result.error_line) == (2, True)


# -- slots


async def test_the_slots_of_each_holder(kind: Kind, cli: Cli, redis: Redis) -> None:
    semaphore = kind(redis, "gpu", slots=["cuda:0", "cuda:1", "cuda:2"])
    two, one = await semaphore.acquire(permits=2), await semaphore.acquire()
    facts = await cli.json("status", "gpu")
    assert facts["slots"] == ["cuda:0", "cuda:1", "cuda:2"]
    assert {holder["id"]: holder["slots"] for holder in facts["holders"]} == {
        two.id: ["cuda:0", "cuda:1"],
        one.id: ["cuda:2"],
    }
    shown = (await cli("status", "gpu", "--ids")).out
    assert "limit 3, 3 slots, 3 held" in shown
    assert re.search(rf"cuda:0, cuda:1 +{two.fencing_token} +{two.id}", shown)
    await semaphore.set_limit(30)
    assert (await cli.json("ls"))[0]["limit"] == 3
    await let_go(one, two)


# -- text from elsewhere


async def test_hostile_keys_and_slots_are_escaped(cli: Cli, redis: Redis) -> None:
    semaphore = FairSemaphore(redis, "jobs", slots=[HOSTILE, "b"], key_limit=1)
    permit = await semaphore.acquire(key=HOSTILE)
    waiter = await queue_up(semaphore, key=HOSTILE)
    outputs = [
        await cli("status", "jobs"),
        await cli("status", "jobs", "--most", "1"),
        await cli("ls"),
        await cli("watch", "jobs", "--count", "1"),
        await cli("set-limit", "jobs", "1", "--key", HOSTILE),
    ]
    for result in outputs:
        assert (result.code, result.err) == (0, "")
        assert ESCAPED in result.out
        assert HOSTILE not in result.out
        assert {"\x1b", "\u202e"}.isdisjoint(result.out)
    assert outputs[0].out.count(ESCAPED) == 4, "a key, a holder's key and slot, a waiter's key"
    facts = await cli.json("status", "jobs")
    assert facts["keys"][0]["key"] == HOSTILE
    assert facts["holders"][0]["slots"] == [HOSTILE]
    await cancelled(waiter)
    await permit.release()


async def test_a_set_limit_above_the_number_of_slots_is_not_shown_as_in_force(
    kind: Kind, cli: Cli, redis: Redis
) -> None:
    async with kind(redis, "gpus", slots=["x", "y"]):
        assert (await cli("set-limit", "gpus", "100")).code == 0
        [listed] = await cli.json("ls")
        assert (listed["limit"], listed["set_limit"]) == (2, 100)
        [_, row] = (await cli("ls")).out.splitlines()
        assert row.split()[3:] == ["2", "(100", "set)", "1", "0"]
        shown = (await cli("status", "gpus")).out
        assert re.search(r"limit 2 \(100 set .*\); clients declare 2, 2 slots, 1 held", shown)
        assert (await cli("set-limit", "gpus", "2")).code == 0
        assert "2 (set)" in (await cli("ls")).out
