"""The operator's commands: on real servers, in processes and terminals of their own."""

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
from tests.behaviour.conftest import eventually
from tests.behaviour.test_hub_life import _tls_in_front_of as tls_in_front_of
from tests.conftest import StartServer
from tests.faults.topologies import embedded_cluster
from tests.integrations.commands import COMMAND, CTRL_C, command, program, terminal

PASSWORD = "hunter2-of-the-test"


class Connect(Protocol):
    """Makes a client, closed after the test; to the semaphores each is another process."""

    def __call__(self, url: str = ..., **options: Any) -> Redis: ...


@pytest.fixture(params=[Semaphore, FairSemaphore], ids=["zset", "fair"])
def kind(request: pytest.FixtureRequest) -> type[AnySemaphore]:
    """The class under test."""
    made: type[AnySemaphore] = request.param
    return made


@pytest.fixture
def url(embedded: StartServer) -> str:
    """A server that nobody else uses: `ls` lists all there is."""
    return embedded().url


@pytest.fixture
async def connect(url: str) -> AsyncIterator[Connect]:
    """Makes clients of the server."""
    async with AsyncExitStack() as stack:

        def make(url: str = url, **options: Any) -> Redis:
            redis = Redis.from_url(url, **options)
            stack.push_async_callback(redis.aclose)
            stack.push_async_callback(redsem_async.aclose, redis)
            return redis

        yield make


async def in_line(semaphore: AnySemaphore, count: int = 1) -> list["asyncio.Task[Permit]"]:
    """Tasks that wait, of which the server knows."""
    before = (await semaphore.status(0)).waiting
    tasks = [asyncio.create_task(semaphore.acquire()) for _ in range(count)]

    async def all_wait() -> bool:
        return (await semaphore.status(0)).waiting == before + count

    await eventually(all_wait)
    return tasks


