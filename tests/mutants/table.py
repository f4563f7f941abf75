"""The table of mutant x layer: on the terminal, and as a page of the docs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from .layers import LAYERS, Layer
from .mutant import Mutant
from .trial import Verdict

Verdicts = Mapping[str, Mapping[str, Verdict]]
"""By mutant, then by layer."""

_INTRODUCTION = """\
# The checkers are checked

A test that cannot fail proves nothing. So promises are broken on purpose, one at a time, and every
layer of tests is asked whether it notices. `nox -s mutants` does so, and fails when one of the
{mutants} mutants is caught by no layer; `python -m tests.mutants --first` stops at the first layer
that catches. A mutant is *caught* when a test fails, and fails again by itself: one failure on a
busy machine is luck. It is first seen that nothing fails where nothing is changed.

Seconds are to the first failure, the second look included. An empty cell: the layer was run and
noticed nothing. A dash: what was changed is not under test there. A question mark: it was not
asked, as a layer before it had caught the mutant. Every layer is cut to about a minute or two
here; what runs in the test suite, and in the long sessions, is more.
"""

_KINDS = {
    "script": "Mutants of the scripts",
    "client": "Mutants of the client",
    "design": "Mutants of the design: scripts and specification wrong in the same way",
}


def cell(layer: Layer, mutant: Mutant, verdict: Verdict | None) -> str:
    """What stands in the table."""
    if not layer.looks_at(mutant):
        return "–"
    if verdict is None:
        return "?"
    if verdict.caught_by is not None:
        return f"{verdict.seconds:.0f} s"
    return "overran" if verdict.overran else ""


def on_terminal(mutants: Sequence[Mutant], verdicts: Verdicts) -> Table:
    """One row for each mutant."""
    table = Table("mutant", *(layer.name for layer in LAYERS))
    for mutant in mutants:
        found = verdicts.get(mutant.name, {})
        cells = [cell(layer, mutant, found.get(layer.name)) for layer in LAYERS]
        caught = any(verdict.caught_by for verdict in found.values())
        table.add_row(mutant.name, *cells, style=None if caught else "bold red")
    return table


def on_paper(mutants: Sequence[Mutant], verdicts: Verdicts, path: Path) -> None:
    """Write the page."""
    parts = [
        _INTRODUCTION.format(mutants=len(mutants)),
        "| layer | what looks, and at what | caught, of those it was asked about |",
    ]
    parts.append("| --- | --- | --- |")
    for layer in LAYERS:
        asked = [
            verdict
            for mutant in mutants
            if (verdict := verdicts.get(mutant.name, {}).get(layer.name)) is not None
        ]
        caught = sum(verdict.caught_by is not None for verdict in asked)
        parts.append(f"| {layer.name} | {layer.what} | {caught} of {len(asked)} |")
    for kind, title in _KINDS.items():
        some = [mutant for mutant in mutants if mutant.kind == kind]
        if some:
            parts += ["", f"## {title}", "", *_rows(some, verdicts)]
    parts += ["", "## What caught them first", "", *_catchers(mutants, verdicts), ""]
    path.write_text("\n".join(parts), encoding="utf-8")


def _rows(mutants: Sequence[Mutant], verdicts: Verdicts) -> list[str]:
    names = [layer.name for layer in LAYERS]
    rows = ["| mutant | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
    for mutant in mutants:
        found = verdicts.get(mutant.name, {})
        cells = [cell(layer, mutant, found.get(layer.name)) for layer in LAYERS]
        rows.append(f"| {mutant.name} | " + " | ".join(cells) + " |")
    return rows


def _catchers(mutants: Sequence[Mutant], verdicts: Verdicts) -> list[str]:
    lines: list[str] = []
    for mutant in mutants:
        found = verdicts.get(mutant.name, {})
        by = [(n, v.caught_by) for n, v in found.items() if v.caught_by is not None]
        first = f"{by[0][0]}: `{by[0][1][:200]}`" if by else "**nobody**"
        lines.append(f"- *{mutant.name}* ({mutant.breaks}): {first}")
    return lines
