"""The package speaks the field's language: the old, coined words do not come back.

What stands here was a name or a word of the package once. Wire words and Redis keys are not
looked at, since scripts on both sides of an upgrade have to agree on them.
"""

import ast
import re
from pathlib import Path

import pytest

import redsem_async

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
    *("Introduction.who", "turn_away", "start_anew", "see_off", "cut_off", "alive_for"),
)


def words_of(path: Path) -> set[str]:
    """Names, and the words of docstrings, comments and messages."""
    text = path.read_text()
    words = set(re.findall(r"[A-Za-z]+", text))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            words |= set(name.split("_"))
    return words


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_no_coined_word_comes_back(path: Path) -> None:
    """A reader should not have to learn a language first."""
    found = words_of(path) & {*COINED, *OLD_NAMES}
    assert not found
