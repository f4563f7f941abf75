"""``python -m tests.mutants``: break one promise after another, and see which layer notices."""

import argparse
import fnmatch
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from .layers import LAYERS, Layer
from .mutant import Mutant
from .mutants import MUTANTS
from .table import on_paper, on_terminal
from .trial import Verdict, copy_with, judge

_UNCHANGED = "nothing is changed"


class Results:
    """The verdicts so far, kept in a file if there is one, so that a run can go on later."""

    def __init__(self, path: Path | None) -> None:
        self.verdicts: dict[str, dict[str, Verdict]] = {}
        self._path = path
        if path is not None and path.exists():
            for mutant, found in json.loads(path.read_text(encoding="utf-8")).items():
                self.verdicts[mutant] = {
                    layer: Verdict(**facts | {"passing": tuple(facts["passing"])})
                    for layer, facts in found.items()
                }

    def of(self, mutant: str) -> dict[str, Verdict]:
        return self.verdicts.setdefault(mutant, {})

    def add(self, mutant: str, layer: Layer, verdict: Verdict) -> None:
        self.of(mutant)[layer.name] = verdict
        if self._path is not None:
            facts = {
                name: {layer: asdict(verdict) for layer, verdict in found.items()}
                for name, found in self.verdicts.items()
            }
            self._path.write_text(json.dumps(facts, indent=1), encoding="utf-8")


def main() -> int:
    """Run the mutants, and say who caught them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    names = [layer.name for layer in LAYERS]
    parser.add_argument(
        "--first", action="store_true", help="stop at the first layer that catches"
    )
    parser.add_argument("--layers", nargs="*", choices=names, default=names)
    parser.add_argument("--only", nargs="*", metavar="PATTERN", help="names of mutants")
    parser.add_argument("--results", type=Path, help="keep them here, and go on from there")
    parser.add_argument("--markdown", type=Path, help="write the table as a page")
    parser.add_argument("--part", metavar="K/N", help="every Nth mutant, from the Kth on")
    options = parser.parse_args()
    console = Console()
    chosen = _chosen(options.only, options.part)
    layers = [layer for layer in LAYERS if layer.name in options.layers]
    results = Results(options.results)

    try:
        for mutant in chosen:
            _try(mutant, layers, results, console, first=options.first)
    except Unfit as unfit:
        console.print(f"[bold red]fails although nothing is changed:[/] {unfit}")
        return 2
    table = on_terminal(chosen, results.verdicts)
    Console(width=max(console.width, 120)).print(table)
    if options.markdown is not None:
        on_paper(MUTANTS, results.verdicts, options.markdown)
    missed = [m.name for m in chosen if not _caught(results.of(m.name))]
    console.print(f"{len(chosen)} mutants, {len(chosen) - len(missed)} caught")
    for name in missed:
        console.print(f"[bold red]caught by nobody:[/] {name}")
    return bool(missed)


def _chosen(patterns: Sequence[str] | None, part: str | None) -> list[Mutant]:
    chosen = [
        mutant
        for mutant in MUTANTS
        if not patterns or any(fnmatch.fnmatch(mutant.name, pattern) for pattern in patterns)
    ]
    first, _, step = (part or "1/1").partition("/")
    return chosen[int(first) - 1 :: int(step)]


class Unfit(Exception):
    """A layer fails on the package as it is: what it says of mutants means nothing."""


def _see_that_it_is_fit(layer: Layer, results: Results, console: Console) -> None:
    if layer.name in results.of(_UNCHANGED):
        return
    with copy_with(None) as root:
        verdict = judge(layer, root)
    _say(_UNCHANGED, layer, verdict, console)
    if verdict.caught_by is not None or verdict.overran:
        raise Unfit(layer.name)
    results.add(_UNCHANGED, layer, verdict)


def _try(
    mutant: Mutant, layers: Sequence[Layer], results: Results, console: Console, *, first: bool
) -> None:
    known = results.of(mutant.name)
    with copy_with(mutant) as root:
        for layer in layers:
            if first and _caught(known):
                return
            if layer.name not in known and layer.looks_at(mutant):
                _see_that_it_is_fit(layer, results, console)
                results.add(mutant.name, layer, judge(layer, root))
                _say(mutant.name, layer, known[layer.name], console)


def _caught(known: dict[str, Verdict]) -> bool:
    return any(verdict.caught_by is not None for verdict in known.values())


def _say(name: str, layer: Layer, verdict: Verdict, console: Console) -> None:
    end = verdict.caught_by or ("overran" if verdict.overran else "noticed nothing")
    also = f" (failed once only: {', '.join(verdict.passing)})" if verdict.passing else ""
    line = f"{name}: {layer.name}, {verdict.seconds:.1f} s: {end}{also}"
    console.print(line, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
