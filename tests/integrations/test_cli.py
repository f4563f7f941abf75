"""The operator's commands on real servers, in child processes and terminals."""

import asyncio
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
from redis.asyncio import Redis, RedisCluster

import redsem_async
from redsem_async import AnySemaphore, FairSemaphore, Permit, PermitLost, Semaphore
from redsem_async._core.keys import parse_permit_id
from redsem_async._redis.acl import acl_rules
from tests.harness.servers import StartServer, tls_in_front_of
from tests.harness.topologies import embedded_cluster
from tests.harness.wait import until
from tests.integrations.commands import COMMAND, CTRL_C, command, program, terminal

PASSWORD = "hunter2-of-the-test"


class Connect(Protocol):
    """Creates a client, closed after the test. Semaphores treat each client as a process."""

    def __call__(self, url: str = ..., **options: Any) -> Redis: ...


@pytest.fixture(params=[Semaphore, FairSemaphore], ids=["zset", "fair"])
def kind(request: pytest.FixtureRequest) -> type[AnySemaphore]:
    """The class under test."""
    made: type[AnySemaphore] = request.param
    return made


@pytest.fixture
def url(embedded: StartServer) -> str:
    """A server of this test alone, because `ls` lists all semaphores."""
    return embedded().url


@pytest.fixture
async def connect(url: str) -> AsyncIterator[Connect]:
    """Creates clients of the server."""
    async with AsyncExitStack() as stack:

        def make(url: str = url, **options: Any) -> Redis:
            redis = Redis.from_url(url, **options)
            stack.push_async_callback(redis.aclose)
            stack.push_async_callback(redsem_async.aclose, redis)
            return redis

        yield make


async def queued(semaphore: AnySemaphore, count: int = 1) -> list["asyncio.Task[Permit]"]:
    """Start tasks that wait, and return once the server has queued them."""
    before = (await semaphore.status(0)).waiting
    tasks = [asyncio.create_task(semaphore.acquire()) for _ in range(count)]

    async def all_wait() -> bool:
        return (await semaphore.status(0)).waiting == before + count

    await until(all_wait)
    return tasks


