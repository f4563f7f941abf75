"""Each folder keeps to its lines: what is never counted grows. ``pytest -rP`` shows them."""

from pathlib import Path

import pytest

import redsem_async
from tests.meta.budgets import BUDGETS, ROOT

PACKAGE = Path(redsem_async.__file__).parent
PLACES = {"redsem_async": PACKAGE, "tests": ROOT / "tests", "benchmarks": ROOT / "benchmarks"}


def lines_of(folder: str) -> int:
    """Lines of Python and Lua, in *folder* and below. Those of the package are the installed."""
    place, _, rest = folder.partition("/")
    path = PLACES[place] / rest
    files = path.glob("*.py") if rest == "" and place == "redsem_async" else path.rglob("*")
    read = (file for file in files if file.suffix in (".py", ".lua"))
    return sum(len(file.read_bytes().splitlines()) for file in read)


@pytest.mark.parametrize("folder", BUDGETS["lines"])
def test_a_folder_keeps_to_its_lines(folder: str) -> None:
    found, budget = lines_of(folder), BUDGETS["lines"][folder]
    print(f"{folder}: {found} of {budget} lines")
    assert found <= budget
    assert found * 1.1 > budget, "the budget is loose: lower it to what was reached, plus 2 %"


def test_every_folder_of_the_package_has_a_budget() -> None:
    found = {f"redsem_async/{each.parent.name}" for each in PACKAGE.glob("*/__init__.py")}
    assert found <= BUDGETS["lines"].keys()
