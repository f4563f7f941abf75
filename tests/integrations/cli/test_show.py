"""``ls``, ``status`` and ``watch``: what is in use, by whom, and in which state."""

import json
import os
import re
import shlex
import signal
import subprocess
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore, Permit, Rate, Semaphore, __version__
from redsem_async._core.keys import MODES, parse_permit_id
from redsem_async._redis.scripts import layout
from tests.harness.clients import Connect, Kind
from tests.harness.servers import StartServer
from tests.harness.wait import cancelled, queue_up, soon
from tests.integrations.cli.commands import (
    COMMAND,
    CTRL_C,
    Cli,
    execute,
    program,
    queued,
    terminal,
)

HOSTILE = "a\x1b[2J{b}\n[bold]c: ü\u202e"
ESCAPED = "a\\x1b[2J{b}\\n[bold]c: ü\\u202e"
MORE = ("LIMIT", "HELD", "WAITING", "OLDEST", "WAIT")
UNKNOWN = "No semaphore named 'nosuch' (prefix 'redsem')."

OPTIONS: dict[str, dict[str, Any]] = {
    "fair": {"limit": 3},
    "fair+keys": {"limit": 3, "key_limit": 2},
    "fair+share": {"limit": 3, "share": True},
    "zset": {"limit": 3},
}


async def let_go(*permits: Permit) -> None:
    for permit in permits:
        await permit.release()


@pytest.mark.parametrize(
    ("mode", "clock"),
    [(m, c) for m in MODES for c in ("server", "local") if c == "server" or "+rate" not in m],
)
async def test_every_mode_and_clock_is_detected_and_opened(
    mode: str, clock: str, cli: Cli, redis: Redis
) -> None:
    plain = mode.removesuffix("+slots").removesuffix("+rate")
    options: dict[str, Any] = {**OPTIONS[plain], "clock": clock}
    if mode.endswith("+slots"):
        options["slots"] = [f"cuda:{n}" for n in range(options.pop("limit"))]
    if "+rate" in mode:
        options["rate"] = {"requests": Rate(50), "tokens": Rate(6, per=60, burst=60)}
    kind: Kind = Semaphore if plain == "zset" else FairSemaphore
    semaphore = kind(redis, "jobs", **options)
    no_key: dict[str, Any] = {} if plain == "zset" else {"key": None}
    if rates := "+rate" in mode:
        no_key["cost"] = {"tokens": 4}
    permit = await semaphore.acquire(permits=3, **no_key)
    [waiter] = await queued(semaphore, **no_key)
    [row] = await cli.json("ls")
    assert (row["mode"], row["clock"], row["class"]) == (mode, clock, kind.__name__)
    assert (row["limit"], row["state"], row["attention"]) == (3, "queuing", None)
    for name, *more in (["status"], ["watch", "--count", "1"]):
        facts = await cli.json(name, "jobs", *more)
        assert facts["holders"][0]["slots"] == [*permit.slots]
        assert (facts["mode"], facts["clock"]) == (mode, clock)
        assert (facts["held"], facts["waiting"]) == (3, 1)
        assert [*facts["rates"]] == ["requests", "tokens"] * rates
    assert f"jobs: {kind.__name__}, " in (await cli("status", "jobs")).out
    assert (await cli("set-limit", "jobs", "2")).out.startswith("jobs: limit 2")
    assert (await semaphore.status(0)).set_limit == 2
    assert (await cli("pause", "jobs")).code == 0
    assert (await cli("back-off", "jobs", "0")).code == 0
    assert (await cli("revoke", "jobs", permit.id)).code == 0
    assert not waiter.done()
    assert (await cli("resume", "jobs")).code == 0
    assert await (await soon(waiter)).release()
    assert (await cli("delete", "jobs", "--yes")).code == 0
    assert not await semaphore.exists()
    await let_go(await semaphore.acquire(**no_key))