async def give_up(tasks: list["asyncio.Task[Permit]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


# -- inspecting


async def test_ls_lists_what_is_in_use(url: str, connect: Connect) -> None:
    """Both modes, without other prefixes. The operator needs no name."""
    redis = connect()
    fair, fast = FairSemaphore(redis, "openai", 2), Semaphore(redis, "gpu:a b", 30)
    held = [await fair.acquire(permits=2), await fast.acquire(permits=3)]
    held.append(await Semaphore(redis, "elsewhere", 1, prefix="redsem:other").acquire())
    tasks = await queued(fair, 2)
    await fast.set_limit(7)

    listed = (await command("ls", "--json", url=url)).json_output
    assert [(row["name"], row["mode"], row["class"], row["clock"]) for row in listed] == [
        ("gpu:a b", "zset", "Semaphore", "server"),
        ("openai", "fair", "FairSemaphore", "server"),
    ]
    assert [(row["limit"], row["set_limit"], row["declared"]) for row in listed] == [
        (7, 7, [30]),
        (2, None, [2]),
    ]
    assert [(row["held"], row["waiting"]) for row in listed] == [(3, 0), (2, 2)]

    shown = await command("ls", url=url)
    heading, *rows = shown.out.splitlines()
    assert heading.split() == ["NAME", "CLASS", "LIMIT", "HELD", "WAITING"]
    assert rows[0].split() == ["gpu:a", "b", "Semaphore", "7", "(set)", "3", "0"]
    assert (await command("ls", "gpu*", "--json", url=url)).json_output == listed[:1]
    [other] = (await command("ls", "--prefix", "redsem:other", "--json", url=url)).json_output
    assert other["name"] == "elsewhere"
    await give_up(tasks)
    await asyncio.gather(*(permit.release() for permit in held))


async def test_ls_of_many_names(url: str, connect: Connect) -> None:
    """More names than `ls` queries concurrently."""
    redis = connect()
    permits = await asyncio.gather(
        *(FairSemaphore(redis, f"tenant:{i:03}", 1).acquire() for i in range(250))
    )
    listed = (await command("ls", "--json", url=url)).json_output
    assert [row["name"] for row in listed] == [f"tenant:{i:03}" for i in range(250)]
    assert all(row["held"] == 1 for row in listed)
    await asyncio.gather(*(permit.release() for permit in permits))


async def test_ls_where_nothing_is_in_use(url: str) -> None:
    """An empty list is not an error."""
    assert (await command("ls", "--json", url=url)).json_output == []
    result = await command("ls", url=url)
    assert (result.code, result.out, result.err) == (
        0,
        "",
        "No semaphores in use (prefix 'redsem').\n",
    )


async def test_ls_lists_the_others_if_one_is_broken(url: str, connect: Connect) -> None:
    """For example, if a key has another type."""
    redis = connect()
    permit = await FairSemaphore(redis, "good", 1).acquire()
    broken = FairSemaphore(redis, "broken", 1)
    await (await broken.acquire()).release()
    await redis.delete("redsem:{broken}:holders")
    await redis.set("redsem:{broken}:holders", "text")
    result = await command("ls", url=url)
    assert result.code == 1
    assert re.search(r"^good .* 1 +0$", result.out, re.MULTILINE)
    assert re.search(r"^broken .* \? +\?$", result.out, re.MULTILINE)
    [line] = result.err.splitlines()
    assert "WRONGTYPE" in line
    await permit.release()


FOREIGN: dict[str, tuple[str | int, ...]] = {
    "text for a table": ("SET", "redsem:{foreign}:meta", "text"),
    "no number": ("SET", "redsem:{foreign}:limit", "many"),
    "no time": ("HSET", "redsem:{foreign}:meta", "mode", "fair server", "ahead", "soon"),
}


@pytest.mark.parametrize("written", FOREIGN.values(), ids=FOREIGN)
async def test_foreign_keys_are_an_error_of_that_name_only(
    written: tuple[str | int, ...], url: str, connect: Connect
) -> None:
    """`ls` still lists all other semaphores."""
    redis: Any = connect()
    permit = await FairSemaphore(redis, "good", 1).acquire()
    await redis.execute_command(*written)
    result = await command("ls", "--json", url=url)
    assert result.code == 1
    assert [row["name"] for row in result.json_output] == ["good"]
    [line] = result.err.splitlines()
    assert "'foreign': its keys do not hold a semaphore" in line
    result = await command("status", "foreign", url=url)
    assert result.code == 1
    assert "'foreign': its keys do not hold a semaphore" in result.error_line
    await permit.release()


async def test_status_shows_holders_and_waiters(url: str, connect: Connect) -> None:
    """With labels, ages and positions."""
    here = FairSemaphore(connect(), "jobs", 3, label="api")
    there = FairSemaphore(connect(), "jobs", 3, label="batch")
    permit, other = await here.acquire(), await there.acquire(permits=2)
    first = await queued(there)
    second = await queued(here)

    facts = (await command("status", "jobs", "--json", url=url)).json_output
    assert facts["limit"] == 3
    holders = {holder["id"]: holder for holder in facts["holders"]}
    assert holders[permit.id]["fencing_token"] == permit.fencing_token
    assert holders[permit.id]["client"]["label"] == "api"
    assert holders[permit.id]["client"]["pid"] == os.getpid()
    assert holders[other.id]["permits"] == 2
    assert 0 <= holders[permit.id]["age"] < 10
    assert 0 < holders[permit.id]["expires_in"] <= 10
    waiters = [(waiter["position"], waiter["client"]["label"]) for waiter in facts["waiters"]]
    assert waiters == [(0, "batch"), (1, "api")]

    shown = (await command("status", "jobs", url=url)).out
    assert shown.splitlines()[0] == "jobs: FairSemaphore, limit 3, 3 held, 2 waiting"
    assert re.search(
        rf"api \(\S+, pid {os.getpid()}\) +[\d.]+ s +[\d.]+ s +{permit.fencing_token} +1 +"
        rf"{re.escape(permit.id)}",
        shown,
    )
    assert re.search(r"^1 +batch .*\n2 +api ", shown, re.MULTILINE)
    await give_up(first + second)
    await asyncio.gather(permit.release(), other.release())


async def test_status_lists_a_limited_number(url: str, connect: Connect) -> None:
    """And states how many are omitted."""
    semaphore = FairSemaphore(connect(), "jobs", 5)
    held = [await semaphore.acquire() for _ in range(5)]
    tasks = await queued(semaphore, 4)
    result = (await command("status", "jobs", "--most", "2", url=url)).out
    assert "... and 3 more permits held" in result
    assert "... and 2 more requests waiting" in result
    await give_up(tasks)
    await asyncio.gather(*(permit.release() for permit in held))


@pytest.mark.parametrize("clock", ["server", "local"])
async def test_mode_and_clock_are_detected(
    kind: type[AnySemaphore], clock: str, url: str, connect: Connect
) -> None:
    """By every command: the operator passes only the name."""
    semaphore = kind(connect(), "jobs", 1, clock=clock)  # type: ignore[arg-type]
    permit = await semaphore.acquire()
    tasks = await queued(semaphore)
    facts = (await command("status", "jobs", "--json", url=url)).json_output
    assert (facts["mode"], facts["clock"]) == (semaphore._mode, clock)
    assert facts["class"] == kind.__name__
    assert f"jobs: {kind.__name__}, " in (await command("status", "jobs", url=url)).out
    assert (facts["held"], facts["waiting"]) == (1, 1)
    assert (await command("pause", "jobs", url=url)).code == 0
    assert (await command("kick", "jobs", permit.id, url=url)).code == 0
    assert not tasks[0].done()
    assert (await command("resume", "jobs", url=url)).code == 0
    assert await (await tasks[0]).release()
    assert (await command("clear", "jobs", "--yes", url=url)).code == 0
    assert not await semaphore.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "typo"),
        ("kick", "typo", f"{'0' * 32}.1"),
        ("clear", "typo", "--yes"),
        ("resume", "typo"),
        ("set-limit", "typo", "--clear"),
    ],
    ids=lambda arguments: str(arguments[0]),
)
async def test_an_unknown_name_is_an_error(arguments: tuple[str, ...], url: str) -> None:
    """A typo must not look like an idle semaphore. Scripts use the exit code."""
    result = await command(*arguments, url=url)
    assert result.code == 3
    assert result.error_line == "No semaphore named 'typo' (prefix 'redsem')."
    async with Redis.from_url(url) as redis:
        assert await redis.keys() == []


