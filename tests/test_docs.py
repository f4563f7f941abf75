"""What the documentation names exists, and what it shows runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import complaints

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["guarantees.md", "security.md"])
def test_every_test_that_the_docs_name_exists(page: str) -> None:
    """A promise is worth what shows it."""
    named = set(re.findall(r"`(test_\w+)`", (DOCS / page).read_text()))
    assert named
    written: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        written |= set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
        written.add(path.stem)
    assert named - written == set()


def test_an_example_of_the_docs_runs(server_url: str, name: str) -> None:
    """Who is late is refused: the assertions are the example's own."""
    [example] = EXAMPLE.findall((DOCS / "guarantees.md").read_text())
    for known, ours in (("redis://localhost:6379", server_url), ("daily-report", name)):
        assert known in example
        example = example.replace(known, ours)
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", example]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    [lost, final] = done.stdout.splitlines()
    assert "was lost" in lost
    assert final == "second"
