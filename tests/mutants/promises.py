"""``python -m tests.mutants.promises`` writes docs/dev/promises.md from the list of mutants."""

from collections.abc import Iterator
from pathlib import Path

from .__main__ import node_of
from .mutant import CHECKOUT, PACKAGE, lines_of, names, read_mutants

PAGE = CHECKOUT / "docs" / "dev" / "promises.md"
ABOUT = """# Promises

What would go if a promise went: the functions that keep it, with their lines, and the tests that
notice when one of them is broken on purpose. A function usually keeps several promises.
`tests/mutants/mutants.txt` has the changes, and `nox -s mutants` makes them one by one.
`python -m tests.mutants.promises` writes this page.
"""


def page() -> str:
    """The page, with one table for all promises of a group."""
    return "\n".join([ABOUT, *_lines()]) + "\n"


def _lines() -> Iterator[str]:
    group = ""
    for mutant in read_mutants():
        if mutant.group != group:
            yield f"{'' if not group else chr(10)}## {mutant.group}\n"
            yield "| Promise | Kept by | Noticed by |\n| --- | --- | --- |"
            group = mutant.group
        kept = dict.fromkeys(map(_function, (change.where for change in mutant.changes)))
        tests = dict.fromkeys(
            f"`{Path(node_of(test).partition('::')[0]).stem}`" for test in mutant.tests
        )
        promise = mutant.promise.replace("|", "\\|")
        yield f"| {promise[0].upper()}{promise[1:]} | {', '.join(kept)} | {', '.join(tests)} |"


def _function(where: str) -> str:
    """A function by its file, and how many lines it has."""
    [(path, name)] = names()[where]
    file = path.relative_to(CHECKOUT / PACKAGE)
    return f"`{file}{f': {name}' if name else ''}` ({lines_of(path, name)})"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