async def give_up(tasks: list["asyncio.Task[Permit]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


# -- looking


async def test_ls_lists_what_is_in_use(url: str, connect: Connect) -> None:
    """Both modes, other prefixes left out, and no name to be known beforehand."""
    redis = connect()
    fair, fast = FairSemaphore(redis, "openai", 2), Semaphore(redis, "gpu:a b", 30)
    held = [await fair.acquire(permits=2), await fast.acquire(permits=3)]
    held.append(await Semaphore(redis, "elsewhere", 1, prefix="redsem:other").acquire())
    tasks = await in_line(fair, 2)
    await fast.set_limit(7)

    listed = (await command("ls", "--json", url=url)).facts
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
    assert (await command("ls", "gpu*", "--json", url=url)).facts == listed[:1]
    [other] = (await command("ls", "--prefix", "redsem:other", "--json", url=url)).facts
    assert other["name"] == "elsewhere"
    await give_up(tasks)
    await asyncio.gather(*(permit.release() for permit in held))


async def test_ls_of_many_names(url: str, connect: Connect) -> None:
    """A tenant each: more than are asked about together."""
    redis = connect()
    permits = await asyncio.gather(
        *(FairSemaphore(redis, f"tenant:{i:03}", 1).acquire() for i in range(250))
    )
    listed = (await command("ls", "--json", url=url)).facts
    assert [row["name"] for row in listed] == [f"tenant:{i:03}" for i in range(250)]
    assert all(row["held"] == 1 for row in listed)
    await asyncio.gather(*(permit.release() for permit in permits))


async def test_ls_where_nothing_is_in_use(url: str) -> None:
    """No rows are no error."""
    assert (await command("ls", "--json", url=url)).facts == []
    said = await command("ls", url=url)
    assert (said.code, said.out, said.err) == (0, "", "No semaphores in use (prefix 'redsem').\n")


async def test_ls_tells_the_others_where_one_is_broken(url: str, connect: Connect) -> None:
    """Somebody's key of another type, say."""
    redis = connect()
    permit = await FairSemaphore(redis, "good", 1).acquire()
    broken = FairSemaphore(redis, "broken", 1)
    await (await broken.acquire()).release()
    await redis.delete("redsem:{broken}:holders")
    await redis.set("redsem:{broken}:holders", "text")
    said = await command("ls", url=url)
    assert said.code == 1
    assert re.search(r"^good .* 1 +0$", said.out, re.MULTILINE)
    assert re.search(r"^broken .* \? +\?$", said.out, re.MULTILINE)
    [line] = said.err.splitlines()
    assert "WRONGTYPE" in line
    await permit.release()


FOREIGN: dict[str, tuple[str | int, ...]] = {
    "text for a table": ("SET", "redsem:{foreign}:meta", "text"),
    "no number": ("SET", "redsem:{foreign}:limit", "many"),
    "no time": ("HSET", "redsem:{foreign}:meta", "mode", "fair server", "ahead", "soon"),
}


@pytest.mark.parametrize("written", FOREIGN.values(), ids=FOREIGN)
async def test_what_others_wrote_under_a_name_is_no_wrong_use(
    written: tuple[str | int, ...], url: str, connect: Connect
) -> None:
    """It is said of that name alone, and hides no other from who looks for trouble."""
    redis: Any = connect()
    permit = await FairSemaphore(redis, "good", 1).acquire()
    await redis.execute_command(*written)
    said = await command("ls", "--json", url=url)
    assert said.code == 1
    assert [row["name"] for row in said.facts] == ["good"]
    [line] = said.err.splitlines()
    assert "'foreign': its keys do not hold a semaphore" in line
    said = await command("status", "foreign", url=url)
    assert said.code == 1
    assert "'foreign': its keys do not hold a semaphore" in said.complaint
    await permit.release()


async def test_status_shows_who_holds_and_who_waits(url: str, connect: Connect) -> None:
    """Who holds it, and why am I waiting?"""
    here = FairSemaphore(connect(), "jobs", 3, label="api")
    there = FairSemaphore(connect(), "jobs", 3, label="batch")
    permit, other = await here.acquire(), await there.acquire(permits=2)
    first = await in_line(there)
    second = await in_line(here)

    facts = (await command("status", "jobs", "--json", url=url)).facts
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


async def test_status_of_a_crowd_shows_the_first_of_it(url: str, connect: Connect) -> None:
    """And says how many are left out."""
    semaphore = FairSemaphore(connect(), "jobs", 5)
    held = [await semaphore.acquire() for _ in range(5)]
    tasks = await in_line(semaphore, 4)
    said = (await command("status", "jobs", "--most", "2", url=url)).out
    assert "... and 3 more permits held" in said
    assert "... and 2 more requests waiting" in said
    await give_up(tasks)
    await asyncio.gather(*(permit.release() for permit in held))


@pytest.mark.parametrize("clock", ["server", "local"])
async def test_mode_and_clock_are_found_out(
    kind: type[AnySemaphore], clock: str, url: str, connect: Connect
) -> None:
    """Every command, on a semaphore of which the operator knows the name alone."""
    semaphore = kind(connect(), "jobs", 1, clock=clock)  # type: ignore[arg-type]
    permit = await semaphore.acquire()
    tasks = await in_line(semaphore)
    facts = (await command("status", "jobs", "--json", url=url)).facts
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
async def test_a_name_that_nobody_uses_is_said_to_be_one(
    arguments: tuple[str, ...], url: str
) -> None:
    """A typo must not look like an idle semaphore; scripts read it from the exit code."""
    said = await command(*arguments, url=url)
    assert said.code == 3
    assert said.complaint == "No semaphore named 'typo' (prefix 'redsem')."
    async with Redis.from_url(url) as redis:
        assert await redis.keys() == []


async def test_a_misspelt_name_is_answered_with_the_similar_one(
    url: str, connect: Connect
) -> None:
    """Only with a name that is near, and only of those in use."""
    redis = connect()
    permits = [await FairSemaphore(redis, name, 1).acquire() for name in ("openai", "gpu")]
    said = await command("status", "opnai", url=url)
    assert said.code == 3
    assert said.complaint == (
        "No semaphore named 'opnai' (prefix 'redsem'). Did you mean 'openai'?"
    )
    said = await command("resume", "billing", url=url)
    assert (said.code, said.complaint) == (3, "No semaphore named 'billing' (prefix 'redsem').")
    await asyncio.gather(*(permit.release() for permit in permits))


async def test_clients_that_declare_different_limits_are_shown(url: str, connect: Connect) -> None:
    """As in a rolling deployment."""
    old, new = FairSemaphore(connect(), "jobs", 20), FairSemaphore(connect(), "jobs", 30)
    held = [await old.acquire(), await new.acquire()]
    facts = (await command("status", "jobs", "--json", url=url)).facts
    assert (facts["limit"], facts["declared"]) == (None, [20, 30])
    assert {holder["client"]["limit"] for holder in facts["holders"]} == {20, 30}
    assert "limit 20 or 30" in (await command("status", "jobs", url=url)).out
    await asyncio.gather(*(permit.release() for permit in held))


# -- changing


async def test_a_raised_limit_serves_who_waits(
    kind: type[AnySemaphore], url: str, connect: Connect
) -> None:
    """At once, and until it is cleared."""
    semaphore = kind(connect(), "jobs", 1)
    permit = await semaphore.acquire()
    tasks = await in_line(semaphore)
    said = await command("set-limit", "jobs", "2", url=url)
    assert (said.code, said.out) == (0, "jobs: limit 2\n")
    more = await asyncio.wait_for(tasks[0], 2)
    assert (await semaphore.status()).limit == 2
    said = await command("set-limit", "jobs", "1", url=url)
    assert said.out == (
        "jobs: limit 1; the set limit was 2;"
        " 2 permits still held, new ones are granted once fewer than 1 are held\n"
    )
    assert (await command("set-limit", "jobs", "none", url=url)).out == (
        "jobs: set limit removed, the clients' own limit applies (1)\n"
    )
    assert (await semaphore.status()).set_limit is None
    assert await permit.release()
    assert await more.release()


async def test_paused_nobody_gets_in_until_it_is_resumed(
    kind: type[AnySemaphore], url: str, connect: Connect
) -> None:
    """Who waits waits on."""
    semaphore = kind(connect(), "jobs", 1)
    await (await semaphore.acquire()).release()
    assert (await command("pause", "jobs", url=url)).out == "jobs: paused\n"
    assert await semaphore.try_acquire() is None
    assert "limit 0 (paused); clients declare 1" in (await command("status", "jobs", url=url)).out
    assert "0 (paused)" in (await command("ls", url=url)).out
    tasks = await in_line(semaphore)
    assert (await command("resume", "jobs", url=url)).code == 0
    assert await (await asyncio.wait_for(tasks[0], 2)).release()


async def test_resume_leaves_a_limit_that_pauses_nothing(url: str, connect: Connect) -> None:
    """It was set on purpose."""
    semaphore = FairSemaphore(connect(), "jobs", 1)
    await semaphore.set_limit(5)
    said = await command("resume", "jobs", url=url)
    assert said.code == 0
    assert said.out.startswith("jobs was not paused; its set limit is 5")
    assert (await semaphore.status()).set_limit == 5


async def test_a_limit_for_a_name_that_nobody_uses_yet_waits_for_it(
    kind: type[AnySemaphore], url: str, connect: Connect
) -> None:
    """Paused before the deployment; but a typo is to be noticed."""
    said = await command("pause", "jobs", url=url)
    assert said.code == 0
    assert "not in use yet" in said.err
    [listed] = (await command("ls", "--json", url=url)).facts
    assert (listed["mode"], listed["limit"]) == (None, 0)
    assert await kind(connect(), "jobs", 1).try_acquire() is None


@pytest.mark.parametrize(
    "arguments", [(), ("-1",), ("1.5",), ("many",), ("3", "--clear"), ("9" * 5000,)]
)
async def test_a_limit_that_is_none_is_refused(arguments: tuple[str, ...], url: str) -> None:
    """And nothing is set."""
    assert (await command("set-limit", "jobs", *arguments, url=url)).code == 2
    async with Redis.from_url(url) as redis:
        assert await redis.keys() == []


async def test_who_is_kicked_is_told_and_the_next_is_served(
    kind: type[AnySemaphore], url: str, connect: Connect
) -> None:
    """The exit code says whether the id held anything."""
    here, there = kind(connect(), "jobs", 1), kind(connect(), "jobs", 1)
    permit = await here.acquire()
    [waiter] = await in_line(there)
    assert (await command("kick", "jobs", permit.id, url=url)).code == 0
    lost = await asyncio.wait_for(permit.wait_lost(), 2)
    assert isinstance(lost, PermitLost)
    assert await (await asyncio.wait_for(waiter, 2)).release()

    said = await command("kick", "jobs", permit.id, url=url)
    assert said.code == 4
    assert permit.id not in said.complaint
    assert (await command("kick", "jobs", "no-id", url=url)).code == 2


@pytest.mark.parametrize(("answer", "code", "held"), [("n\n", 1, 1), ("", 1, 1), ("y\n", 0, 0)])
async def test_clear_asks_first(
    answer: str, code: int, held: int, url: str, connect: Connect
) -> None:
    """It takes everybody's permit; no answer is a no."""
    semaphore = FairSemaphore(connect(), "jobs", 1)
    permit = await semaphore.acquire()
    said = await command("clear", "jobs", url=url, answer=answer)
    assert said.code == code
    assert "1 permits held and 0 requests waiting" in said.err
    assert (await semaphore.status()).held == held
    assert permit.lost == (held == 0)
    await permit.release()


async def test_clear_asks_nobody_where_there_is_no_input(url: str, connect: Connect) -> None:
    """Not even an empty one: in a job of a service manager, say."""
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
    """As people meet it."""
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


# -- watching


async def test_watch_shows_changes_in_a_terminal_until_ctrl_c(url: str, connect: Connect) -> None:
    """Live, ended cleanly: the last picture stays, the cursor is back."""
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


async def test_watch_without_a_terminal_prints_a_line_for_each_look(
    url: str, connect: Connect
) -> None:
    """For a log, and for `grep`."""
    permit = await FairSemaphore(connect(), "jobs", 2).acquire()
    arguments = ("watch", "jobs", "--interval", "0.1", "--count", "3", "--url", url)
    said = await program(*arguments)
    assert (said.code, said.err) == (0, "")
    assert said.out == "jobs: FairSemaphore, limit 2, 1 held, 0 waiting\n" * 3
    said = await program(*arguments, "--json")
    assert [json.loads(line)["held"] for line in said.out.splitlines()] == [1, 1, 1]
    await permit.release()


def test_watch_sits_out_an_outage(embedded: StartServer) -> None:
    """It is wanted most while something is wrong."""
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


# -- where Redis is


async def test_it_is_told_by_the_url_or_the_environment(
    embedded: StartServer, connect: Connect
) -> None:
    """Unix sockets, too, and whatever the URL says of decoding."""
    server = embedded()
    permit = await FairSemaphore(connect(server.url), "jobs", 1).acquire()
    for url in (server.url, server.unix_url, f"{server.url}?decode_responses=true"):
        facts = (await command("status", "jobs", "--json", "--url", url, url="nothing")).facts
        assert facts["held"] == 1
    said = await program("status", "jobs", REDIS_URL=server.url)
    assert said.code == 0
    await permit.release()


async def test_tls_will_do(embedded: StartServer, tmp_path: Path) -> None:
    """With a certificate that the URL names; without it, the reason in a line."""
    import trustme

    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    async with tls_in_front_of(embedded(), context) as port:
        url = f"rediss://localhost:{port}"
        said = await command("ls", "--json", url=f"{url}?ssl_ca_certs={tmp_path / 'ca'}")
        assert said.facts == []
        said = await command("ls", url=url)
        assert said.code == 1
        assert "certificate" in said.complaint.lower()


async def test_a_cluster_is_asked_at_every_shard(connect: Connect) -> None:
    """`ls` finds what each of them keeps; without --cluster, it is told what is missing."""
    with embedded_cluster() as cluster:
        client = RedisCluster.from_url(cluster.url)
        try:
            names = [await cluster.name_on(shard, "jobs") for shard in cluster.shards]
            permits = [await FairSemaphore(client, name, 1).acquire() for name in names]
            listed = (await command("ls", "--cluster", "--json", url=cluster.url)).facts
            assert [row["name"] for row in listed] == sorted(names)
            assert {row["held"] for row in listed} == {1}
            for name, permit in zip(names, permits, strict=True):
                said = await command("kick", name, permit.id, "--cluster", url=cluster.url)
                assert said.code == 0
            said = await command("status", names[-1], url=cluster.url)
            assert said.code == 1
            assert "--cluster" in said.complaint
        finally:
            await redsem_async.aclose(client)
            await client.aclose()


async def test_ls_of_one_node_of_a_cluster_is_no_list(embedded: StartServer) -> None:
    """It would look whole, and be a part of it."""
    said = await command("ls", url=embedded("--cluster-enabled", "yes").url)
    assert said.code == 1
    assert "use --cluster" in said.complaint


@pytest.mark.parametrize("arguments", [("ls",), ("status", "jobs"), ("pause", "jobs")])
async def test_without_redis_it_says_so_in_a_line(arguments: tuple[str, ...]) -> None:
    """Soon, with no traceback, and with no password."""
    began = time.monotonic()
    said = await program(*arguments, REDIS_URL=f"redis://us:{PASSWORD}@127.0.0.1:1/0?db=0")
    assert time.monotonic() - began < 10
    assert said.code == 1
    assert "127.0.0.1:1" in said.complaint
    assert PASSWORD not in said.err


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
    """Whatever is wrong with the URL."""
    for arguments in (("ls",), ("doctor",), ("watch", "jobs", "--count", "1")):
        said = await command(*arguments, url=url)
        assert said.code != 0 or arguments[0] == "watch"
        assert PASSWORD not in said.out + said.err
        assert "Traceback" not in said.err


@pytest.mark.parametrize("option", ["ssl_cert_reqs=none", "host_name=there"])
async def test_an_option_that_does_not_fit_is_wrong_use(option: str) -> None:
    """TLS options without TLS, say; nobody is connected to, to find out."""
    for arguments in (("ls",), ("bench",), ("doctor",)):
        said = await command(*arguments, url=f"redis://:{PASSWORD}@127.0.0.1:1?{option}")
        assert said.code == 2
        assert option.partition("=")[0] in said.complaint
        assert PASSWORD not in said.complaint


async def test_a_wrong_password_is_not_printed(url: str, connect: Connect) -> None:
    """Nor the right one."""
    untyped: Any = connect()
    await untyped.execute_command("CONFIG", "SET", "requirepass", PASSWORD)
    wrong = url.replace("redis://", "redis://:wrong-of-the-test@")
    said = await command("ls", url=wrong)
    assert said.code == 1
    assert "wrong-of-the-test" not in said.complaint
    right = url.replace("redis://", f"redis://:{PASSWORD}@")
    assert (await command("ls", "--json", url=right)).facts == []


async def test_the_documented_user_can_do_all_but_list(url: str, connect: Connect) -> None:
    """SCAN is the one thing more, and what is denied is said."""
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
        said = await command(*arguments, url=as_user)
        assert (said.code, said.err) == (0, ""), arguments
    said = await command("ls", url=as_user)
    assert said.code == 1
    assert "scan" in said.complaint.lower()
    await untyped.execute_command("ACL", "SETUSER", "semaphores", "+scan")
    assert (await command("ls", url=as_user)).code == 0


# -- the shell


async def completions(word: str, url: str, *words: str) -> list[str]:
    line = " ".join(["redsem-async", *words, word])
    said = await program(
        REDIS_URL=url,
        _REDSEM_ASYNC_COMPLETE="complete_bash",
        COMP_WORDS=line,
        COMP_CWORD=str(len(words) + 1),
    )
    assert said.err == ""
    return said.out.split()


async def test_a_shell_completes_names(url: str, connect: Connect) -> None:
    """From the server."""
    redis = connect()
    held = [
        await FairSemaphore(redis, name, 1).acquire() for name in ("openai", "openrouter", "gpu")
    ]
    assert await completions("open", url, "status") == ["openai", "openrouter"]
    assert await completions("g", "nothing", "kick", "--url", url) == ["gpu"]
    await asyncio.gather(*(permit.release() for permit in held))


async def test_a_shell_is_given_no_name_that_it_would_act_on(url: str, connect: Connect) -> None:
    """It puts them into the line as they are, and whoever may write to Redis chooses them."""
    redis = connect()
    names = ["a:b%20c", "a$(reboot)", "a;reboot", "a\nb", "a b", "a\x1b[2J", "a`b`", "aé"]
    held = [await FairSemaphore(redis, name, 1).acquire() for name in names]
    assert await completions("a", url, "status") == ["a:b%20c", "aé"]
    await asyncio.gather(*(permit.release() for permit in held))


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "nonsense"])
async def test_without_redis_a_shell_completes_nothing_and_hears_nothing(url: str) -> None:
    """Pressing a key must not fill the prompt with errors."""
    assert await completions("open", url, "status") == []


