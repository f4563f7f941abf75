"""The server and the prefix of ``bench`` and ``demo``, and the folder of a chart."""

from pathlib import Path

import pytest
from redis.asyncio import Redis

from redsem_async._redis.acl import acl_rules
from tests.harness.topologies import embedded_cluster
from tests.integrations.cli.commands import as_user, command, program

SHORT = {"bench": ("--seconds", "0.1"), "demo": ("--requests", "60")}
BOTH = [
    pytest.param("bench"),
    pytest.param("demo", marks=pytest.mark.release),  # it takes seconds
]


@pytest.mark.parametrize("name", BOTH)
async def test_they_use_the_prefix(name: str, url: str, redis: Redis) -> None:
    """With what the documented user may do, of another prefix."""
    limited = await as_user(redis, url, *acl_rules("team"))
    result = await program("--url", limited, "--prefix", "team", name, *SHORT[name])
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize("name", BOTH)
async def test_they_use_a_cluster(name: str, url: str) -> None:
    single = await program("--url", url, "--cluster", name, *SHORT[name])
    assert single.code == 1
    assert "Cluster mode is not enabled" in single.err
    with embedded_cluster() as cluster:
        result = await program("--url", cluster.url, "--cluster", name, *SHORT[name])
        assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize("name", ["bench", "demo"])
async def test_the_embedded_server_is_no_cluster(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    result = await program("--cluster", name)
    assert result.code == 2
    assert result.error_line == (
        "--cluster needs --url, because the embedded server is no cluster"
    )


async def test_a_folder_that_cannot_be_made_is_an_error_before_the_run(
    url: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "charts"
    result = await command("demo", "--url", url, "--output", str(folder), url=url)
    assert result.code == 2
    assert result.error_line == f"--output {str(folder)!r}: Not a directory"
