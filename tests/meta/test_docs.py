"""What README, pages and tests name exists, and what they show runs."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import redsem_async
from tests.harness.servers import StartServer, complaints

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
PIECE = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)
README = TESTS.parent / "README.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LOST = re.compile(r"a permit of '[^']+' was lost: ")  # the library's warning; some show a loss


def test_every_test_that_the_docs_name_exists() -> None:
    """A promise is worth what shows it."""
    pages = [page.read_text() for page in (TESTS / "README.md", *DOCS.rglob("*.md"))]
    named = {name for page in pages for name in re.findall(r"`(test_\w+)`", page)}
    assert named
    written = {path.stem for path in TESTS.rglob("test_*.py")}
    for path in TESTS.rglob("test_*.py"):
        written |= set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    assert named - written == set()


def test_every_fault_is_caused_by_a_test() -> None:
    """The one that has its number as a marker."""
    page = (TESTS / "README.md").read_text(encoding="utf-8")
    texts = [path.read_text() for path in TESTS.rglob("test_*.py")]
    marks = [mark for text in texts for mark in re.findall(r"mark\.fault(\([\d, \n]+\))", text)]
    marked = {number for mark in marks for number in ast.literal_eval(f"{mark[:-1]},)")}
    assert {*map(int, re.findall(r"^\| (\d+) \|", page, re.MULTILINE))} == marked


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


def run(code: str, url: str) -> str:
    """Run a program as it stands, but for the server's address. Returns its output."""
    code = code.replace("redis://localhost:6379", url)
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    complaining = [line for line in complaints(done.stderr) if not LOST.match(line)]
    assert (done.returncode, complaining) == (0, [])
    return done.stdout


@pytest.mark.parametrize("code", EXAMPLE.findall(README.read_text()), ids=lambda _: "readme")
def test_an_example_of_the_readme_runs(code: str, embedded: StartServer) -> None:
    """It is the first thing that anybody tries."""
    assert run(code, embedded().url) or "print(" not in code


def examples() -> list[Any]:
    """Every Python block of the pages, each a program of its own."""
    return [
        pytest.param(code, id=f"{page.relative_to(DOCS)}-{number}")
        for page in sorted(DOCS.rglob("*.md"))
        for number, code in enumerate(EXAMPLE.findall(page.read_text()))
    ]


@pytest.mark.release
@pytest.mark.parametrize("code", examples())
def test_an_example_of_the_docs_runs(code: str, embedded: StartServer) -> None:
    """What it claims are assertions of its own."""
    run(code, embedded().url)


def test_a_piece_of_a_program_parses_and_imports_what_there_is() -> None:
    """Pieces are not run, because they have no beginning or no end."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    pieces = [piece for page in DOCS.rglob("*.md") for piece in PIECE.findall(page.read_text())]
    assert [compile(piece, "", "exec", flags) for piece in pieces]
    exec("\n".join(re.findall(r"^from .*", "\n".join(pieces), re.MULTILINE)), {})


@pytest.mark.release
def test_who_is_late_is_refused(embedded: StartServer) -> None:
    """The example of fencing says in the end what its assertions hold."""
    [example] = EXAMPLE.findall((DOCS / "fencing.md").read_text())
    lost, final = run(example, embedded().url).splitlines()
    assert "was lost" in lost
    assert final == "second"