async def test_a_misspelt_name_gets_a_suggestion(url: str, connect: Connect) -> None:
    """Only if a similar name is in use."""
    redis = connect()
    permits = [await FairSemaphore(redis, name, 1).acquire() for name in ("openai", "gpu")]
    result = await command("status", "opnai", url=url)
    assert result.code == 3
    assert result.error_line == (
        "No semaphore named 'opnai' (prefix 'redsem'). Did you mean 'openai'?"
    )
    result = await command("resume", "billing", url=url)
    assert (result.code, result.error_line) == (
        3,
        "No semaphore named 'billing' (prefix 'redsem').",
    )
    await asyncio.gather(*(permit.release() for permit in permits))


async def test_clients_that_declare_different_limits_are_shown(url: str, connect: Connect) -> None:
    """As in a rolling deployment."""
    old, new = FairSemaphore(connect(), "jobs", 20), FairSemaphore(connect(), "jobs", 30)
    held = [await old.acquire(), await new.acquire()]
    facts = (await command("status", "jobs", "--json", url=url)).json_output
    assert (facts["limit"], facts["declared"]) == (None, [20, 30])
    assert {holder["client"]["limit"] for holder in facts["holders"]} == {20, 30}
    assert "limit 20 or 30" in (await command("status", "jobs", url=url)).out
    await asyncio.gather(*(permit.release() for permit in held))


# -- changing


async def test_a_raised_limit_serves_waiters(
    kind: type[AnySemaphore], url: str, connect: Connect
) -> None:
    """At once. The limit applies until it is cleared."""
    semaphore = kind(connect(), "jobs", 1)
    permit = await semaphore.acquire()
    tasks = await queued(semaphore)
    result = await command("set-limit", "jobs", "2", url=url)
    assert (result.code, result.out) == (0, "jobs: limit 2\n")
    more = await asyncio.wait_for(tasks[0], 2)
    assert (await semaphore.status()).limit == 2
    result = await command("set-limit", "jobs", "1", url=url)
    assert result.out == (
        "jobs: limit 1; the set limit was 2;"
        " 2 permits still held, new ones are granted once fewer than 1 are held\n"
    )
    assert (await command("set-limit", "jobs", "none", url=url)).out == (
        "jobs: set limit removed, the clients' own limit applies (1)\n"
    )
    assert (await semaphore.status()).set_limit is None
    assert await permit.release()
    assert await more.release()


