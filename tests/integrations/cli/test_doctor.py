"""``redsem-async doctor`` finds problems, recommends changes, and deletes its keys."""

import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

import redsem_async
from redsem_async import FairSemaphore, Rate, __version__
from redsem_async._redis.acl import COMMANDS, acl_rules
from redsem_async.cli.doctor import _clocks, _examine, _server
from redsem_async.cli.doctor._finding import Finding, Verdict
from redsem_async.cli.doctor._messages import of_handover
from redsem_async.testing import EmbeddedRedis
from tests.harness.clocks import SteppedServer, start_with_a_clock_of_its_own
from tests.harness.lacking import Lacking
from tests.harness.replicas import SERVICE, Replicated, embedded_sentinels
from tests.harness.servers import StartServer, stopped
from tests.harness.topologies import REPLICATION, ask, embedded_cluster, in_sync, settle
from tests.integrations.cli.commands import PASSWORD, Result, as_user, command, execute, program

pytestmark = pytest.mark.release


@pytest.fixture
def server(embedded: StartServer) -> EmbeddedRedis:
    """A server for this test alone, with fast replication."""
    return embedded(*REPLICATION)


@pytest.fixture
async def admin(server: EmbeddedRedis) -> AsyncIterator[Redis]:
    """A client with all permissions."""
    async with Redis.from_url(server.url) as client:
        yield client


def without(*commands: str) -> tuple[str, ...]:
    return tuple(rule for rule in acl_rules() if rule not in {f"+{name}" for name in commands})


async def examined(url: str, *arguments: str) -> tuple[Result, dict[str, list[dict[str, str]]]]:
    """Run doctor; return its result, and its findings by subject."""
    result = await command("doctor", "--json", *arguments, url=url)
    assert PASSWORD not in result.out + result.err
    found: dict[str, list[dict[str, str]]] = {}
    for finding in result.json_output["findings"]:
        found.setdefault(finding["about"], []).append(finding)
    healthy = all(f["verdict"] != "problem" for about in found.values() for f in about)
    assert result.json_output["ok"] == healthy
    assert result.code == (0 if healthy else 1)
    return result, found


def problems(found: Mapping[str, list[dict[str, str]]]) -> list[dict[str, str]]:
    """The findings that are problems. Each has advice."""
    bad = [finding for about in found.values() for finding in about]
    bad = [finding for finding in bad if finding["verdict"] == "problem"]
    assert all(finding["advice"] for finding in bad)
    return bad


async def test_a_healthy_server_has_no_problem(server: EmbeddedRedis, admin: Redis) -> None:
    result, found = await examined(server.url)
    assert result.code == 0
    [flavour] = found["server"]
    assert flavour["text"].split()[0].lower() == server.flavour
    for about in ("memory", "rights", "clock", "latency", "FairSemaphore", "Semaphore"):
        assert found[about][0]["verdict"] == "ok", found[about]
    assert "1 with prefix" not in found["semaphores"][0]["text"]
    assert await admin.keys() == []

    shown = await program("doctor", "--url", server.url)
    assert (shown.code, shown.err) == (0, "")
    first, *rest = shown.out.splitlines()
    assert first == f"ok       connection: {server.url}"
    assert any(line.startswith("note     persistence: ") for line in rest)
    assert any(line.startswith("         -> ") for line in rest)


async def test_a_server_that_evicts_or_is_full_is_a_problem(
    server: EmbeddedRedis, admin: Redis
) -> None:
    await admin.config_set("maxmemory", 100 * 2**20)
    await admin.config_set("maxmemory-policy", "allkeys-lru")
    [evicting] = problems((await examined(server.url))[1])
    assert "allkeys-lru" in evicting["text"]
    assert "noeviction" in evicting["advice"]
    await admin.config_set("maxmemory-policy", "noeviction")
    await admin.config_set("maxmemory", 1)
    full = problems((await examined(server.url))[1])
    assert {finding["about"] for finding in full} >= {"memory", "FairSemaphore"}


async def test_who_subscribes_to_patterns_is_a_note(server: EmbeddedRedis, admin: Redis) -> None:
    """Messages to a killed process count as received."""
    async with admin.pubsub() as stray:
        await stray.psubscribe("*")
        await stray.parse_response()
        _, found = await examined(server.url)
    [finding] = found["messages"]
    assert (finding["verdict"], finding["text"][:21]) == ("note", "1 subscribed patterns")


