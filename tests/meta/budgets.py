"""`.config/budgets.toml`: lines that each folder may have, and what an acquire may cost."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUDGETS = tomllib.loads((ROOT / ".config" / "budgets.toml").read_text(encoding="utf-8"))