async def test_a_pause_stops_grants_until_it_is_resumed(
    kind: type[AnySemaphore], url: str, connect: Connect
) -> None:
    """Waiters stay queued."""
    semaphore = kind(connect(), "jobs", 1)
    await (await semaphore.acquire()).release()
    assert (await command("pause", "jobs", url=url)).out == "jobs: paused\n"
    assert await semaphore.try_acquire() is None
    assert "limit 0 (paused); clients declare 1" in (await command("status", "jobs", url=url)).out
    assert "0 (paused)" in (await command("ls", url=url)).out
    tasks = await queued(semaphore)
    assert (await command("resume", "jobs", url=url)).code == 0
    assert await (await asyncio.wait_for(tasks[0], 2)).release()


async def test_resume_keeps_a_set_limit_above_0(url: str, connect: Connect) -> None:
    """It is not a pause."""
    semaphore = FairSemaphore(connect(), "jobs", 1)
    await semaphore.set_limit(5)
    result = await command("resume", "jobs", url=url)
    assert result.code == 0
    assert result.out.startswith("jobs was not paused; its set limit is 5")
    assert (await semaphore.status()).set_limit == 5


async def test_a_limit_can_be_set_before_the_first_use(
    kind: type[AnySemaphore], url: str, connect: Connect
) -> None:
    """For example, a pause before a deployment. A note helps to detect a typo."""
    result = await command("pause", "jobs", url=url)
    assert result.code == 0
    assert "not in use yet" in result.err
    [listed] = (await command("ls", "--json", url=url)).json_output
    assert (listed["mode"], listed["limit"]) == (None, 0)
    assert await kind(connect(), "jobs", 1).try_acquire() is None


@pytest.mark.parametrize(
    "arguments", [(), ("-1",), ("1.5",), ("many",), ("3", "--clear"), ("9" * 5000,)]
)
async def test_an_invalid_limit_is_a_usage_error(arguments: tuple[str, ...], url: str) -> None:
    """And nothing is set."""
    assert (await command("set-limit", "jobs", *arguments, url=url)).code == 2
    async with Redis.from_url(url) as redis:
        assert await redis.keys() == []


async def test_kick_notifies_the_holder_and_serves_the_next_waiter(
    kind: type[AnySemaphore], url: str, connect: Connect
) -> None:
    """The exit code shows whether the id held a permit."""
    here, there = kind(connect(), "jobs", 1), kind(connect(), "jobs", 1)
    permit = await here.acquire()
    [waiter] = await queued(there)
    assert (await command("kick", "jobs", permit.id, url=url)).code == 0
    lost = await asyncio.wait_for(permit.wait_lost(), 2)
    assert isinstance(lost, PermitLost)
    assert await (await asyncio.wait_for(waiter, 2)).release()

    result = await command("kick", "jobs", permit.id, url=url)
    assert result.code == 4
    assert permit.id not in result.error_line
    assert (await command("kick", "jobs", "no-id", url=url)).code == 2


@pytest.mark.parametrize(("answer", "code", "held"), [("n\n", 1, 1), ("", 1, 1), ("y\n", 0, 0)])
async def test_clear_asks_for_confirmation(
    answer: str, code: int, held: int, url: str, connect: Connect
) -> None:
    """It revokes all permits. No answer means no."""
    semaphore = FairSemaphore(connect(), "jobs", 1)
    permit = await semaphore.acquire()
    result = await command("clear", "jobs", url=url, answer=answer)
    assert result.code == code
    assert "1 permits held and 0 requests waiting" in result.err
    assert (await semaphore.status()).held == held
    assert permit.lost == (held == 0)
    await permit.release()