async def test_each_rate_is_shown_and_a_debt_is_negative(cli: Cli, redis: Redis) -> None:
    rate = {"requests": Rate(50), "tokens": Rate(6, per=60, burst=60)}
    sem = FairSemaphore(redis, "llm", 4, rate=rate)
    async with sem.acquire(cost={"tokens": 260}):
        [waiter] = await queued(sem, cost={"tokens": 1})
        shown, watched = await cli("status", "llm"), await cli("watch", "llm", "--count", "1")
        [row] = await cli.json("ls")
        listed = (await cli("ls")).out
        await cancelled(waiter)
        [alone] = await cli.json("ls")
    assert re.search(r"RATE +ALLOWS +BURST +AVAILABLE +FULL IN", shown.out)
    assert re.search(r"tokens +6 per 60 s +60 +-200 +43 min", shown.out)
    debt = (
        "rate used up: Permits are free, but tokens is 200 in debt, so no request can begin for 33"
    )
    assert debt in " ".join(shown.out.split())
    assert "requests 50/50, tokens -200/60" in watched.out
    assert "requests 50/50, tokens -200/60" in listed
    assert (row["state"], round(row["rates"]["tokens"]["available"])) == ("rate used up", -200)
    assert alone["state"] == "rate used up", "also without a queue"


async def test_while_a_deployment_rolls_a_rate_is_what_the_last_process_declares(
    cli: Cli, url: str, redis: Redis, connect: Connect
) -> None:
    older = FairSemaphore(connect(url), "llm", 4, rate=Rate(6), lease=5)
    async with older.acquire(), FairSemaphore(redis, "llm", 4, rate=Rate(7)).acquire():
        [row] = await cli.json("ls")
    assert row["rates"]["requests"]["amount"] == 7


async def test_a_rate_that_no_client_declares_any_more_is_not_guessed(
    cli: Cli, url: str, redis: Redis
) -> None:
    """Its debt outlives them, and keeps the name for its kind of semaphore."""
    sem = FairSemaphore(redis, "llm", 4, rate=Rate(6, per=60))
    async with sem.acquire(cost=60):
        pass
    await redis.delete("redsem:{llm}:hubs")
    for arguments in (("ls",), ("status", "llm"), ("pause", "llm"), ("resume", "llm")):
        result = await cli(*arguments)
        assert (result.code, result.err, "requests" in result.out) == (0, "", False)
    [row] = await cli.json("ls")
    assert row["rates"] == {}
    result = await program("run", "llm", "--", "true", REDIS_URL=url)
    assert (result.code, "declares how much 'requests' is" in result.err) == (2, True)


async def test_ls_lists_what_is_in_use_and_trouble_first(cli: Cli, redis: Redis) -> None:
    fair, fast = FairSemaphore(redis, "openai", 2), Semaphore(redis, "gpu:a b", 30)
    held = [await fair.acquire(permits=2), await fast.acquire(permits=3)]
    held.append(await Semaphore(redis, "elsewhere", 1, prefix="redsem:other").acquire())
    tasks = await queued(fair, 2)
    await fast.set_limit(7)

    listed = await cli.json("ls")
    assert [(row["name"], row["limit"], row["set_limit"], row["declared"]) for row in listed] == [
        ("gpu:a b", 7, 7, [30]),
        ("openai", 2, None, [2]),
    ]
    heading, *rows = (await cli("ls")).out.splitlines()
    assert heading.split() == ["NAME", "STATE", "IN", "USE", *MORE]
    assert rows[0].split()[:6] == ["openai", "queuing", "██████████", "2", "2", "2"]
    assert rows[1].split() == ["gpu:a", "b", "free", "█████░░░░░", "7", "(set)", "3", "0"]
    [other] = await cli.json("ls", "--prefix", "redsem:other")
    assert other["name"] == "elsewhere"
    await cancelled(*tasks)
    await let_go(*held)


