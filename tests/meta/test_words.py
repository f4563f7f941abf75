"""The package speaks the field's language: the old, coined words do not come back.

What stands here was a name or a word of the package once. Wire words and Redis keys are not
looked at, since scripts on both sides of an upgrade have to agree on them.
"""

import ast
import re
from pathlib import Path

import pytest

import redsem_async
from tests.harness.source import tree_of

PACKAGE = Path(redsem_async.__file__).parent

COINED = (
    # mail and roads
    *("letter", "lane", "lanes", "Post", "posts"),
    # hearing and telling, for replies and push messages
    *("deaf", "deafened", "deafness", "hurry", "overslept", "teller", "tellers"),
    # watchmen, offices, medicine
    *("guardian", "vigil", "relief", "desk", "pulse", "hindrance"),
)
OLD_NAMES = (
    *("FairLane", "ZsetLane", "Returned", "Renewal", "Restoration", "Adoption", "Trouble"),
    *("turn_away", "start_anew", "see_off", "cut_off", "alive_for"),
)


def words_of(text: str) -> set[str]:
    """Whole names, their parts, and the words of docstrings, comments and messages."""
    return {*re.findall(r"\w+", text), *re.findall(r"[A-Za-z]+", text)}


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_no_coined_word_comes_back(path: Path) -> None:
    """A reader should not have to learn a language first."""
    assert not words_of(path.read_text()) & {*COINED, *OLD_NAMES}


@pytest.mark.parametrize("text", ["self._lane.wake()", "def turn_away(self)", "# it is deaf now"])
def test_a_coined_word_would_be_found(text: str) -> None:
    """In a part of a name, as a whole name, and in a comment."""
    assert words_of(text) & {*COINED, *OLD_NAMES}


DOCS = Path(__file__).parents[2] / "docs"
GLOSSARY = DOCS / "glossary.md"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page != GLOSSARY]


def instead() -> re.Pattern[str]:
    """What the glossary says not to write, in its last column."""
    rows = re.findall(r"^\|.*\|([^|]*)\|$", GLOSSARY.read_text(), re.MULTILINE)[2:]
    words = [word.strip() for row in rows for word in row.split(",") if word.strip()]
    return re.compile(rf"\b(?:{'|'.join(words)})\b".replace(" ", r"\s+"), re.IGNORECASE)


INSTEAD = instead()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_has_the_words_of_the_glossary(page: Path) -> None:
    """One word for one thing."""
    assert INSTEAD.findall(page.read_text()) == []


@pytest.mark.parametrize("text", ["it is given back", "waits for\never", "Nobody waits"])
def test_another_word_would_be_found(text: str) -> None:
    """Also across two lines, and at the start of a sentence."""
    assert INSTEAD.search(text)


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_texts_of_the_package_have_the_words_of_the_glossary(path: Path) -> None:
    """Docstrings and messages."""
    texts = [
        node.value
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert [word for text in texts for word in INSTEAD.findall(text)] == []
