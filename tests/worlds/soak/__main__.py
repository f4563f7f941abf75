"""``python -m tests.worlds.soak --minutes 60 --processes 8``."""

import argparse
import asyncio
import sys

from tests.worlds.soak.plan import FAULTS, Plan
from tests.worlds.soak.run import Report, soak

OPTIONS = {
    "processes": "",
    "tasks": "of each process",
    "names": "of semaphores",
    "seed": "",
    "pause": "s between faults",
    "rest": "s between stays",
    "hold": "s, longest as a rule",
}


def main() -> int:
    default = Plan()
    parser = argparse.ArgumentParser(prog="tests.worlds.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=default.seconds / 60)
    for name, what in OPTIONS.items():
        value: float = getattr(default, name)
        parser.add_argument(f"--{name}", type=type(value), default=value, help=what)
    parser.add_argument("--faults", nargs="*", default=FAULTS, metavar="FAULT", choices=FAULTS)
    parser.add_argument("--operations", type=int, help="end when so many were checked")
    given = vars(parser.parse_args())
    report = asyncio.run(soak(Plan(seconds=60 * given.pop("minutes"), **given)))
    show(report)
    return 1 if report.violations or report.never_happened else 0


def show(report: Report) -> None:
    checker = report.checker
    facts: dict[str, object] = {
        "time": f"{report.seconds:,.0f} s, {report.plan.processes} processes",
        "scripts in the journal": checker.scripts.total(),
        "operations checked": checker.operations,
        "checked per second": round(checker.operations / max(report.checking, 1e-9)),
        "grants": checker.grants,
        "stays of clients": f"{report.stays:,}, {checker.history.joined:,} joined",
        "faults caused": report.faults.total(),
        "violations": checker.findings.counts.total(),
        "semaphores with every permit": report.tried,
        "left over": len(report.leftovers),
        "keys left, that expire": f"{report.keys_left:,}, within {report.longest_ttl:,.0f} s",
        "growth": len(report.growth),
        **{f"fault: {what}": count for what, count in report.faults.most_common()},
        **{f"script: {what}": count for what, count in checker.scripts.most_common()},
        **{f"outcome: {what}": count for what, count in report.outcomes.most_common()},
    }
    for number, (early, late) in enumerate(report.sizes):
        facts[f"process {number}"] = f"{early}, later {late}"
    for what, value in facts.items():
        print(f"{what:32} {value:,}" if isinstance(value, int) else f"{what:32} {value}")
    for fault in report.never_happened:
        print(f"never happened: {fault}")
    for trace in checker.traces:
        print("what led to a violation:", *trace, sep="\n")
    print(*report.violations[:50], sep="\n")


if __name__ == "__main__":
    sys.exit(main())
