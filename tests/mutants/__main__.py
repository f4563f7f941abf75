"""``python -m tests.mutants``: break one promise after another; each has to be missed."""

import argparse
import fnmatch
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .mutant import Mutant
from .mutants import MUTANTS
from .page import page
from .trial import Verdict, judge, unfit


class Results:
    """The verdicts so far, kept in a file if there is one, so that a run can go on later."""

    def __init__(self, path: Path | None) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.fit: set[str] = set()
        self._path = path
        if path is not None and path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            self.fit = set(kept["fit"])
            self.verdicts = {name: Verdict(**facts) for name, facts in kept["verdicts"].items()}

    def knows(self, mutant: Mutant) -> bool:
        """Whether it was caught by what is its target now."""
        found = self.verdicts.get(mutant.name)
        return found is not None and found.target == mutant.target and found.caught_by is not None

    def add(self, mutant: Mutant, verdict: Verdict) -> None:
        self.verdicts[mutant.name] = verdict
        self.save()

    def save(self) -> None:
        if self._path is not None:
            verdicts = {name: asdict(verdict) for name, verdict in self.verdicts.items()}
            kept = {"fit": sorted(self.fit), "verdicts": verdicts}
            self._path.write_text(json.dumps(kept, indent=1), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="PATTERN", help="names of mutants")
    parser.add_argument("--part", metavar="K/N", help="every Nth mutant, from the Kth on")
    parser.add_argument("--results", type=Path, help="keep them here, and go on from there")
    parser.add_argument("--markdown", type=Path, help="write the table as a page")
    options = parser.parse_args()
    chosen = _chosen(options.only, options.part)
    results = Results(options.results)

    new = [mutant for mutant in chosen if not results.knows(mutant)]
    targets = dict.fromkeys(mutant.target for mutant in new if mutant.target not in results.fit)
    if complaints := unfit(list(targets)):
        for what, complaint in complaints.items():
            print(f"although nothing is changed: {what}: {complaint}")
        return 2
    results.fit |= targets.keys()
    results.save()
    for mutant in new:
        verdict = judge(mutant)
        results.add(mutant, verdict)
        end = verdict.caught_by or f"NOT CAUGHT by {verdict.target}: {verdict.otherwise}"
        print(f"{mutant.name}: {verdict.seconds:.1f} s: {end}", flush=True)
    if options.markdown is not None:
        options.markdown.write_text(page(MUTANTS, results.verdicts), encoding="utf-8")
    missed = [mutant.name for mutant in chosen if not results.knows(mutant)]
    print(f"{len(chosen)} mutants, {len(chosen) - len(missed)} caught by what they are meant for")
    for name in missed:
        print(f"not caught: {name}")
    return bool(missed)


def _chosen(patterns: Sequence[str] | None, part: str | None) -> list[Mutant]:
    chosen = [
        mutant
        for mutant in MUTANTS
        if not patterns or any(fnmatch.fnmatch(mutant.name, pattern) for pattern in patterns)
    ]
    first, _, step = (part or "1/1").partition("/")
    return chosen[int(first) - 1 :: int(step)]


if __name__ == "__main__":
    sys.exit(main())