async def test_a_server_that_cannot_be_used_is_a_problem(
    server: EmbeddedRedis, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unreachable, refuses the password, or is silent."""
    await as_user(admin, server.url, *acl_rules())
    wrong = f"redis://semaphores:not-{PASSWORD}@127.0.0.1:{server.port}/0"
    for url, advice in (
        (f"redis://us:{PASSWORD}@127.0.0.1:1/0", "is the server up"),
        (wrong, "password"),
    ):
        [problem] = problems((await examined(url))[1])
        assert advice in problem["advice"]
    for which in ("CONNECT_TIMEOUT", "REPLY_TIMEOUT"):
        monkeypatch.setattr(f"redsem_async.cli._target.{which}", 0.2)
    with stopped(server):
        [silent] = problems((await examined(server.url))[1])
    assert "(no reply)" in silent["text"]


async def test_the_documented_user_is_healthy(server: EmbeddedRedis, admin: Redis) -> None:
    _, found = await examined(await as_user(admin, server.url, *acl_rules()))
    assert problems(found) == []
    [memory] = found["memory, persistence"]
    assert (memory["verdict"], "+info" in memory["advice"]) == ("unknown", True)
    [semaphores] = found["semaphores"]
    assert (semaphores["verdict"], "+scan" in semaphores["advice"]) == ("unknown", True)
    [flavour] = found["server"]
    assert flavour["text"].split()[0].lower() == server.flavour  # from HELLO
    assert {note["verdict"] for note in found["rights"]} == {"ok"}


@pytest.mark.parametrize("missing", COMMANDS)
async def test_a_denied_command_is_named(
    missing: str, server: EmbeddedRedis, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object, **__: object) -> AsyncIterator[Finding]:
        for finding in list[Finding]():
            yield finding

    monkeypatch.setattr(_examine, "check_handover", nothing)  # tested elsewhere
    _, found = await examined(await as_user(admin, server.url, *without(missing)))
    [denied] = problems(found)
    assert denied["about"] == "rights"
    assert denied["text"].removeprefix("denied: ").split(":")[0] == missing.upper()
    assert denied["advice"] == f"ACL SETUSER ... +{missing}"
    assert await admin.keys() == []


@pytest.mark.parametrize(("rule", "what"), [("~redsem:*", "keys"), ("&redsem:*", "channels")])
async def test_denied_keys_and_channels_are_named(
    rule: str, what: str, server: EmbeddedRedis, admin: Redis
) -> None:
    rules = [rule.replace("redsem", "other") if rule == r else r for r in acl_rules()]
    _, found = await examined(await as_user(admin, server.url, *rules))
    named = [f for f in problems(found) if f["about"] == "rights"]
    assert [f["text"].split()[0] for f in named] == [what]
    assert named[0]["advice"] == f"ACL SETUSER ... {rule}"


async def test_messages_that_do_not_arrive_are_a_problem(
    server: EmbeddedRedis, admin: Redis
) -> None:
    _, found = await examined(await as_user(admin, server.url, *without("publish")))
    late = {finding["about"] for finding in problems(found)}
    assert late == {"rights", "FairSemaphore", "Semaphore"}
    assert "heartbeat" in found["FairSemaphore"][0]["text"]


@pytest.fixture
def stepped_replica(embedded: StartServer, server: EmbeddedRedis, tmp_path: Path) -> SteppedServer:
    """A synchronized replica whose clock the test can step."""
    follow = ("--replicaof", "127.0.0.1", str(server.port))
    replica = start_with_a_clock_of_its_own(embedded, tmp_path, *REPLICATION, *follow)
    settle(lambda: in_sync(replica.server), "the replica is in sync")
    return replica


@pytest.mark.release
@pytest.mark.parametrize(
    ("step", "verdict", "says"),
    [
        (0.0, "ok", ""),
        (0.2, "note", "two processes may hold one permit"),
        (2.0, "problem", "two processes may hold one permit"),
        (-2.0, "problem", "crashed holders"),
    ],
)
async def test_a_replica_whose_clock_differs_is_found(
    step: float, verdict: str, says: str, server: EmbeddedRedis, stepped_replica: SteppedServer
) -> None:
    stepped_replica.step(step)
    _, found = await examined(server.url)
    [clock] = found["replica clock"]
    assert clock["verdict"] == verdict
    assert says in clock["text"]
    reading = re.fullmatch(
        rf"127\.0\.0\.1:{stepped_replica.server.port} is ([\d.]+) s (ahead of|behind) its master"
        r" \(within ([\d.]+) s\).*",
        clock["text"],
    )
    assert reading is not None, clock["text"]
    measured = float(reading[1]) * (1 if reading[2] == "ahead of" else -1)
    assert abs(measured - step) <= float(reading[3]) + 0.0001, "the error is larger than stated"
    assert ("NTP" in clock["advice"]) == (verdict != "ok")


async def test_replicas_and_what_they_mean_for_their_master(
    embedded: StartServer, server: EmbeddedRedis, admin: Redis
) -> None:
    """A replica is no server for semaphores. A master that needs none may live on beside another.

    What ends that, and how soon, is looked for.
    """
    announce = ("--replica-announce-port", "1")
    away = embedded(*REPLICATION, "--replicaof", "127.0.0.1", str(server.port), *announce)
    settle(lambda: in_sync(away), "the replica is in sync")
    result, found = await examined(server.url)
    [clock] = found["replica clock"]
    assert clock["text"].startswith("127.0.0.1:1 could not be queried")
    assert (clock["verdict"], bool(clock["advice"])) == ("note", True)
    assert (problems(found), result.code) == ([], 0)
    _, found = await examined(away.url)
    assert found["role"][0]["verdict"] == "problem"
    assert f"127.0.0.1:{server.port}" in found["role"][0]["text"]
    assert "two masters" not in found
    for count, lag, verdict, says in [
        (0, 10, "note", "min-replicas-to-write is off"),
        (1, 0, "note", "min-replicas-to-write is off"),
        (1, 10, "note", "refuses writes 12 s after .* alongside a new master"),
        (1, 3, "ok", "refuses writes 5 s after it is left with fewer than 1 replicas"),
    ]:
        await admin.config_set("min-replicas-max-lag", lag)
        await admin.config_set("min-replicas-to-write", count)
        settle(lambda: bool(ask(server, "SET", "key", "value", "PX", 1)), "it takes writes")
        [masters] = (await examined(server.url))[1]["two masters"]
        assert masters["verdict"] == verdict
        assert re.search(says, masters["text"]), masters["text"]
        assert ("min-replicas-to-write 1" in masters["advice"]) == (verdict != "ok")
    _, found = await examined(await as_user(admin, server.url, *acl_rules(), "+info"))
    [masters] = found["two masters"]
    assert masters["verdict"] == "unknown"
    assert "min-replicas-to-write cannot be checked" in masters["text"]
    assert "+config|get" in masters["advice"]


async def test_a_master_that_sentinels_watch_may_be_replaced(server: EmbeddedRedis) -> None:
    """Its replicas may be gone, or not be there yet."""
    assert "two masters" not in (await examined(server.url))[1]
    with embedded_sentinels(Replicated(server, ())) as flock:
        url = f"redis+sentinel://127.0.0.1:{flock.sentinels[0].port}/{SERVICE}"
        [masters] = (await examined(url))[1]["two masters"]
    assert masters["verdict"] == "note"


async def test_rates_that_differ_and_long_debts_are_named(server: EmbeddedRedis) -> None:
    """A short debt is usual, and so is a deployment, but who is told must judge."""
    async with Redis.from_url(server.url) as redis, Redis.from_url(server.url) as other:
        debtor = FairSemaphore(redis, "llm", 2, rate={"tokens": Rate(1, burst=10)})
        faster = FairSemaphore(other, "llm", 2, rate={"tokens": Rate(2, burst=10)})
        async with faster.acquire(cost=0), debtor.acquire(cost=400):
            _, found = await examined(server.url)
    declared, debt = (each["text"] for each in found["rates"])
    assert "'llm': its processes declare Rate(1, burst=10) and Rate(2, burst=10)" in declared
    assert re.search(r"rate 'tokens' of 'llm': \d+ in debt, for \d min", debt)
    assert {each["verdict"] for each in found["rates"]} == {"note"}


async def test_what_semaphores_recorded_is_told(server: EmbeddedRedis, admin: Redis) -> None:
    """Versions, with each process counted once; a clock that was set back; and foreign keys."""
    async with Redis.from_url(server.url) as redis:
        for name in ("jobs", "more", "newer"):
            async with FairSemaphore(redis, name, 1):
                pass
        _, found = await examined(server.url)
        [versions] = found["versions"]
        assert (versions["verdict"], versions["text"]) == ("ok", f"{__version__} (1 process)")
        await admin.hset("redsem:{jobs}:meta", "lead", 3_600_000_000)
        await admin.hset("redsem:{newer}:meta", "layout", "99")
        await admin.hset("redsem:{more}:meta", f"{'f' * 32}:client", '{"version":"98.0"}')
        await admin.zadd("redsem:{more}:hubs", {"f" * 32: 4e12})
        _, found = await examined(server.url)
        mixed, refused = found["versions"]
        assert mixed["text"] == f"{__version__} (1 process), 98.0 (1 process)"
        text = "names in use with another layout: 1; 'newer' is stored in layout 99"
        assert text in refused["text"]
        [clock] = found["semaphores"]
        assert "set back by 3.6e+03 s" in clock["text"]
        assert {each["verdict"] for each in (mixed, refused, clock)} == {"note"}
        await execute(admin, "SET", "redsem:{foreign}:meta", "text")
        await execute(admin, "HSET", "redsem:{strange}:meta", "lead", "soon")
        _, found = await examined(server.url)
        assert {problem["text"].split()[0] for problem in problems(found)} == {
            "'foreign'",
            "'strange'",
        }
        assert {"FairSemaphore", "Semaphore"} <= set(found)
        await redsem_async.aclose(redis)


class Clock:
    """A stand-in for a client, with a list of times."""

    def __init__(self, *times: float) -> None:
        self._times = list(times)

    async def time(self) -> tuple[int, int]:
        reading = self._times.pop(0) if self._times[1:] else self._times[0]
        return int(reading), int(reading % 1 * 1e6)


async def test_a_wrong_clock_is_a_note() -> None:
    found, _ = await _clocks.clock_and_latency(Clock(1000.0))
    assert found.verdict is Verdict.NOTE
    assert "behind" in found.text
    assert "clock='local'" in found.advice


INFO = {"redis_version": "7.2.4", "maxmemory": 0, "aof_enabled": 1}


def masters(write: int, lag: int, replicas: int, word: str = "replicas") -> Finding:
    settings = {f"min-{word}-to-write": str(write), f"min-{word}-max-lag": str(lag)}
    return _server.of_masters(settings, replicas)


def clock(ahead: float, error: float) -> Finding:
    return _clocks.of_replica("replica:6379", _clocks.Offset(ahead, error))


def version(**info: str) -> Finding:
    return _server.version(INFO | info)


def memory(**info: Any) -> Finding:
    return _server.memory(INFO | info)


def clients(**info: int) -> Finding:
    """The finding where there is one only if there is something to say."""
    [finding] = _server.clients(INFO | info)
    return finding


def handover(took: float, *, no_push: bool = False) -> Finding:
    return of_handover(FairSemaphore, took, no_push=no_push)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        # The replicas have to be too few for two masters.
        (masters(1, 5, replicas=2), Verdict.OK),
        (masters(1, 5, replicas=3), Verdict.NOTE),
        (masters(2, 5, replicas=3), Verdict.OK),
        (masters(2, 6, replicas=3), Verdict.NOTE),
        (masters(1, 5, replicas=1, word="slaves"), Verdict.OK),
        (_server.of_masters({}, 1), Verdict.NOTE),
        # The certain part of a difference of clocks decides.
        (clock(0.049, error=0.001), Verdict.OK),
        (clock(0.3, error=0.26), Verdict.OK),
        (clock(0.3, error=0.001), Verdict.NOTE),
        (clock(-0.3, error=0.001), Verdict.NOTE),
        (clock(0.6, error=0.2), Verdict.NOTE),
        (clock(0.6, error=0.001), Verdict.PROBLEM),
        (clock(-0.6, error=0.001), Verdict.PROBLEM),
        (version(redis_version="6.0.20"), Verdict.PROBLEM),
        (version(redis_version="6.2.14"), Verdict.OK),
        (version(valkey_version="8.1.0"), Verdict.OK),
        (version(dragonfly_version="1.30"), Verdict.NOTE),
        (memory(maxmemory_policy="allkeys-lru"), Verdict.OK),
        (memory(maxmemory=100, used_memory=95), Verdict.PROBLEM),
        (memory(maxmemory=100, used_memory=50), Verdict.OK),
        (memory(maxmemory=100, maxmemory_policy="volatile-ttl"), Verdict.PROBLEM),
        (clients(maxclients=100, connected_clients=95), Verdict.PROBLEM),
        (handover(0.003), Verdict.OK),
        (handover(0.003, no_push=True), Verdict.OK),
        (handover(3.3), Verdict.PROBLEM),
        (handover(3.3, no_push=True), Verdict.NOTE),
    ],
)
def test_what_was_found_is_judged_and_has_advice(found: Finding, verdict: Verdict) -> None:
    assert found.verdict is verdict, found
    assert found.advice or verdict is Verdict.OK


@pytest.mark.parametrize(
    ("lacks", "about", "verdict", "words"),
    [
        (["count"], "messages", "note", "PUBLISH"),
        (["set_repl"], "scripts", "note", "set_repl"),
        (["time"], "scripts", "note", "TIME"),
        (["time", "pexpiretime"], "scripts", "note", "TIME"),
        (["resp3"], "messages", "problem", "RESP3"),
        (["admin"], "memory, persistence", "unknown", "INFO"),
    ],
    ids=["count", "set_repl", "time", "time and pexpiretime", "resp3", "admin"],
)
async def test_what_a_server_lacks_is_said(
    server: EmbeddedRedis, lacks: list[str], about: str, verdict: str, words: str
) -> None:
    async with Lacking(server.port, *lacks) as lacking:
        _, found = await examined(lacking.url)
    [finding] = found[about]
    assert finding["verdict"] == verdict
    assert words in finding["text"]
    if verdict == "note":
        assert found["FairSemaphore"][0]["verdict"] == "ok" or "pexpiretime" in lacks


@pytest.mark.parametrize(
    ("host", "info", "hello", "service"),
    [
        ("localhost", {"redis_version": "7.2.4"}, {"server": "valkey"}, None),
        ("x.serverless.use1.cache.amazonaws.com", {}, {}, "Amazon ElastiCache Serverless"),
        ("x.0001.use1.cache.amazonaws.com", {}, {}, "Amazon ElastiCache"),
        ("x.cache.amazonaws.com.cn", {}, {}, "Amazon ElastiCache"),
        ("10.0.0.1", {"os": "Amazon ElastiCache"}, {}, "Amazon ElastiCache"),
        ("clustercfg.x.memorydb.us-east-1.amazonaws.com", {}, {}, "Amazon MemoryDB"),
        ("x.redis.cache.windows.net", {}, {}, "Azure Cache for Redis"),
        ("x-1.upstash.io", {}, {}, "Upstash"),
        ("upstash.io.example.org", {}, {}, None),
        ("localhost", {"dragonfly_version": "df-1.30"}, {}, "Dragonfly"),
        ("localhost", {}, {"server": "garnet"}, "Garnet"),
    ],
)
def test_a_service_is_named(
    host: str, info: dict[str, str], hello: dict[str, str], service: str | None
) -> None:
    assert _server.service_of(host, info, hello) == service
    told = _server.version({"redis_version": "7.2.4"} | info, service)
    assert (service or "Redis") in told.text


def test_data_loss_at_a_restart_or_failover_is_reported() -> None:
    found = list(_server.durability(INFO | {"aof_enabled": 0, "connected_slaves": 2}))
    assert [finding.verdict for finding in found] == [Verdict.NOTE, Verdict.NOTE]
    assert "appendonly" in found[0].advice
    assert "fencing" in found[1].advice
    [failed, _] = _server.durability(INFO | {"rdb_last_bgsave_status": "err"})
    assert failed.verdict is Verdict.PROBLEM


async def test_a_cluster_is_examined_server_by_server() -> None:
    with embedded_cluster() as cluster:
        _, found = await examined(cluster.url, "--cluster")
        assert problems(found) == []
        for node in cluster.nodes:
            assert f"rights of {node.address}" in found
            assert f"memory of {node.address}" in found
        server = cluster.nodes[0].server
        sharded = server.flavour == "valkey" or server.version >= (7,)
        assert found["FairSemaphore"][0]["verdict"] == ("ok" if sharded else "note")

        _, found = await examined(cluster.url)
        assert any("--cluster" in finding["advice"] for finding in problems(found))