async def test_the_shells_script_can_be_shown() -> None:
    """As `--install-completion` installs it."""
    said = await program(_REDSEM_ASYNC_COMPLETE="source_bash")
    assert "_REDSEM_ASYNC_COMPLETE" in said.out


async def test_versions_are_said() -> None:
    """For reports of bugs."""
    said = await program("--version")
    assert said.code == 0
    assert re.fullmatch(r"redsem-async .+ \(redis-py \d+\.\S+, Python 3\.\S+\)\n", said.out)


# -- what others wrote


async def test_what_others_wrote_does_not_reach_the_terminal_as_it_is(
    url: str, connect: Connect
) -> None:
    """A label is any client's to choose: no colours, no moving of the cursor."""
    redis = connect()
    evil = "a\x1b[2Jb\rc"
    permit = await FairSemaphore(redis, f"jobs {evil}", 1, label=evil).acquire()
    for arguments in (("ls",), ("status", f"jobs {evil}"), ("watch", f"jobs {evil}")):
        more = ("--count", "1") if arguments[0] == "watch" else ()
        said = await command(*arguments, *more, url=url)
        assert said.code == 0
        assert "jobs a\\x1b[2Jb\\rc" in said.out
        assert "\x1b" not in said.out
    said = await command("status", f"other {evil}", url=url)
    assert "\x1b" not in said.complaint
    await permit.release()