async def test_clear_without_input_requires_yes(url: str, connect: Connect) -> None:
    """Stdin may be closed, for example in a job of a service manager."""
    permit = await FairSemaphore(connect(), "jobs", 1).acquire()
    done = await asyncio.to_thread(
        subprocess.run,
        ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "clear", "jobs", "--url", url],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "clear asks for confirmation, but there is no input: use --yes\n",
    )
    assert await permit.release()


async def test_clear_asks_in_a_terminal(url: str, connect: Connect) -> None:
    """As operators use it."""
    semaphore = FairSemaphore(connect(), "jobs", 1)
    await (await semaphore.acquire()).release()
    with terminal("clear", "jobs", "--url", url) as shown:
        await shown.shows("[y/N]")
        assert await semaphore.exists() is False
        shown.press("y\n")
        assert await shown.ended() == 0
        assert "jobs was deleted" in shown.screen
    async with Redis.from_url(url) as redis:
        assert not await redis.hexists("redsem:{jobs}:meta", "mode")


# -- watch


async def test_watch_shows_changes_in_a_terminal_until_ctrl_c(url: str, connect: Connect) -> None:
    """At the end the last sample stays, and the cursor is visible."""
    semaphore = FairSemaphore(connect(), "jobs", 2, label="api")
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


async def test_watch_without_a_terminal_prints_a_line_per_sample(
    url: str, connect: Connect
) -> None:
    """For a log, and for `grep`."""
    permit = await FairSemaphore(connect(), "jobs", 2).acquire()
    arguments = ("watch", "jobs", "--interval", "0.1", "--count", "3", "--url", url)
    result = await program(*arguments)
    assert (result.code, result.err) == (0, "")
    assert result.out == "jobs: FairSemaphore, limit 2, 1 held, 0 waiting\n" * 3
    result = await program(*arguments, "--json")
    assert [json.loads(line)["held"] for line in result.out.splitlines()] == [1, 1, 1]
    await permit.release()


def test_watch_continues_after_an_outage(embedded: StartServer) -> None:
    """Operators need it most during an incident."""
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
            assert "Error" in next(line for line in looks if "No semaphore" not in line)
            server.restart()
            next(line for line in looks if "No semaphore named" in line)
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


# -- the server


async def test_the_url_is_an_option_or_in_the_environment(
    embedded: StartServer, connect: Connect
) -> None:
    """Also of a Unix socket, and with decode_responses."""
    server = embedded()
    permit = await FairSemaphore(connect(server.url), "jobs", 1).acquire()
    for url in (server.url, server.unix_url, f"{server.url}?decode_responses=true"):
        facts = (
            await command("status", "jobs", "--json", "--url", url, url="nothing")
        ).json_output
        assert facts["held"] == 1
    result = await program("status", "jobs", REDIS_URL=server.url)
    assert result.code == 0
    await permit.release()


async def test_tls_works(embedded: StartServer, tmp_path: Path) -> None:
    """With the CA that the URL names. Without it, one line states the reason."""
    import trustme

    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    async with tls_in_front_of(embedded(), context) as port:
        url = f"rediss://localhost:{port}"
        result = await command("ls", "--json", url=f"{url}?ssl_ca_certs={tmp_path / 'ca'}")
        assert result.json_output == []
        result = await command("ls", url=url)
        assert result.code == 1
        assert "certificate" in result.error_line.lower()


async def test_a_cluster_is_queried_at_every_shard(connect: Connect) -> None:
    """`ls` lists the semaphores of all shards. Without --cluster, an error suggests it."""
    with embedded_cluster() as cluster:
        client = RedisCluster.from_url(cluster.url)
        try:
            names = [await cluster.name_on(shard, "jobs") for shard in cluster.shards]
            permits = [await FairSemaphore(client, name, 1).acquire() for name in names]
            listed = (await command("ls", "--cluster", "--json", url=cluster.url)).json_output
            assert [row["name"] for row in listed] == sorted(names)
            assert {row["held"] for row in listed} == {1}
            for name, permit in zip(names, permits, strict=True):
                result = await command("kick", name, permit.id, "--cluster", url=cluster.url)
                assert result.code == 0
            result = await command("status", names[-1], url=cluster.url)
            assert result.code == 1
            assert "--cluster" in result.error_line
        finally:
            await redsem_async.aclose(client)
            await client.aclose()


