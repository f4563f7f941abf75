"""The server of the commands, what they print of it, and completion in a shell."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis, RedisCluster

import redsem_async
from redsem_async import FairSemaphore
from redsem_async.cli._target import Target
from redsem_async.testing import EmbeddedRedis
from tests.harness.topologies import embedded_cluster
from tests.integrations.cli.commands import PASSWORD, command, program


async def test_the_server_is_given_by_an_option_or_in_the_environment(
    server: EmbeddedRedis, redis: Redis
) -> None:
    """Before the command or after it. Options of the command itself win."""
    nowhere = "redis://127.0.0.1:1"
    permit = await FairSemaphore(redis, "jobs", 1, prefix="mine").acquire()
    mine = ("--prefix", "mine")
    for url in (server.url, server.unix_url, f"{server.url}?decode_responses=true"):
        for arguments in (
            ("--url", url, *mine, "--json", "status", "jobs"),
            ("--url", nowhere, *mine, "status", "jobs", "--url", url, "--json"),
            ("--prefix", "theirs", "--url", url, "status", "jobs", *mine, "--json"),
        ):
            facts = (await command(*arguments, url=nowhere)).json_output
            assert facts["held"] == 1, arguments
    assert (await program("status", "jobs", *mine, REDIS_URL=server.url)).code == 0
    await permit.release()


async def test_a_cluster_is_queried_at_every_shard(redis: Redis) -> None:
    with embedded_cluster() as cluster:
        client = RedisCluster.from_url(cluster.url)
        try:
            names = [await cluster.name_on(shard, "jobs") for shard in cluster.shards]
            permits = [await FairSemaphore(client, name, 1).acquire() for name in names]
            listed = (await command("ls", "--cluster", "--json", url=cluster.url)).json_output
            assert {row["name"]: row["held"] for row in listed} == dict.fromkeys(names, 1)
            for name, permit in zip(names, permits, strict=True):
                result = await command("revoke", name, permit.id, "--cluster", url=cluster.url)
                assert result.code == 0
            for arguments in (("status", names[-1]), ("ls",)):
                result = await command(*arguments, url=cluster.url)
                assert (result.code, "use --cluster" in result.error_line) == (1, True)
        finally:
            await redsem_async.aclose(client)
            await client.aclose()


@pytest.mark.parametrize("arguments", [("ls",), ("status", "jobs"), ("pause", "jobs")])
async def test_an_unreachable_server_is_one_error_line(arguments: tuple[str, ...]) -> None:
    result = await program(*arguments, REDIS_URL=f"redis://us:{PASSWORD}@127.0.0.1:1/0?db=0")
    where = "redis://127.0.0.1:1/0 (connection refused). Is --url or REDIS_URL right?"
    assert (result.code, result.error_line) == (1, f"Can't reach Redis at {where}")


async def test_a_missing_password_is_asked_for(server: EmbeddedRedis, admin: Redis) -> None:
    await admin.config_set("requirepass", PASSWORD)
    result = await command("ls", url=server.url)
    assert result.code == 1
    assert "needs a password: put it into REDIS_URL" in result.error_line


SCHEMES = "begin it with redis://, rediss://, unix:// or redis+sentinel://"


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("localhost:6379", 2, "'localhost:6379' is not a URL: write 'redis://localhost:6379'"),
        (f"ftp://us:{PASSWORD}@127.0.0.1:1", 2, f"the URL 'ftp://...@127.0.0.1:1': {SCHEMES}"),
        ("ftp://there/0", 2, f"the URL 'ftp://there/0': {SCHEMES}"),
        (f"redis://us:{PASSWORD}@nowhere.invalid:6379", 1, "nowhere.invalid"),
        (f"redis://us:{PASSWORD}/rest@127.0.0.1:1", 2, "percent-encode"),
        (f"redis://us:12/{PASSWORD}@127.0.0.1:1", 2, "percent-encode"),
        (f"redis://us:12?{PASSWORD}@127.0.0.1:1", 2, "percent-encode"),
        (f"redis://us:{PASSWORD}@127.0.0.1:1?db={PASSWORD}", 2, "'redis://...@127.0.0.1:1'"),
        (f"redis://there:x?password=a@{PASSWORD}", 2, "the URL 'redis://...': "),
        (f"us:{PASSWORD}?x@127.0.0.1:1", 2, "'...' is not a URL"),
        (f"redis://:{PASSWORD}@127.0.0.1:1?host_name=there", 2, "invalid option: "),
        (f"redis+sentinel://us:{PASSWORD}@127.0.0.1:1/main", 1, "127.0.0.1:1/main"),
        (f"redis+sentinel://us:{PASSWORD}/rest@127.0.0.1:1/main", 2, ""),
        (
            f"redis+sentinel://us:{PASSWORD}@127.0.0.1:1",
            2,
            "'redis+sentinel://...@127.0.0.1:1': w",
        ),
    ],
)
async def test_a_url_is_quoted_without_its_password(url: str, code: int, says: str) -> None:
    """In whatever place of it the password is."""
    for arguments in (("ls",), ("doctor",), ("watch", "jobs", "--count", "1")):
        result = await command(*arguments, url=url)
        assert result.code == code
        assert says in result.out + result.err
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


async def completions(word: str, url: str, *words: str) -> list[str]:
    line = " ".join(["redsem-async", *words, word])
    result = await program(
        REDIS_URL=url,
        _REDSEM_ASYNC_COMPLETE="bash_complete",
        COMP_WORDS=line,
        COMP_CWORD=str(len(words) + 1),
    )
    assert result.err == ""
    return [line.removeprefix("plain,") for line in result.out.split()]


async def test_a_shell_completes_names(url: str, redis: Redis) -> None:
    """But none with characters that mean something to a shell."""
    names = [
        "openai",
        "a:b%20c",
        "a$(reboot)",
        "a;reboot",
        "a\nb",
        "a b",
        "a\x1b[2J",
        "a`b`",
        "aé",
    ]
    held = [await FairSemaphore(redis, name, 1).acquire() for name in names]
    assert await completions("a", url, "status") == ["a:b%20c", "aé"]
    assert await completions("o", "nothing", "revoke", "--url", url) == ["openai"]
    for away in ("redis://127.0.0.1:1", "nonsense"):
        assert await completions("o", away, "status") == []
    await asyncio.gather(*(permit.release() for permit in held))


async def test_the_help_ends_with_exit_codes_and_a_link() -> None:
    result = await program("--help")
    order = ["Look:", " ls ", "Act:", " pause ", "Run:", "Try:", " demo ", "Exit codes: 0 success"]
    assert sorted(order, key=result.out.index) == order
    assert "https://redsem-async.github.io/redsem-async/" in result.out
    assert (await program("-h")).out == result.out
    assert re.search(r"--cluster +The URL", (await program("ls", "-h")).out)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("watch", "jobs", "--interval", "soon"), "--interval must be a number from 0.1 to 3600,"),
        (("serve", "--port", "99999"), "--port must be a whole number from 0 to 65535, not"),
        (("bench", "--seconds", "inf"), "--seconds must be a number from 0.1 to 60, not 'inf'"),
        (("run", "--lease", "0", "jobs", "--", "true"), "--lease must be a number of at least"),
        (("pause", "jobs", "--prefix", "--create"), "--prefix needs a value, which --create is"),
        (("ls", "--url"), "option '--url' requires an argument"),
        (("status",), "missing argument 'NAME' (redsem-async status -h lists what there is)"),
        (("ls", "--jsn"), "no such option '--jsn'. Did you mean"),
        (("pause", "jobs", "--json"), "pause prints no JSON"),
        (("lst",), "no such command 'lst'"),
    ],
)
async def test_a_wrong_use_is_one_line_that_says_what_is_right(
    arguments: tuple[str, ...], says: str
) -> None:
    result = await command(*arguments, url="redis://127.0.0.1:1")
    assert result.code == 2
    assert result.error_line.startswith(says)


async def test_the_first_word_waits_for_no_library_that_it_does_not_need() -> None:
    """Half of a command's start was imports of what other commands print or serve with."""
    code = "import sys, redsem_async.cli._app; print(*sys.modules)"
    loaded = (
        await asyncio.to_thread(subprocess.check_output, [sys.executable, "-c", code])
    ).split()
    late = {b"rich", b"pydantic", b"starlette", b"uvicorn", b"jinja2", b"lupa", b"httpx"}
    assert not late & {*loaded}


async def test_completion_is_added_once_to_what_the_shell_reads(tmp_path: Path) -> None:
    for _ in range(2):
        done = await program("--install-completion", HOME=str(tmp_path), SHELL="/bin/bash")
        assert (done.code, done.err) == (0, "")
    [line] = (tmp_path / ".bashrc").read_text().splitlines()
    assert "_REDSEM_ASYNC_COMPLETE=bash_source redsem-async" in line
    assert "bash_complete" in (await program("--show-completion", SHELL="/bin/bash")).out
    assert (await program("--show-completion", SHELL="/bin/csh")).code == 2


async def test_versions_are_printed() -> None:
    result = await program("--version")
    assert result.code == 0
    assert re.fullmatch(r"redsem-async .+ \(redis-py \d+\.\S+, Python 3\.\S+\)\n", result.out)
