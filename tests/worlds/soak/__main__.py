"""``python -m tests.worlds.soak --minutes 60 --processes 8``."""

import argparse
import asyncio
import sys
from dataclasses import asdict

from tests.worlds.soak.plan import Plan
from tests.worlds.soak.run import Soak


def main() -> int:
    default = Plan()
    parser = argparse.ArgumentParser(prog="tests.worlds.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=default.seconds / 60)
    value: float
    for name, value in asdict(default).items():
        if name not in ("seconds", "faults"):
            parser.add_argument(f"--{name}", type=type(value), default=value)
    given = vars(parser.parse_args())
    soak = Soak(Plan(seconds=60 * given.pop("minutes"), **given))
    asyncio.run(soak.run())
    checker = soak.checker
    print(
        f"{checker.scripts.total():,} scripts, {checker.grants:,} grants, {checker.joined:,} stays"
    )
    print(*(soak.faults + soak.outcomes).most_common(), sep="\n")
    for trace in checker.traces:
        print("what led to a violation:", *trace, sep="\n")
    print(*checker.wrong[:50], f"violations: {checker.counts.total()}", sep="\n")
    return bool(checker.counts) or not soak.complete


if __name__ == "__main__":
    sys.exit(main())
