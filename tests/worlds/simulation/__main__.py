"""``python -m tests.worlds.simulation``: run schedules until there were so many operations."""

import argparse
import sys
from collections import Counter

from .schedule import explain, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.worlds.simulation", description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule")
    parser.add_argument("--most-violations", type=int, default=5)
    options = parser.parse_args()
    faults, ends = Counter[str](), Counter[str]()
    operations = schedules = violations = 0
    while operations < options.operations and violations < options.most_violations:
        world = simulate(options.seed + schedules)
        schedules += 1
        operations += world.operations
        faults += world.faults
        ends += world.ends
        if world.violations:
            violations += 1
            print(explain(world))
    for title, counts in (("fault", faults), ("end", ends)):
        print(*(f"{title} {kind:24} {count}" for kind, count in sorted(counts.items())), sep="\n")
    print(f"{schedules} schedules, {operations} operations: {violations} violations")
    return bool(violations)


if __name__ == "__main__":
    sys.exit(main())