async def test_a_list_fits_a_terminal(url: str, cli: Cli, redis: Redis) -> None:
    """No name or state is broken. What has no room is below, or left out."""
    rate = {"requests": Rate(50), "tokens": Rate(600, per=3600, burst=60)}
    sem = FairSemaphore(redis, "scheduler-of-llm-calls", 4, rate=rate, key_limit=1)
    async with FairSemaphore(redis, "jobs", 1), sem.acquire(cost={"tokens": 260}, key="acme"):
        [waiter] = await queued(sem, cost={"tokens": 1}, key="beta")
        with terminal("ls", "--url", url, columns=80) as shown:
            assert await shown.ended() == 0
        _, first, *below, last = re.sub(r"\x1b\[[\d;]*m", "", shown.screen).splitlines()
        assert re.match("scheduler-of-llm-calls   rate used up: tokens +4 ", first)
        assert below == [
            "   keys: acme 1/1, beta 0/1 +1",
            "   rates: requests 50/50, tokens -200/60",
        ]
        assert last.split()[:5] == ["jobs", "full", "1", "1", "0"]
        listed, details = await cli("ls"), await cli("status", sem.name)
        assert not re.search(" $", listed.out + details.out, re.MULTILINE), "to be copied"
        assert " 600 per 3,600 s " in details.out
        await cancelled(waiter)


async def test_a_list_names_each_full_key(cli: Cli, redis: Redis) -> None:
    """Also those behind more requests of another key than a list reads."""
    llm = FairSemaphore(redis, "llm", 9, key_limit=1)
    held = [await llm.acquire(key=key) for key in ("acme", "beta")]
    waiters = [await queue_up(llm, key=key) for key in (*6 * ["acme"], "beta")]
    assert "keys full: acme, beta " in (await cli("ls")).out
    await cancelled(*waiters)
    await let_go(*held)


async def test_versions_of_ended_processes_are_told_apart(cli: Cli, redis: Redis) -> None:
    async with FairSemaphore(redis, "jobs", 1):
        assert "\nversions: " in (await cli("status", "jobs")).out
        [hub] = await execute(redis, "ZRANGE", "redsem:{jobs}:hubs", 0, -1)
        await execute(redis, "ZADD", "redsem:{jobs}:hubs", 1, hub)
        assert "\nversions, seen lately: " in (await cli("status", "jobs")).out


async def test_ls_that_lists_nothing_says_what_there_is(cli: Cli, redis: Redis) -> None:
    assert await cli.json("ls") == []
    assert (await cli("ls")).error_line == "No semaphores in use (prefix 'redsem')."
    permits = [await FairSemaphore(redis, f"{n:02}", 1).acquire() for n in range(12)]
    assert (await cli("ls", "jobs*")).error_line == (
        "No semaphore matches 'jobs*' (prefix 'redsem'). In use: '00', '01', '02', '03', '04',"
        " '05', '06', '07', '08', '09' and 2 more."
    )
    await let_go(*permits)


async def test_status_shows_holders_and_waiters(
    cli: Cli, url: str, redis: Redis, connect: Connect
) -> None:
    """And how many it does not list. The clients declare different limits."""
    here = FairSemaphore(redis, "jobs", 3, label="api")
    there = FairSemaphore(connect(url), "jobs", 4, label="batch")
    permit, other = await here.acquire(), await there.acquire(permits=2)
    tasks = [*await queued(here), *await queued(there, permits=2)]
    facts = await cli.json("status", "jobs")
    assert (facts["limit"], facts["declared"]) == (None, [3, 4])
    assert {holder["client"]["limit"] for holder in facts["holders"]} == {3, 4}
    assert [waiter["position"] for waiter in facts["waiters"]] == [1, 2]
    shown = (await cli("status", "jobs", "--ids")).out
    numbers, state, versions, *_ = shown.splitlines()
    assert numbers == "jobs: FairSemaphore, limit 3 or 4, 3 held, 2 waiting"
    assert state == (
        "████████░░ blocked: The first request, of api, declares a limit of 3, and 3 permits are"
        " in use. The requests behind it wait too."
    )
    assert versions == f"versions: {__version__} (1 process)"
    assert re.search(
        rf"api \(\S+, pid {os.getpid()}\) +[\d.]+ s +[\d.]+ s +1 +{permit.fencing_token} +"
        rf"{re.escape(permit.id)}",
        shown,
    )
    assert re.search(r"^1 +api .*\n2 +batch ", shown, re.MULTILINE)
    shown = (await cli("status", "jobs", "--most", "1")).out
    assert "more permits held" in shown
    assert "... and 1 more requests waiting" in shown
    await cancelled(*tasks)
    await let_go(permit, other)


