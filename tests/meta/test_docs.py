"""What README, pages and tests name exists, and what they show runs."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import redsem_async
from benchmarks.chart import rows
from tests.harness.programs import ADDRESS, DOCS
from tests.harness.servers import StartServer, complaints

TESTS = Path(__file__).parents[1]
PIECE = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)
README = TESTS.parent / "README.md"
PUBLISHED = TESTS.parent / "benchmarks" / "published"
FIGURE = re.compile(
    r"\{(P\d)(.*?)\|(.+?)\|(.+?)\}"
)  # a case, the end of its labels, label, column
FIGURES = """
| One task | {P1|FairSemaphore|pairs/s}/s | {P1|self-limiters|pairs/s}/s \
(`redis.asyncio.Lock` {P1|redis.asyncio.Lock|pairs/s}/s) | {P1|FairSemaphore|÷ best Python peer}× |
| 50 tasks, one process | {P2, 50 tasks|FairSemaphore|pairs/s}/s | \
{P2, 50 tasks|self-limiters|pairs/s}/s | {P2, 50 tasks|FairSemaphore|÷ best Python peer}× (
| 4 processes, contended | {P9|FairSemaphore|pairs/s}/s | {P9|self-limiters|pairs/s}/s | \
{P9|FairSemaphore|÷ best Python peer}× |
| {P4|FairSemaphore|acquire p50, ms} ms | {P4|self-limiters|acquire p50, ms} ms | \
{P4|FairSemaphore|× fastest Python peer}× as long |
waited at least {P9|Semaphore|p99} ms in the first run, against {P9|FairSemaphore|p99} ms.
"""
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LOST = r"a permit of '[^']+' was lost: "  # the library's warning; some show a loss


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
    events = {event for text in texts for event in re.findall(r'\bfacts\("([^"]+)"', text)}
    assert {event for event in events if f"`{event}`" not in page} == set()
    calls = [call for text in texts for call in re.findall(r"logger\.warning\((?s:.)*?\)\n", text)]
    assert len(calls) > 7
    assert [call for call in calls if "extra=" not in call] == []


def test_the_pages_have_the_published_figures() -> None:
    """To two digits, in the words around them. Ratios of medians are told in per cent."""
    main, busy = ((PUBLISHED / name).read_text() for name in ("main-cases.md", "scale.md"))

    def rounded(found: re.Match[str]) -> str:
        case, end, label, column = found.groups()
        value = dict(rows(main, case, end, column))[label]
        return f"{value:.2f}" if value < 1 else f"{float(f'{value:.2g}'):,g}"

    text = " ".join((README.read_text() + (DOCS / "choosing.md").read_text()).split())
    lines = FIGURE.sub(rounded, FIGURES).strip().splitlines()
    assert [line for line in lines if line not in text] == []
    for run, word in ((main, "higher"), (busy, "lower")):
        pairs = dict(rows(run, "P9", "", "pairs/s"))
        change = pairs["Semaphore"] / pairs["FairSemaphore"] - 1
        assert f"{abs(change):.0%} {word} in" in text


def test_the_page_of_rates_has_the_published_figures() -> None:
    table = (PUBLISHED / "rates.md").read_text().partition("\n## P16: ")[2]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line[:1] == "|"][2:]
    page = (DOCS / "rates.md").read_text()
    assert [row for row in rows if f"| {' | '.join([row[0], *row[-4:]])} |" not in page] == []
    assert len(rows) > 5


@pytest.mark.parametrize(
    "name", ["SemaphoreStatus", "Holder", "Waiter", "KeyStatus", "BackOff", "RateStatus", "Client"]
)
def test_the_page_has_every_field_of_a_status(name: str) -> None:
    [row] = re.findall(rf"^\| `{name}`.*\| (.*) \|$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert {*re.findall(r"`(\w+)`", row)} == {*getattr(redsem_async, name).__annotations__}


def test_the_site_shows_every_public_name() -> None:
    """By directives in comments, which the site unwraps if each begins a line."""
    blocks = re.findall(r"(?ms)^<!-- api\n(.*?)^-->$", (DOCS / "api.md").read_text())
    directives = re.findall(r"(?m)^::: ([\w. ]+)$", "".join(blocks))
    assert {*redsem_async.__all__} - {*" ".join(directives).split()} == set()


def test_pages_use_no_word_of_the_last_column_of_the_glossary() -> None:
    glossary = DOCS / "dev" / "glossary.md"
    listed = re.findall(r"^\|[^|]+\|[^|]+\| (\w[^|]+) \|$", glossary.read_text(), re.MULTILINE)[1:]
    words = re.compile(rf"\b(?:{'|'.join(', '.join(listed).split(', '))})\b")
    pages = (README, *DOCS.glob("*.md"))
    assert {page.name: found for page in pages if (found := words.findall(page.read_text()))} == {}


def run(url: str, *arguments: str, expected: str = "$.") -> list[str]:
    """Run a program to its end, in which it warns of *expected* alone. Returns its lines."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", *arguments],
        env=os.environ | {"REDIS_URL": url},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    complaining = [line for line in complaints(done.stderr) if not re.match(expected, line)]
    assert (done.returncode, complaining) == (0, [])
    return done.stdout.splitlines()


