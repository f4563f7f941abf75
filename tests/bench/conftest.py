"""Benchmarks are in the checkout alone, and nothing of them is installed."""

import sys
from pathlib import Path

# Last, so that the package is still the one that is installed.
sys.path.append(str(Path(__file__).parents[2]))