# -- keys and slots


async def test_the_use_the_limit_and_the_line_of_each_key(
    cli: Cli, url: str, redis: Redis, connect: Connect
) -> None:
    """With what was set for a key, by whom, and which key is full."""
    options: dict[str, Any] = {"key_limit": 2, "label": "api"}
    here = FairSemaphore(redis, "llm", 5, **options)
    there = FairSemaphore(connect(url), "llm", 5, **options)
    held = [await here.acquire(key="acme", permits=2), await there.acquire(key="beta")]
    held.append(await here.acquire(key=None))
    waiters = [await queue_up(there, key="acme") for _ in range(2)]
    await here.set_limit(7, key="beta")
    await here.back_off(30, key="gamma")
    [row] = await cli.json("ls")
    facts = await cli.json("status", "llm")
    for each in (row, facts, await cli.json("watch", "llm", "--count", "1")):
        assert (each["key_limit"], each["state"]) == (2, "keys full")
        numbers = ("key", "limit", "held", "waiting", "set_limit")
        assert [tuple(key[name] for name in numbers) for key in each["keys"]] == [
            ("acme", 2, 2, 2, None),
            ("beta", 7, 1, 0, 7),
            ("gamma", 2, 0, 0, None),
        ]
        assert each["keys"][1]["set_limit_by"].startswith("api@")
        assert each["keys"][2]["back_off"]["age"] < 20
    assert {holder["key"] for holder in facts["holders"]} == {"acme", "beta", None}
    assert [waiter["key"] for waiter in facts["waiters"]] == ["acme", "acme"]

    heading, line = (await cli("ls")).out.splitlines()
    assert heading.split()[-1] == "KEYS"
    assert "keys full: acme " in line
    assert line.endswith("acme 2/2 +2, beta 1/7, gamma 0/2")
    shown = (await cli("status", "llm", "--ids")).out
    assert "FairSemaphore, limit 5, key_limit=2, 4 held, 2 waiting" in shown
    assert "keys of the waiting requests are full: acme.\n" in shown
    assert re.search(r"^beta +7 +1 +0 +set \S+ s ago by api@\S+:\d+$", shown, re.MULTILINE)
    assert re.search(
        r"^gamma .* backing off: no permit for .* s \(started .* by api@", shown, re.MULTILINE
    )
    rows = [line.split() for line in shown.splitlines()]
    assert [row[-3] for row in rows if held[1].id in row] == ["beta"]
    assert [row[-1] for row in rows if row[:1] in (["1"], ["2"])] == ["acme", "acme"]
    watch = await program("watch", "llm", "--count", "1", "--url", url)
    assert watch.out.endswith(" Keys: acme 2/2 +2, beta 1/7, gamma 0/2\n")
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
        found += [
            key["key"] for key in (await cli(*arguments, *after, "--json")).json_output["keys"]
        ]
    assert found == keys
    shown = await cli(*arguments)
    assert "more keys than 5: --keys-after 'tenant 04' lists the next" in shown.out
    assert "more keys than" not in (await cli("status", "llm")).out
    assert (await cli("ls")).out.rstrip().endswith("tenant 04 8/12, ...")
    await let_go(*held)


@pytest.mark.parametrize(
    ("options", "listed", "shown"),
    [
        ({"key_limit": dict[str, int]().get}, "acme 1/-", "limit 5, 1 held"),
        ({"share": True}, "acme 1/-", "limit 5, share=True, 1 held"),
    ],
    ids=["a function", "share"],
)
async def test_a_limit_of_keys_that_is_not_declared_is_not_known(
    options: dict[str, Any], listed: str, shown: str, cli: Cli, redis: Redis
) -> None:
    async with FairSemaphore(redis, "llm", 5, **options).acquire(key="acme"):
        assert (await cli("ls")).out.rstrip().endswith(listed)
        assert shown in (await cli("status", "llm")).out