async def test_a_terminal_that_knows_fewer_letters_gets_them_escaped(
    url: str, connect: Connect
) -> None:
    """A name is any text, and an old locale no reason for a traceback."""
    permit = await FairSemaphore(connect(), "限流", 1).acquire()
    for arguments in (("ls",), ("status", "限流"), ("watch", "限流", "--count", "1")):
        said = await program(*arguments, REDIS_URL=url, PYTHONIOENCODING="latin-1")
        assert (said.code, said.err) == (0, "")
        assert "\\u9650\\u6d41" in said.out
    await permit.release()


async def test_a_client_that_says_nothing_of_itself_is_shown_too(
    url: str, connect: Connect
) -> None:
    """One in another language, say."""
    redis = connect()
    permit = await FairSemaphore(redis, "jobs", 1).acquire()
    known = parse_permit_id(permit.id)
    assert known is not None
    await redis.hset("redsem:{jobs}:meta", f"{known[0]}:who", "not JSON")
    said = await command("status", "jobs", url=url)
    assert said.code == 0
    assert f"unknown client {known[0][:8]}" in said.out
    assert (await command("ls", "--json", url=url)).facts[0]["limit"] is None
    await permit.release()


def test_wrong_use_has_an_exit_code_of_its_own() -> None:
    """Scripts tell it from trouble."""
    done = subprocess.run(
        [sys.executable, "-m", "redsem_async", "status", "a{b}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "brace" in line
