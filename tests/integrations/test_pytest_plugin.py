"""The fixtures, in projects such as users have: each is run by a pytest of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.release

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "testing_project"
ASKED = 'pytest_plugins = ["redsem_async.pytest_plugin"]\n'
ON_ASYNCIO = """
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""
USED = """
import asyncio

import pytest
from redis.asyncio import Redis

from redsem_async import BackendUnavailable, FairSemaphore

held = []

{mark}
@pytest.mark.parametrize("turn", range(2))
async def test_real(redsem_redis, redsem_server, turn):
    sem = FairSemaphore(redsem_redis, "jobs", 1)
    assert await redsem_redis.dbsize() == 0, "it was emptied"
    held.append(await sem.acquire(timeout=0))
    assert [permit.lost for permit in held] == [True] * turn + [False]
    assert redsem_redis.connection_pool.connection_kwargs["port"] == redsem_server.port

{mark}
async def test_memory(redsem_memory):
    async with FairSemaphore(redsem_memory, "jobs", 1, timeout=0):
        pass

nowhere = FairSemaphore(Redis(port=1), "jobs", 1, timeout=0)

{mark}
async def test_unlimited(redsem_unlimited):
    async with nowhere, nowhere:
        pass

{mark}
async def test_unlimited_no_more():
    with pytest.raises(BackendUnavailable):
        await nowhere.acquire()
"""
BY_ITSELF = """
from redsem_async import aclose

def test_a_loop_of_its_own(redsem_redis):
    async def main():
        async with FairSemaphore(redsem_redis, "jobs", 1, timeout=0):
            pass
        await aclose(redsem_redis)
        await redsem_redis.aclose()

    asyncio.run(main())
"""


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run pytest in *folder*; what warns fails."""
    if "no:asyncio" not in arguments:  # which would warn of having to guess
        arguments = ("-o", "asyncio_default_fixture_loop_scope=function", *arguments)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:valkey"]
    return subprocess.run(
        [*command, "-q", "-o", "filterwarnings=error", f"--rootdir={folder}", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_the_example_of_the_docs_passes() -> None:
    done = run(EXAMPLE)
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout


@pytest.mark.parametrize(
    ("mark", "arguments"),
    [
        ("", ["-o", "asyncio_mode=auto", "-p", "no:anyio"]),
        ("@pytest.mark.asyncio", ["-o", "asyncio_mode=strict"]),
        ("@pytest.mark.asyncio(loop_scope='module')", ["-o", "asyncio_mode=strict"]),
        ("", ["-o", "asyncio_mode=auto", "-o", "asyncio_default_test_loop_scope=session"]),
        ("@pytest.mark.anyio", ["-p", "no:asyncio"]),
        ("@pytest.mark.anyio", ["-o", "asyncio_mode=strict"]),
    ],
    ids=["auto", "strict", "a loop of the module", "a loop for all", "anyio", "anyio too"],
)
def test_clients_are_closed_by_any_runner(tmp_path: Path, mark: str, arguments: list[str]) -> None:
    """And what a test still held has ended: the next finds an empty server, and nothing warns."""
    written(tmp_path, conftest=ASKED + ON_ASYNCIO, test_it=USED.format(mark=mark) + BY_ITSELF)
    done = run(tmp_path, *arguments)
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout


def test_the_plugin_loads_only_when_asked(tmp_path: Path) -> None:
    silent = "import sys\n\ndef test_it():\n    assert 'redsem_async' not in sys.modules\n"
    done = run(written(tmp_path, test_it=silent))
    assert done.returncode == 0, done.stdout
    assert "redsem" not in run(tmp_path, "--fixtures").stdout
    asked = run(tmp_path, "-p", "redsem_async.pytest_plugin", "--fixtures").stdout
    for fixture in ("redsem_memory", "redsem_server", "redsem_redis", "redsem_unlimited"):
        assert fixture in asked


def test_the_test_tools_import_no_pytest() -> None:
    """They serve unittest, and whatever else runs tests."""
    code = "import sys, redsem_async.testing; print('pytest' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
