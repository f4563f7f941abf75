"""Every mutant is one: it applies to the package as it is, compiles, differs, and has a test."""

from collections import Counter
from collections.abc import Iterator

import pytest
from redis import Redis

from tests.mutants.__main__ import CHECKOUT, node_of
from tests.mutants.mutant import Mutant
from tests.mutants.mutants import MUTANTS


@pytest.fixture(scope="module")
def sync_redis(server_url: str) -> Iterator[Redis]:
    with Redis.from_url(server_url) as client:
        yield client


def test_mutants_have_names_of_their_own() -> None:
    assert not [name for name, n in Counter(m.name for m in MUTANTS).items() if n > 1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_compiles_and_has_a_test(mutant: Mutant, sync_redis: Redis) -> None:
    """One whose place is gone, or that no interpreter takes, would be caught for nothing."""
    assert node_of(mutant.test)
    for path, text in mutant.texts(CHECKOUT).items():
        assert text != path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            compile(text, path, "exec")
        else:
            sync_redis.script_load(text)
