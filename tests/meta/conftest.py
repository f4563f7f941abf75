"""Makes the benchmarks importable: they are part of the checkout, not of the package."""

import sys
from pathlib import Path

# At the end, so that the installed package is still used.
sys.path.append(str(Path(__file__).parents[2]))
