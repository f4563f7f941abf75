"""Replaces tables in a document. Each is between two comments."""

import re
from collections.abc import Mapping, Sequence
from math import floor, log10

_TABLE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables_in(text: str) -> list[str]:
    """The names of the tables in *text*."""
    return [match[2] for match in _TABLE.finditer(text)]


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """*text* with its tables replaced.

    Raises:
        ValueError: *text* does not have exactly these tables, once each.
    """
    if sorted(tables_in(text)) != sorted(tables):
        raise ValueError(f"the document has tables {tables_in(text)}, not {list(tables)}")
    return _TABLE.sub(lambda match: f"{match[1]}\n{tables[match[2]]}\n\n{match[3]}", text)


def table(headings: Sequence[str], lines: Sequence[Sequence[str]], rest: str = "---:") -> str:
    """A table in Markdown. *rest* aligns all columns except the first."""
    rule = ["---", *[rest] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rule, *lines))


def number(value: float) -> str:
    """*value* with three digits, or as a whole number from 100 on."""
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - floor(log10(value)))}f}"


def rough(value: float) -> str:
    """*value* with two digits, because computed values are no more precise."""
    if value < 10:
        return f"{value:.2g}"
    return f"{round(value, 1 - floor(log10(value))):,.0f}"


def percent(part: float) -> str:
    return f"{100 * part:.1f} %" if 0 < part < 0.1 else f"{100 * part:.0f} %"


def spread(values: Sequence[float]) -> str:
    """The lowest and the highest value."""
    return f"{number(min(values))}–{number(max(values))}"