async def test_ls_of_one_cluster_node_is_an_error(embedded: StartServer) -> None:
    """The list would look complete, but contain one shard only."""
    result = await command("ls", url=embedded("--cluster-enabled", "yes").url)
    assert result.code == 1
    assert "use --cluster" in result.error_line


@pytest.mark.parametrize("arguments", [("ls",), ("status", "jobs"), ("pause", "jobs")])
async def test_an_unreachable_server_is_one_error_line(arguments: tuple[str, ...]) -> None:
    """Within seconds, without traceback and password."""
    began = time.monotonic()
    result = await program(*arguments, REDIS_URL=f"redis://us:{PASSWORD}@127.0.0.1:1/0?db=0")
    assert time.monotonic() - began < 10
    assert result.code == 1
    assert "127.0.0.1:1" in result.error_line
    assert PASSWORD not in result.err


@pytest.mark.parametrize(
    "url",
    [
        f"redis://us:{PASSWORD}@nowhere.invalid:6379",
        f"redis://us:{PASSWORD}/rest@127.0.0.1:1",
        f"redis://us:12/{PASSWORD}@127.0.0.1:1",
        f"redis://us:12?{PASSWORD}@127.0.0.1:1",
        f"ftp://us:{PASSWORD}@127.0.0.1:1",
        f"redis://us:{PASSWORD}@127.0.0.1:1?db={PASSWORD}",
    ],
)
async def test_no_password_is_printed(url: str) -> None:
    """With any error in the URL."""
    for arguments in (("ls",), ("doctor",), ("watch", "jobs", "--count", "1")):
        result = await command(*arguments, url=url)
        assert result.code != 0 or arguments[0] == "watch"
        assert PASSWORD not in result.out + result.err
        assert "Traceback" not in result.err


@pytest.mark.parametrize("option", ["ssl_cert_reqs=none", "host_name=there"])
async def test_an_invalid_url_option_is_a_usage_error(option: str) -> None:
    """For example, TLS options without TLS. No connection is made."""
    for arguments in (("ls",), ("bench",), ("doctor",)):
        result = await command(*arguments, url=f"redis://:{PASSWORD}@127.0.0.1:1?{option}")
        assert result.code == 2
        assert option.partition("=")[0] in result.error_line
        assert PASSWORD not in result.error_line


async def test_a_wrong_password_is_not_printed(url: str, connect: Connect) -> None:
    """Neither is the right one."""
    untyped: Any = connect()
    await untyped.execute_command("CONFIG", "SET", "requirepass", PASSWORD)
    wrong = url.replace("redis://", "redis://:wrong-of-the-test@")
    result = await command("ls", url=wrong)
    assert result.code == 1
    assert "wrong-of-the-test" not in result.error_line
    right = url.replace("redis://", f"redis://:{PASSWORD}@")
    assert (await command("ls", "--json", url=right)).json_output == []


async def test_the_documented_user_can_do_all_but_list(url: str, connect: Connect) -> None:
    """`ls` also requires SCAN, and names it in the error."""
    untyped: Any = connect()
    setting = ("ACL", "SETUSER", "semaphores", "reset", "on", f">{PASSWORD}")
    await untyped.execute_command(*setting, *acl_rules())
    as_user = url.replace("redis://", f"redis://semaphores:{PASSWORD}@")
    semaphore = FairSemaphore(connect(), "jobs", 2)
    permit = await semaphore.acquire()
    for arguments in (
        ("status", "jobs"),
        ("watch", "jobs", "--count", "1"),
        ("set-limit", "jobs", "5"),
        ("pause", "jobs"),
        ("resume", "jobs"),
        ("kick", "jobs", permit.id),
        ("clear", "jobs", "--yes"),
    ):
        result = await command(*arguments, url=as_user)
        assert (result.code, result.err) == (0, ""), arguments
    result = await command("ls", url=as_user)
    assert result.code == 1
    assert "scan" in result.error_line.lower()
    await untyped.execute_command("ACL", "SETUSER", "semaphores", "+scan")
    assert (await command("ls", url=as_user)).code == 0


# -- the shell