async def test_the_slots_of_each_holder(cli: Cli, redis: Redis) -> None:
    """A set limit above their number is not in force."""
    semaphore = FairSemaphore(redis, "gpu", slots=["cuda:0", "cuda:1", "cuda:2"])
    two, one = await semaphore.acquire(permits=2), await semaphore.acquire()
    facts = await cli.json("status", "gpu")
    assert facts["slots"] == ["cuda:0", "cuda:1", "cuda:2"]
    shown = (await cli("status", "gpu", "--ids")).out
    assert "limit 3, 3 slots, 3 held" in shown
    assert re.search(rf"cuda:0, cuda:1 +{two.fencing_token} +{two.id}", shown)
    assert (await cli("set-limit", "gpu", "100")).code == 0
    [listed] = await cli.json("ls")
    assert (listed["limit"], listed["set_limit"]) == (3, 100)
    assert " 3 (100 set) " in (await cli("ls")).out
    shown = (await cli("status", "gpu")).out
    assert re.search(r"limit 3 \(100 set .* by .*; clients declare 3\), 3 slots, 3 held", shown)
    await redis.hset("redsem:{gpu}:facts", one.id, f"{one.fencing_token}:1:7:")
    holders = (await cli.json("status", "gpu"))["holders"]
    assert {holder["id"]: holder["slots"] for holder in holders} == {
        two.id: ["cuda:0", "cuda:1"],
        one.id: [],
    }, "a slot that is not in the list is not shown"
    await let_go(one, two)


# -- what is stored may be anything


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
    # With what to do, also where its mode is one that this version does not know.
    "another layout": ("HSET", "redsem:{foreign}:meta", "mode", "better", "layout", "99"),
}


@pytest.mark.parametrize("written", FOREIGN.values(), ids=FOREIGN)
async def test_foreign_keys_are_an_error_of_that_name_only(
    written: tuple[str | int, ...], cli: Cli, redis: Redis
) -> None:
    text = "'foreign': its keys do not hold a semaphore"
    if "better" in written:
        text = f"'foreign' is stored in layout 99 (used by redsem-async {__version__}),"
        async with FairSemaphore(redis, "foreign", 1):
            pass
    async with FairSemaphore(redis, "good", 1):
        await execute(redis, *written)
        result = await cli("ls", "--json")
        bad, _ = sorted(result.json_output, key=lambda row: row["name"] == "good")
        assert (result.code, bad["state"], bad["attention"]) == (1, "unreadable", "unreadable")
        [line] = result.err.splitlines()
        assert line == f"redsem-async: {bad['error']}"
        assert text.partition(": ")[2] in line
        if "{foreign}" in str(written):
            for arguments in (("status", "foreign"), ("delete", "foreign", "-y")):
                result = await cli(*arguments)
                assert (result.code, text in result.error_line) == (1, True)
            if "better" not in written:
                for key in shlex.split(line.partition(" UNLINK ")[2]):
                    await redis.unlink(key)
                assert (await cli("ls")).code == 0, "what the error says has removed them"


async def test_hostile_text_is_escaped(cli: Cli, url: str, redis: Redis) -> None:
    """In names, labels, keys and slots; and what the encoding of the output lacks."""
    options: dict[str, Any] = {
        "slots": [HOSTILE, "b"],
        "key_limit": 1,
        "label": HOSTILE.replace("{b}", ""),
    }
    name = HOSTILE.replace("{b}", "限")
    semaphore = FairSemaphore(redis, name, **options)
    permit = await semaphore.acquire(key=HOSTILE)
    waiter = await queue_up(semaphore, key=HOSTILE)
    for arguments in (
        ("status", name),
        ("status", name, "--most", "1"),
        ("ls",),
        ("watch", name, "--count", "1"),
        ("set-limit", name, "1", "--key", HOSTILE),
        ("status", f"other {name}"),
    ):
        result = await cli(*arguments)
        shown = result.out + result.err
        assert (ESCAPED if result.code == 0 else "\\x1b[2J") in shown, arguments
        assert {"\x1b", "\u202e", "\r"}.isdisjoint(shown)
    facts = await cli.json("status", name)
    assert facts["keys"][0]["key"] == HOSTILE
    assert facts["holders"][0]["slots"] == [HOSTILE]
    result = await program("ls", REDIS_URL=url, PYTHONIOENCODING="ascii")
    assert (result.code, "\\u9650" in result.out) == (0, True)
    await cancelled(waiter)
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
    description: str, cli: Cli, redis: Redis
) -> None:
    async with FairSemaphore(redis, "jobs", slots=["x", "y"]) as permit:
        known = parse_permit_id(permit.id)
        assert known is not None
        await redis.hset("redsem:{jobs}:meta", f"{known[0]}:client", description)
        for arguments in (("ls",), ("status", "jobs"), ("watch", "jobs", "--count", "1")):
            result = await cli(*arguments)
            assert (result.code, result.err) == (0, ""), arguments
        assert f"client {known[0][:8]}" in (await cli("status", "jobs")).out
        [row] = await cli.json("ls")
        assert (row["declared"], row["key_limit"], row["held"]) == ([], None, 1)


