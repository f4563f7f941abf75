"""What the documentation names exists, and what it shows runs."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import redsem_async
from tests.harness.servers import StartServer, complaints

pytestmark = pytest.mark.release

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
PIECE = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LOST = re.compile(r"a permit of '[^']+' was lost: ")  # the library's warning; some show a loss


def test_every_test_that_the_docs_name_exists() -> None:
    """A promise is worth what shows it."""
    pages = [page.read_text() for page in (TESTS / "README.md", *DOCS.rglob("*.md"))]
    named = {name for page in pages for name in re.findall(r"`(test_\w+)`", page)}
    assert named
    written: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        written |= set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
        written.add(path.stem)
    assert named - written == set()


def test_every_warning_has_an_event_that_the_docs_list() -> None:
    """Programs that read the log look for it, and not for words of the text."""
    page = (DOCS / "metrics.md").read_text()
    package = Path(redsem_async.__file__).parent
    texts = [path.read_text() for path in package.rglob("*.py") if "cli" not in path.parts]
    events = {event for text in texts for event in re.findall(r'"event": "([^"]+)"', text)}
    assert {event for event in events if f"`{event}`" not in page} == set()
    calls = [call for text in texts for call in re.findall(r"logger\.warning\((?s:.)*?\)\n", text)]
    assert len(calls) > 7
    assert [call for call in calls if "extra=" not in call] == []


def examples() -> list[Any]:
    """Every Python block of the pages, each a program of its own."""
    return [
        pytest.param(code, id=f"{page.relative_to(DOCS)}-{number}")
        for page in sorted(DOCS.rglob("*.md"))
        for number, code in enumerate(EXAMPLE.findall(page.read_text()))
    ]


@pytest.mark.parametrize("code", examples())
def test_an_example_of_the_docs_runs(code: str, embedded: StartServer) -> None:
    """As it stands, but for the server's address; what it claims are assertions of its own."""
    code = code.replace("redis://localhost:6379", embedded().url)
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    complaining = [line for line in complaints(done.stderr) if not LOST.match(line)]
    assert (done.returncode, complaining) == (0, [])


def test_a_piece_of_a_program_parses_and_imports_what_there_is() -> None:
    """Pieces are not run, because they have no beginning or no end."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    pieces = [piece for page in DOCS.rglob("*.md") for piece in PIECE.findall(page.read_text())]
    assert [compile(piece, "", "exec", flags) for piece in pieces]
    exec("\n".join(re.findall(r"^from .*", "\n".join(pieces), re.MULTILINE)), {})


def test_who_is_late_is_refused(server_url: str, name: str) -> None:
    """The example of fencing says in the end what its assertions hold."""
    [example] = EXAMPLE.findall((DOCS / "fencing.md").read_text())
    for known, ours in (("redis://localhost:6379", server_url), ("daily-report", name)):
        assert known in example
        example = example.replace(known, ours)
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", example]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    [lost, final] = done.stdout.splitlines()
    assert "was lost" in lost
    assert final == "second"
