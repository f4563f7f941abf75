"""Restricts processes that tests start, where the tests are: see `restricted.py`."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

spec = spec_from_file_location(
    "tests.harness.restricted", Path(__file__).parents[1] / "restricted.py"
)
assert spec is not None
assert spec.loader is not None
# Under the name by which the tests import it: what they set is set in the same module.
restricted = sys.modules[spec.name] = module_from_spec(spec)
spec.loader.exec_module(restricted)
restricted.restrict()
