"""What the figures of this library should come to."""

import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks._bench import Table

EITHER = "(Fair)?Semaphore"


@dataclass(frozen=True, slots=True)
class Aim:
    """A bound for the median of a column.

    Attributes:
        case: name of the case.
        subject: pattern of the subjects, which are those of `Row.subject`.
        column: the column of the table.
        relation: ``≤`` or ``≥``.
        bound: the most, or the least.
    """

    case: str
    subject: str
    column: str
    relation: str
    bound: float

    def missed_by(self, median: float) -> bool:
        return median > self.bound if self.relation == "≤" else median < self.bound


AIMS = (
    Aim("P1", EITHER, "time, × two minimal evalsha", "≤", 0.60),
    Aim("P2", f"{EITHER}, [0-9,]+ tasks", "÷ best Python peer", "≥", 15),
    Aim("P2", f"{EITHER}, [0-9,]+ tasks", "÷ Node", "≥", 1.3),
    Aim("P3", EITHER, "÷ asyncio.Semaphore", "≥", 0.80),
    Aim("P3", EITHER, "longest wait ÷ median", "≤", 1.3),
    Aim("P4", EITHER, "time, × hop + trip", "≤", 0.80),
    Aim("P4", EITHER, "× fastest Python peer", "≤", 1),
    Aim("P5", f"{EITHER}, .*", "connections", "≤", 1),
    Aim("P5", f"{EITHER}, .*", "commands/s", "≤", 2),
    Aim("P5", f"{EITHER}, .*", "% of a core", "≤", 1),
    Aim("P7", f"{EITHER}, .*", "commands/s", "≤", 5),
    Aim("P7", f"{EITHER}, .*", "% of a core", "≤", 3),
    Aim("P7", f"{EITHER}, .*", "lost", "≤", 0),
    Aim("P8", f"{EITHER}, .* permits", "client: bytes each", "≤", 3000),
    Aim("P9", EITHER, "÷ best Python peer", "≥", 2),
    Aim("P9", "FairSemaphore", "Jain's index", "≥", 0.99),
    Aim("P9", "Semaphore", "Jain's index", "≥", 0.95),
    Aim("P9", "Semaphore", "p99, × FairSemaphore", "≤", 3),
    Aim("P10", f"{EITHER}, 1 task", "a pair, round trips", "≤", 1.1),
    Aim("P10", f"{EITHER}, 200 tasks", "acquire p50, round trips", "≤", 1.6),
    Aim("P13", "pair, a key", "× without a key", "≤", 1.3),
    Aim("P13", r"pair, a key \(share\)", "× without a key", "≤", 1.4),
    Aim("P13", "pair, .* of another wait", "× without that line", "≤", 1.3),
    Aim("P15", f"{EITHER}, 20", "refused", "≤", 0),
    Aim("P15", f"{EITHER}, (24|30|64|(keys|hold.*), phase .)", "used, %", "≥", 80),
    Aim("P15", f"{EITHER}, (24|30|64|(keys|hold.*), phase 2)", "refused, %", "≤", 3),
    Aim("P15", f"{EITHER}, told-1", "used, %", "≥", 60),
    Aim("P15", f"{EITHER}, changing, .*", "used, %", "≥", 75),
    Aim("P15", f"{EITHER}, changing, .*", "refused, %", "≤", 4),
    Aim("P15", f"{EITHER}, down, phase 2", "refused", "≤", 150),
    Aim("P15", f"{EITHER}, down, phase 3", "used, %", "≥", 70),
    Aim("P15", f"{EITHER}, .*", "scripts an answer", "≤", 2.5),
    Aim("P16", "FairSemaphore, .*", "most at once, ÷ burst", "≤", 1),
    Aim("P16", "FairSemaphore, (requests|tokens, settled)", "used, %", "≥", 99),
    Aim("P16", "FairSemaphore, requests", "scripts a grant", "≤", 2.2),
)


def missed(tables: Iterable[Table]) -> list[str]:
    """The missed aims, one line each."""
    return [
        f"{table.case} ({table.loop}): {row.subject}: {aim.column} {aim.relation} {aim.bound:g};"
        f" it is {median:.3g}"
        for table in tables
        for row in table.rows
        for aim in AIMS
        if aim.case == table.case
        and re.fullmatch(aim.subject, row.subject)
        and (values := row.figures.get(aim.column))
        and aim.missed_by(median := statistics.median(values))
    ]
