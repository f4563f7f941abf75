"""The server of the commands, what they print of it, and completion in a shell."""

import asyncio
import re

import pytest
from redis.asyncio import Redis, RedisCluster

import redsem_async
from redsem_async import FairSemaphore
from redsem_async._redis.acl import acl_rules
from redsem_async.cli._target import Target
from redsem_async.testing import EmbeddedRedis
from tests.harness.servers import StartServer
from tests.harness.topologies import embedded_cluster
from tests.integrations.cli.commands import PASSWORD, as_user, command, execute, program


async def test_the_url_is_an_option_or_in_the_environment(
    server: EmbeddedRedis, redis: Redis
) -> None:
    permit = await FairSemaphore(redis, "jobs", 1).acquire()
    for url in (server.url, server.unix_url, f"{server.url}?decode_responses=true"):
        facts = (
            await command("status", "jobs", "--json", "--url", url, url="nothing")
        ).json_output
        assert facts["held"] == 1
    result = await program("status", "jobs", REDIS_URL=server.url)
    assert result.code == 0
    await permit.release()


async def test_a_cluster_is_queried_at_every_shard(redis: Redis) -> None:
    with embedded_cluster() as cluster:
        client = RedisCluster.from_url(cluster.url)
        try:
            names = [await cluster.name_on(shard, "jobs") for shard in cluster.shards]
            permits = [await FairSemaphore(client, name, 1).acquire() for name in names]
            listed = (await command("ls", "--cluster", "--json", url=cluster.url)).json_output
            assert [row["name"] for row in listed] == sorted(names)
            assert {row["held"] for row in listed} == {1}
            for name, permit in zip(names, permits, strict=True):
                result = await command("revoke", name, permit.id, "--cluster", url=cluster.url)
                assert result.code == 0
            result = await command("status", names[-1], url=cluster.url)
            assert result.code == 1
            assert "--cluster" in result.error_line
        finally:
            await redsem_async.aclose(client)
            await client.aclose()


async def test_options_may_be_given_before_the_command(url: str, redis: Redis) -> None:
    """Those of the command itself win, and both win over REDIS_URL."""
    nowhere = "redis://127.0.0.1:1"
    permit = await FairSemaphore(redis, "jobs", 1, prefix="mine").acquire()
    before = ("--url", url, "--prefix", "mine")
    for arguments in (
        (*before, "status", "jobs"),
        ("--url", nowhere, *before[2:], "status", "jobs", "--url", url),
        ("--prefix", "theirs", "--url", url, "status", "jobs", "--prefix", "mine"),
    ):
        result = await command(*arguments, url=nowhere)
        assert result.code == 0, arguments
        assert "1 held" in result.out
    assert (await command("--url", "http://there", "ls", url=url)).code == 2
    assert await permit.release()


async def test_ls_of_one_cluster_node_is_an_error(embedded: StartServer) -> None:
    result = await command("ls", url=embedded("--cluster-enabled", "yes").url)
    assert result.code == 1
    assert "use --cluster" in result.error_line


@pytest.mark.parametrize("arguments", [("ls",), ("status", "jobs"), ("pause", "jobs")])
async def test_an_unreachable_server_is_one_error_line(arguments: tuple[str, ...]) -> None:
    result = await program(*arguments, REDIS_URL=f"redis://us:{PASSWORD}@127.0.0.1:1/0?db=0")
    assert result.code == 1
    assert "(connection refused)" in result.error_line
    assert "--url" in result.error_line
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
        f"redis+sentinel://us:{PASSWORD}@127.0.0.1:1/main",
        f"redis+sentinel://us:{PASSWORD}/rest@127.0.0.1:1/main",
        f"redis+sentinel://us:{PASSWORD}@127.0.0.1:1",
    ],
)
async def test_no_password_is_printed(url: str) -> None:
    for arguments in (("ls",), ("doctor",), ("watch", "jobs", "--count", "1")):
        result = await command(*arguments, url=url)
        assert result.code != 0
        assert PASSWORD not in result.out + result.err
        assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("url", "there"),
    [
        ("rediss://us:pw@one:1/3?db=3", "rediss://us:pw@two:7/3?db=3"),
        ("unix://us:pw@/tmp/socket", "redis://us:pw@two:7"),
        ("redis+sentinel://us:pw@a,b:2/main", "redis://us:pw@two:7"),
        (
            "rediss+sentinel://us:pw@a/main/3?sentinel_password=x&protocol=2",
            "rediss://us:pw@two:7/3?protocol=2",
        ),
    ],
)
def test_another_server_is_reached_in_the_same_way(url: str, there: str) -> None:
    """As `doctor` reaches the replicas and the nodes of a cluster."""
    assert Target(url, "redsem").at("two", 7).url == there


@pytest.mark.parametrize("option", ["ssl_cert_reqs=none", "host_name=there"])
async def test_an_invalid_url_option_is_a_usage_error(option: str) -> None:
    for arguments in (("ls",), ("bench",), ("doctor",)):
        result = await command(*arguments, url=f"redis://:{PASSWORD}@127.0.0.1:1?{option}")
        assert result.code == 2
        assert option.partition("=")[0] in result.error_line
        assert PASSWORD not in result.error_line


async def test_the_documented_user_can_do_all_but_list(url: str, redis: Redis) -> None:
    limited = await as_user(redis, url, *acl_rules())
    semaphore = FairSemaphore(redis, "jobs", 2)
    permit = await semaphore.acquire()
    for arguments in (
        ("status", "jobs"),
        ("watch", "jobs", "--count", "1"),
        ("set-limit", "jobs", "5"),
        ("pause", "jobs"),
        ("resume", "jobs"),
        ("revoke", "jobs", permit.id),
        ("delete", "jobs", "--yes"),
    ):
        result = await command(*arguments, url=limited)
        assert (result.code, result.err) == (0, ""), arguments
    result = await command("ls", url=limited)
    assert result.code == 1
    assert "scan" in result.error_line.lower()
    await execute(redis, "ACL", "SETUSER", "semaphores", "+scan")
    assert (await command("ls", url=limited)).code == 0


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


async def test_a_shell_completes_names(url: str, redis: Redis) -> None:
    held = [
        await FairSemaphore(redis, name, 1).acquire() for name in ("openai", "openrouter", "gpu")
    ]
    assert await completions("open", url, "status") == ["openai", "openrouter"]
    assert await completions("g", "nothing", "revoke", "--url", url) == ["gpu"]
    await asyncio.gather(*(permit.release() for permit in held))


async def test_names_with_shell_metacharacters_are_not_completed(url: str, redis: Redis) -> None:
    names = ["a:b%20c", "a$(reboot)", "a;reboot", "a\nb", "a b", "a\x1b[2J", "a`b`", "aé"]
    held = [await FairSemaphore(redis, name, 1).acquire() for name in names]
    assert await completions("a", url, "status") == ["a:b%20c", "aé"]
    await asyncio.gather(*(permit.release() for permit in held))


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "nonsense"])
async def test_without_redis_completion_is_empty_and_silent(url: str) -> None:
    assert await completions("open", url, "status") == []


async def test_versions_are_printed() -> None:
    result = await program("--version")
    assert result.code == 0
    assert re.fullmatch(r"redsem-async .+ \(redis-py \d+\.\S+, Python 3\.\S+\)\n", result.out)
