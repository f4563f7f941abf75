"""Every mutant is one: it applies to the package as it is, compiles, differs, and has a test."""

from collections.abc import Iterator

import pytest
from redis import Redis

from tests.mutants.__main__ import node_of
from tests.mutants.mutant import Mutant, read_mutants
from tests.mutants.promises import PAGE, page


@pytest.fixture(scope="module")
def sync_redis(server_url: str) -> Iterator[Redis]:
    with Redis.from_url(server_url) as client:
        yield client


def test_each_promise_is_broken_by_one_mutant() -> None:
    promises = [mutant.promise for mutant in read_mutants()]
    assert len({*promises}) == len(promises) > 0


def test_the_page_of_promises_is_the_one_of_these_mutants() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.mutants.promises"


@pytest.mark.parametrize("mutant", read_mutants(), ids=lambda mutant: mutant.promise)
def test_a_mutant_applies_compiles_and_has_a_test(mutant: Mutant, sync_redis: Redis) -> None:
    """One whose place is gone, or that no interpreter takes, would be caught for nothing."""
    assert all(map(node_of, mutant.tests))
    for path, text in mutant.texts().items():
        assert text != path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            compile(text, path, "exec")
        else:
            sync_redis.script_load(text)