async def completions(word: str, url: str, *words: str) -> list[str]:
    line = " ".join(["redsem-async", *words, word])
    result = await program(
        REDIS_URL=url,
        _REDSEM_ASYNC_COMPLETE="complete_bash",
        COMP_WORDS=line,
        COMP_CWORD=str(len(words) + 1),
    )
    assert result.err == ""
    return result.out.split()


async def test_a_shell_completes_names(url: str, connect: Connect) -> None:
    """From the server."""
    redis = connect()
    held = [
        await FairSemaphore(redis, name, 1).acquire() for name in ("openai", "openrouter", "gpu")
    ]
    assert await completions("open", url, "status") == ["openai", "openrouter"]
    assert await completions("g", "nothing", "kick", "--url", url) == ["gpu"]
    await asyncio.gather(*(permit.release() for permit in held))


async def test_names_with_shell_metacharacters_are_not_completed(
    url: str, connect: Connect
) -> None:
    """A shell inserts names unquoted, and any client of Redis may choose them."""
    redis = connect()
    names = ["a:b%20c", "a$(reboot)", "a;reboot", "a\nb", "a b", "a\x1b[2J", "a`b`", "aé"]
    held = [await FairSemaphore(redis, name, 1).acquire() for name in names]
    assert await completions("a", url, "status") == ["a:b%20c", "aé"]
    await asyncio.gather(*(permit.release() for permit in held))


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "nonsense"])
async def test_without_redis_completion_is_empty_and_silent(url: str) -> None:
    """Errors must not appear in the prompt."""
    assert await completions("open", url, "status") == []


async def test_the_shells_script_can_be_shown() -> None:
    """The one that `--install-completion` installs."""
    result = await program(_REDSEM_ASYNC_COMPLETE="source_bash")
    assert "_REDSEM_ASYNC_COMPLETE" in result.out


async def test_versions_are_printed() -> None:
    """For bug reports."""
    result = await program("--version")
    assert result.code == 0
    assert re.fullmatch(r"redsem-async .+ \(redis-py \d+\.\S+, Python 3\.\S+\)\n", result.out)


# -- text of other clients


async def test_control_characters_are_escaped(url: str, connect: Connect) -> None:
    """Other clients choose names and labels, which must not control the terminal."""
    redis = connect()
    evil = "a\x1b[2Jb\rc"
    permit = await FairSemaphore(redis, f"jobs {evil}", 1, label=evil).acquire()
    for arguments in (("ls",), ("status", f"jobs {evil}"), ("watch", f"jobs {evil}")):
        more = ("--count", "1") if arguments[0] == "watch" else ()
        result = await command(*arguments, *more, url=url)
        assert result.code == 0
        assert "jobs a\\x1b[2Jb\\rc" in result.out
        assert "\x1b" not in result.out
    result = await command("status", f"other {evil}", url=url)
    assert "\x1b" not in result.error_line
    await permit.release()


async def test_characters_outside_the_encoding_are_escaped(url: str, connect: Connect) -> None:
    """A name is any text. An old locale must not cause a traceback."""
    permit = await FairSemaphore(connect(), "限流", 1).acquire()
    for arguments in (("ls",), ("status", "限流"), ("watch", "限流", "--count", "1")):
        result = await program(*arguments, REDIS_URL=url, PYTHONIOENCODING="latin-1")
        assert (result.code, result.err) == (0, "")
        assert "\\u9650\\u6d41" in result.out
    await permit.release()


async def test_a_client_without_description_is_listed(url: str, connect: Connect) -> None:
    """For example, a client in another language."""
    redis = connect()
    permit = await FairSemaphore(redis, "jobs", 1).acquire()
    known = parse_permit_id(permit.id)
    assert known is not None
    await redis.hset("redsem:{jobs}:meta", f"{known[0]}:who", "not JSON")
    result = await command("status", "jobs", url=url)
    assert result.code == 0
    assert f"unknown client {known[0][:8]}" in result.out
    assert (await command("ls", "--json", url=url)).json_output[0]["limit"] is None
    await permit.release()


def test_usage_errors_have_their_own_exit_code() -> None:
    """Scripts distinguish them from errors of Redis."""
    done = subprocess.run(
        [sys.executable, "-m", "redsem_async", "status", "a{b}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "brace" in line
