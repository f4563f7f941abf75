"""Tables in a document, each between two comments, which a later run replaces."""

import re
from collections.abc import Mapping, Sequence
from math import floor, log10

_TABLE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables_in(text: str) -> list[str]:
    """The names of the tables that *text* has room for."""
    return [match[2] for match in _TABLE.finditer(text)]


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """*text* with its tables replaced.

    Raises:
        ValueError: when it has not room for exactly these, once each.
    """
    if sorted(tables_in(text)) != sorted(tables):
        raise ValueError(f"room for {tables_in(text)}, not for {list(tables)}")
    return _TABLE.sub(lambda match: f"{match[1]}\n{tables[match[2]]}\n\n{match[3]}", text)


def table(headings: Sequence[str], lines: Sequence[Sequence[str]], rest: str = "---:") -> str:
    """Markdown. All columns but the first are aligned as *rest* says: to the right."""
    rule = ["---", *[rest] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rule, *lines))


def number(value: float) -> str:
    """With three digits, or all before the point."""
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - floor(log10(value)))}f}"


def rough(value: float) -> str:
    """With two digits: no more of what is computed is worth reading."""
    if value < 10:
        return f"{value:.2g}"
    return f"{round(value, 1 - floor(log10(value))):,.0f}"


def percent(part: float) -> str:
    return f"{100 * part:.1f} %" if 0 < part < 0.1 else f"{100 * part:.0f} %"


def spread(values: Sequence[float]) -> str:
    """Lowest and highest."""
    return f"{number(min(values))}–{number(max(values))}"
