"""``python -m tests.worlds.soak --minutes 60 --processes 8``."""

import argparse
import asyncio
import sys
from dataclasses import asdict

from tests.worlds.soak.plan import FAULTS, Plan
from tests.worlds.soak.run import Soak


def main() -> int:
    default = Plan()
    parser = argparse.ArgumentParser(prog="tests.worlds.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=default.seconds / 60)
    value: float
    for name, value in asdict(default).items():
        if name not in ("seconds", "faults"):
            parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--faults", nargs="*", default=FAULTS, metavar="FAULT", choices=FAULTS)
    given = vars(parser.parse_args())
    soak = Soak(Plan(seconds=60 * given.pop("minutes"), **given))
    asyncio.run(soak.run())
    checker = soak.checker
    print(f"{soak.seconds:,.0f} s, {checker.scripts.total():,} scripts,", end=" ")
    print(f"{checker.grants:,} grants, {checker.joined:,} stays")
    for title, counts in (("fault", soak.faults), ("outcome", soak.outcomes)):
        print(*(f"{title}: {what} {count:,}" for what, count in counts.most_common()), sep="\n")
    missing = [fault for fault in soak.plan.faults if not soak.faults[fault]]
    print(*(f"never happened: {fault}" for fault in missing), sep="\n")
    for trace in checker.traces:
        print("what led to a violation:", *trace, sep="\n")
    print(*checker.wrong[:50], f"violations: {checker.counts.total()}", sep="\n")
    return bool(missing or checker.counts)


if __name__ == "__main__":
    sys.exit(main())