@pytest.mark.parametrize("command", ["status", "revoke", "delete", "resume", "set-limit", "pause"])
async def test_an_unknown_name_is_an_error(command: str, cli: Cli, redis: Redis) -> None:
    """With a name that is meant, perhaps; and nothing is written."""
    more = {"revoke": [f"{'0' * 32}.1"], "delete": ["--yes"], "set-limit": ["5"]}
    result = await cli(command, "nosuch", *more.get(command, []))
    hint = " Use --create if the name is not in use yet." * (command in {"set-limit", "pause"})
    assert (result.code, result.error_line) == (3, f"{UNKNOWN}{hint}")
    assert await redis.keys() == []
    async with FairSemaphore(redis, "nosuchs", 1):
        result = await cli(command, "nosuch", *more.get(command, []))
        assert result.error_line == f"{UNKNOWN} Did you mean 'nosuchs'?{hint}"


# -- watch


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
async def test_watch_shows_changes_in_a_terminal_until_ctrl_c(
    term: str, url: str, redis: Redis
) -> None:
    """A dumb one cannot go back, so it gets lines."""
    semaphore = FairSemaphore(redis, "jobs", 2, label="api")
    with terminal("watch", "jobs", "--interval", "0.1", "--url", url, term=term) as shown:
        await shown.shows("No semaphore named 'jobs'")
        permit = await semaphore.acquire()
        await shown.shows("limit 2, 1 held, 0 waiting")
        await permit.release()
        await shown.shows("limit 2, 0 held, 0 waiting")
        shown.press(CTRL_C)
        assert await shown.ended() == 0
    assert "Traceback" not in shown.screen
    if term == "dumb":
        assert "\x1b" not in shown.screen
    else:
        assert "api (" in shown.screen
        assert shown.screen.rfind("\x1b[?25h") > shown.screen.rfind("\x1b[?25l")


async def test_watch_without_a_terminal_prints_a_line_per_sample(url: str, redis: Redis) -> None:
    """Its exit code is that of the last."""
    arguments = ("watch", "jobs", "--interval", "0.1", "--count", "2")
    async with FairSemaphore(redis, "jobs", 2):
        result = await program(*arguments, REDIS_URL=url)
        assert (result.code, result.err) == (0, "")
        line = "jobs: FairSemaphore, limit 2, 1 held, 0 waiting; free: 1 permit is free.\n"
        assert result.out == line * 2
        result = await program(*arguments, "--json", REDIS_URL=url)
        assert [json.loads(line)["held"] for line in result.out.splitlines()] == [1, 1]
    unknown = await program(*arguments[:1], "nosuch", *arguments[2:], REDIS_URL=url)
    assert (unknown.code, unknown.out, unknown.err) == (3, f"{UNKNOWN}\n" * 2, "")
    away = await program(*arguments, "--json", REDIS_URL="redis://127.0.0.1:1")
    assert (away.code, away.err) == (1, "")
    first, second = (json.loads(line)["error"] for line in away.out.splitlines())
    assert first == second
    assert first.startswith("Can't reach Redis at redis://127.0.0.1:1 (connection refused). ")


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
