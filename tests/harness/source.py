"""Python files as syntax trees."""

import ast
import gc
from pathlib import Path


def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    # Python 3.11 raises SystemError where the collector runs code in the middle of this.
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()
