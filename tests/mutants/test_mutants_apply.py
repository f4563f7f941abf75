"""Every mutant is one: it applies to the package as it is, compiles, differs, and has a target."""

import functools
import importlib.util
import inspect
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from redis import Redis

import redsem_async._redis.scripts as loading
from redsem_async._core.keys import MODES
from tests.mutants.mutant import SCRIPTS, Mutant
from tests.mutants.mutants import MUTANTS
from tests.mutants.target import command_of, is_test, node_of
from tests.mutants.trial import CHECKOUT

PACKAGE = Path(str(resources.files("redsem_async")))
NO_OPERATIONS = {"head", "prelude", "hub", "shard", "line", "keys"}


@pytest.fixture(scope="module")
def sync_redis(server_url: str) -> Iterator[Redis]:
    with Redis.from_url(server_url) as client:
        yield client


def test_there_are_many_with_names_of_their_own() -> None:
    """The table has one row for each."""
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 24
    assert {mutant.kind for mutant in MUTANTS} == {"script", "client", "design"}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_applies_compiles_and_differs(
    mutant: Mutant, sync_redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose text is gone, or that no interpreter takes, would be caught for nothing."""
    changed = mutant.texts(PACKAGE.parent)
    for path, text in changed.items():
        assert text != (PACKAGE.parent / path).read_text(encoding="utf-8")
        if path.endswith(".py"):
            compile(text, path, "exec")
    if any(path.startswith(SCRIPTS) for path in changed):
        was = unchanged_scripts()
        shutil.copytree(PACKAGE / "lua", tmp_path / "lua")
        for path, text in changed.items():
            if path.startswith(SCRIPTS):
                (tmp_path / path.removeprefix("redsem_async/")).write_text(text, encoding="utf-8")
        monkeypatch.setattr(
            loading, "resources", SimpleNamespace(files=Mock(return_value=tmp_path))
        )
        # One that no interpreter takes would break every script with it.
        sync_redis.script_load(max(scripts() - was, key=len))


@pytest.mark.release
def test_every_target_exists() -> None:
    """A test that was renamed catches nothing."""
    targets = {mutant.target for mutant in MUTANTS}
    for target in targets:
        if not is_test(target):
            assert importlib.util.find_spec(command_of(target)[1]), target
    nodes = sorted(node_of(target) for target in targets if is_test(target))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only"]
    # Not as a worker of the session that this test runs in.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    run = subprocess.run(
        [*command, *nodes],
        cwd=CHECKOUT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout


@functools.cache
def unchanged_scripts() -> set[str]:
    return scripts()


def scripts() -> set[str]:
    read = inspect.unwrap(loading.script)
    operations = {file.stem for file in (PACKAGE / "lua").rglob("*.lua")} - NO_OPERATIONS
    kinds = itertools.product(MODES, operations, (False, True))
    return {read(mode, operation, sharded).text for mode, operation, sharded in kinds}
