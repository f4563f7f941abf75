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


async def test_what_cannot_be_is_an_error_before_the_run(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be made, and an embedded server that would be a cluster."""
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "charts"
    result = await command("demo", "--url", url, "--output", str(folder), url=url)
    assert (result.code, result.error_line) == (2, f"--output {str(folder)!r}: Not a directory")
    monkeypatch.delenv("REDIS_URL", raising=False)
    for name in ("bench", "demo"):
        result = await program("--cluster", name)
        text = "--cluster needs --url, because the embedded server is no cluster"
        assert (result.code, result.error_line) == (2, text)
