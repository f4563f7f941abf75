"""Every fault of the model has a test that causes it: the one with its number as a marker."""

import ast
import re
from pathlib import Path

from tests.harness.source import tree_of

TESTS = Path(__file__).parents[1]
PAGE = TESTS / "README.md"


def test_every_fault_is_caused_by_a_test() -> None:
    listed = re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {*map(int, listed)} == marked()


def marked() -> set[int]:
    """The numbers that the tests have as markers."""
    return {
        argument.value
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, int)
    }