def run_block(code: str, url: str) -> list[str]:
    """Run a block of a page as it stands, but for the server's address."""
    return run(url, "-c", code.replace(ADDRESS, url), expected=LOST)


@pytest.mark.parametrize("code", EXAMPLE.findall(README.read_text()), ids=lambda _: "readme")
def test_an_example_of_the_readme_runs(code: str, embedded: StartServer) -> None:
    """It is the first thing that anybody tries."""
    assert run_block(code, embedded().url) or "print(" not in code


BLOCKS = {  # every Python block of the pages is a program of its own
    f"{page.relative_to(DOCS)}-{number}": code
    for page in sorted(DOCS.rglob("*.md"))
    for number, code in enumerate(EXAMPLE.findall(page.read_text()))
}


@pytest.mark.release
@pytest.mark.parametrize("code", BLOCKS.values(), ids=BLOCKS)
def test_an_example_of_the_docs_runs(code: str, embedded: StartServer) -> None:
    """What it claims are assertions of its own."""
    run_block(code, embedded().url)


def test_a_piece_of_a_program_parses_and_imports_what_there_is() -> None:
    """Pieces are not run, because they have no beginning or no end."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    pages = (README, *DOCS.rglob("*.md"))
    pieces = [piece for page in pages for piece in PIECE.findall(page.read_text())]
    assert [compile(piece, "", "exec", flags) for piece in pieces]
    exec("\n".join(re.findall(r"^from .*", "\n".join(pieces), re.MULTILINE)), {})


@pytest.mark.release
def test_who_is_late_is_refused(embedded: StartServer) -> None:
    """The example of fencing says in the end what its assertions hold."""
    [example] = EXAMPLE.findall((DOCS / "guarantees.md").read_text())
    lost, final = run_block(example, embedded().url)
    assert "was lost" in lost
    assert final == "second"


# -- the programs of docs/examples

SAYS = {  # lines, as regular expressions
    "polite_scraper": [
        f"{domain}.example: 16 pages, at most 2 at a time" for domain in ("books", "maps", "news")
    ],
    "gpu_batch": ["40 images by [2-4] processes, at most 2 at a time"],
    "gpu_slots": ["on GPUs 0 1", "after a crash, on the same GPU: True"],
    "handover": [
        *("202 .*", "202 .*", "503 .*"),
        "february: made by another process, .*fencing token.*",
        "january: made by another process, .*fencing token.*",
        re.escape("january: skipped (expired in the queue, or delivered twice)"),
        "free again: 2",
    ],
    "book_races": [
        f"{case}: the book admits 2, FairSemaphore 1" for case in ("clocks", "timeouts", "trips")
    ],
}


def output_of(program: str, url: str) -> list[str]:
    return run(url, str(DOCS / "examples" / f"{program}.py"))


@pytest.mark.release
@pytest.mark.parametrize("program", SAYS)
def test_a_program_says_what_it_shows(program: str, embedded: StartServer) -> None:
    """Also of a killed worker, of two processes with one limit, and of a job that comes twice."""
    lines, expected = output_of(program, embedded().url), SAYS[program]
    if program == "handover":  # the worker's lines come in any order
        lines[3:-1] = sorted(lines[3:-1])
    assert len(lines) == len(expected)
    assert [s for s, line in zip(expected, lines, strict=True) if not re.fullmatch(s, line)] == []


@pytest.mark.release
def test_a_429_has_both_processes_back_off(embedded: StartServer) -> None:
    counts = [re.findall(r"\d+", line) for line in output_of("busy_upstream", embedded().url)]
    (refused, _), (refused_with, most) = ([int(count) for count in each] for each in counts)
    assert 0 < refused_with < refused / 3
    assert most <= 8


@pytest.mark.release
def test_what_an_acquire_costs_is_on_the_page(embedded: StartServer) -> None:
    """The first column of figures, in the rows that the program has."""
    page = (DOCS / "performance.md").read_text()
    counts = re.findall(r"^\| (?:with|`Semaphore`,) .*? \| (\d+) \|", page, re.MULTILINE)
    kinds = zip(("limit", "key_limit", "share", "slots", "rate"), counts, strict=True)
    expected = [f"{kind} 2 scripts {count} commands" for kind, count in kinds]
    assert output_of("cost", embedded().url) == expected
