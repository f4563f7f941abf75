"""``python -m tests.worlds.simulation``: run schedules until there were so many operations."""

import argparse
import sys
import time
from collections import Counter

from .schedule import explain, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.worlds.simulation", description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule")
    parser.add_argument("--only", type=int, help="one schedule, with its trace")
    parser.add_argument("--most-violations", type=int, default=5)
    options = parser.parse_args()
    if options.only is not None:
        outcome = simulate(options.only, traced=True)
        print("\n".join(outcome.trace or ()))
        print("\n".join(outcome.violations) or "no violation")
        return bool(outcome.violations)

    started = time.perf_counter()
    faults: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    operations = grants = schedules = violations = 0
    seconds = 0.0
    while operations < options.operations and violations < options.most_violations:
        outcome = simulate(options.seed + schedules)
        schedules += 1
        operations += outcome.operations
        grants += outcome.grants
        seconds += outcome.seconds
        faults += outcome.faults
        ends += outcome.ends
        if outcome.violations:
            violations += 1
            print(explain(outcome))
    spent = time.perf_counter() - started
    print(
        f"{schedules} schedules, {operations} operations, {grants} grants,"
        f" {sum(ends.values())} attempts: {violations} violations"
    )
    print(f"{seconds:.0f} simulated seconds in {spent:.1f} s")
    for title, counts in (("faults", faults), ("ends of attempts", ends)):
        print(f"{title}:")
        for kind, count in sorted(counts.items()):
            print(f"  {kind:24} {count}")
    return bool(violations)


if __name__ == "__main__":
    sys.exit(main())
