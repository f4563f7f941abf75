"""The table of faults names tests that exist, and leaves out none that says what it causes."""

import ast
import re
from functools import cache
from pathlib import Path

from tests.faults.table import FAULTS, INTRODUCTION, MISTAKES, render

_TESTS = Path(__file__).parents[1]
_CASES = re.compile(r"Cases? (\d+(?:(?:, | and )\d+)*)\.")

# As the public contract lists them under "Bad arguments raise".
_MISTAKES = ("limit", "permits", "lease", "timeout", "name", "synchronous", "release()")


@cache
def docstrings() -> dict[str, str]:
    """What every test says of itself, by ``file::test``."""
    found: dict[str, str] = {}
    for path in _TESTS.rglob("test_*.py"):
        file = path.relative_to(_TESTS).as_posix()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[f"{file}::{node.name}"] = ast.get_docstring(node) or ""
    return found


def test_every_fault_of_the_model_is_caused() -> None:
    assert list(FAULTS) == list(range(1, 51))
    assert all(case.tests for case in FAULTS.values())


def test_every_bad_argument_is_tried() -> None:
    assert len(MISTAKES) == len(_MISTAKES)
    for case, word in zip(MISTAKES, _MISTAKES, strict=True):
        assert word in case.title
        assert case.tests


def test_the_tests_that_it_names_exist() -> None:
    """A test that was renamed, or taken away, is missed here."""
    named = [test for case in (*FAULTS.values(), *MISTAKES) for test in case.tests]
    assert not set(named) - docstrings().keys()
    for case in (*FAULTS.values(), *MISTAKES):
        assert len(set(case.tests)) == len(case.tests), case.title


def test_what_tests_say_that_they_cause_is_in_the_table() -> None:
    """A docstring says which cases a test is of: each of these lists it."""
    for test, docstring in docstrings().items():
        if (cases := _CASES.match(docstring)) is not None:
            for number in map(int, re.findall(r"\d+", cases[1])):
                assert test in FAULTS[number].tests, f"case {number} does not list {test}"


def test_the_documents_show_it() -> None:
    page = _TESTS.parent / "docs" / "faults.md"
    assert page.read_text(encoding="utf-8") == INTRODUCTION + render()
    rows = render().splitlines()
    assert sum(row.startswith("| ") for row in rows) == 4 + len(FAULTS) + len(MISTAKES)
    assert all(row.count("|") in (0, 3, 4) for row in rows)
