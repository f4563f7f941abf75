"""Restricts processes that tests start, where the tests are: see `restricted.py`."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[1] / "restricted.py"))["restrict"]()
