"""What is explored: processes with their jobs, and how much may go wrong. Most of it is data.

With ``REDSEM_MODELCHECK=long`` each thing may go wrong once more, in every mode.
"""

import os
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

from redsem_async import AnySemaphore, FairSemaphore, Semaphore
from redsem_async._core.keys import Mode, with_slots

LONG = os.environ.get("REDSEM_MODELCHECK") == "long"
NAME = "jobs"


class Budget(NamedTuple):
    """How often each thing may happen, in all processes together."""

    cancels: int = 0  # a job is cancelled in the middle of a call
    cuts: int = 0  # a link breaks; what was on its way to the server may run later, or never
    unnoticed: int = 0  # of the cuts and kills, those that the server does not learn of
    lates: int = 0  # commands of a broken link that run after all
    ticks: int = 0  # time passes although something is on its way
    kills: int = 0
    stops: int = 0  # a process stands still, and goes on later


@dataclass(frozen=True, slots=True)
class Party:
    """A process.

    Attributes:
        jobs: what each does, as `Job` reads it, with ``|`` between them. Each starts when the
            search says so.
        may: what may happen to it: ``c`` its jobs are cancelled, of which digits name some, ``b``
            its link breaks, ``d`` it is killed, or stands still.
    """

    jobs: str
    may: str = ""
    limit: int = 1
    lease: float = 10.0
    key_limit: int | None = None
    weight_of_b: float = 1.0
    patience: float | None = None

    def semaphore(self, client: Any, mode: Mode) -> AnySemaphore:
        options: dict[str, Any] = {"lease": self.lease, "limit": self.limit}
        if "+slots" in mode:
            options = {"lease": self.lease, "slots": range(self.limit)}
        if "zset" in mode:
            return Semaphore(client, NAME, **options)
        if "+keys" in mode or "+share" in mode:
            options["key_limit"] = self.key_limit
        if "+share" in mode:
            weight = {"b": self.weight_of_b}.get
            options |= {"share": True, "patience": self.patience}
            options["weight"] = lambda key: cast("float", weight(key, 1.0))
        return FairSemaphore(client, NAME, **options)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A few processes that use one semaphore.

    Attributes:
        opening: what has happened before the search begins: ``10`` if the first job of the second
            process has begun, ``10.`` if all that follows has, too.
        grain: seconds that pass at least when time passes.
        release: whether the gate leaves it to a release.
    """

    name: str
    parties: tuple[Party, ...]
    budget: Budget
    opening: str
    grain: float
    mode: Mode = "fair"
    release: bool = False

    def __str__(self) -> str:
        return f"{self.mode} {self.name}"


def _scenario(
    gate: str,
    later: str,
    name: str,
    *parties: Party,
    opening: str = "",
    grain: float = 0.05,
    **costs: int,
) -> list[Scenario]:
    """One for each mode: those of the *gate*, and those that come *later*."""
    found = Scenario(name, parties, Budget(**costs), opening, grain)
    modes = cast("list[Mode]", [*gate.split(), *later.split()])
    if not LONG:
        return [replace(found, mode=m, release=m not in gate.split()) for m in modes]
    each = dict.fromkeys([*modes, *(with_slots(m) for m in modes if "+slots" not in m)])
    budget = Budget(*(count + 1 if count else 0 for count in found.budget))
    return [replace(found, mode=mode, budget=budget) for mode in each]


_fair = partial(_scenario, "fair", "zset")
_both = partial(_scenario, "fair zset", "")
_slots = partial(_scenario, "fair fair+slots", "zset")
_keys = partial(_scenario, "fair+keys", "")
_key_slots = partial(_scenario, "fair+keys fair+keys+slots", "")
_later = partial(_scenario, "")
_share = partial(_scenario, "fair+share", "")

_one, _free, _waiter = Party("take"), Party("take", "cbd"), Party("take stay")
_two, _short, _mortal = (
    Party("take", limit=2),
    Party("take", lease=3.0),
    Party("take", "d", lease=3.0),
)
_late = "00. 10."

SCENARIOS: list[Scenario] = [
    # -- calls
    *_both("a cancellation", _one, _free, _waiter, opening="00.", cancels=1),
    *_fair("a lost link and a cancellation", _free, _one, opening="10.", cancels=1, cuts=1),
    *_scenario(
        *("fair zset fair+slots zset+slots", "", "a lost link and late commands", _free, _one),
        opening="10.",
        cuts=1,
        unnoticed=1,
        lates=1,
    ),
    *_both("a waiter's deadline", _one, Party("try", "cbd"), opening=_late, grain=0.2, ticks=1),
    *_slots(
        *("a detach that is lost", Party("take wait detach", "bd"), _waiter),
        opening="00. 10. 00",
        cuts=1,
        ticks=1,
    ),
    *_fair(
        *("a detach, again", Party("take wait detach-again", "cbd"), _waiter),
        opening="00. 10. 00",
        grain=0.4,
        cancels=1,
        ticks=1,
    ),
    *_later(
        *("fair zset", "an adoption and a cancelled acquire", Party("take send")),
        Party("adopt|take", "1bd"),
        opening="00. 10 10 11",
        cancels=1,
        cuts=1,
    ),
    *_slots(
        *("an adoption that is cancelled", Party("take send"), Party("adopt", "cbd")),
        opening="00.",
        cancels=1,
        cuts=1,
        lates=1,
    ),
    *_later(
        *("fair zset", "two adopters", Party("take send show"), Party("adopt|adopt", "bd")),
        opening="00. 10. 11.",
        cuts=1,
    ),
    # -- orders and limits
    *_fair("two limits", Party("limit:3 limit:2", "cbd"), _one, cuts=1, lates=1),
    *_fair(
        *("a limit and a back-off", Party("limit:3 limit:2|take wait back-off", "bd")),
        opening="01.",
        cuts=1,
    ),
    *_fair(
        *(
            "a back-off that is ended",
            Party("take wait back-off", "bd"),
            Party("end-back-off", "d"),
        ),
        opening="00.",
        cuts=1,
        lates=1,
    ),
    *_fair("a pause", Party("limit:0 limit:", "bd"), _one, cuts=1, lates=1),
    *_fair("a deletion", Party("delete take", "cbd"), _one, opening="10.", cuts=1, lates=1),
    *_scenario(
        *("zset fair+slots zset+slots", "fair", "weights", Party("take:2", "cbd", 2), _two, _two),
        opening="20. 00.",
        cancels=1,
    ),
    *_both(
        *("mixed limits", Party("take", limit=2), _one, Party("take|take", limit=2)),
        opening="00. 20. 10. 21.",
    ),
    *_both(
        *("a limit of 0", Party("take|take", limit=2), Party("try|try", limit=0)),
        opening="00. 10. 11.",
        grain=0.2,
    ),
    *_both("a process dies", _mortal, _short, kills=1, unnoticed=1),
    *_later(
        *("fair zset", "a process stands still", _mortal, Party("take stay", lease=3.0)),
        opening=_late,
        grain=1.6,
        stops=1,
        ticks=1,
    ),
]

_a, _b = Party("take@a", limit=2, key_limit=1), Party("take@b", limit=2, key_limit=1)
_loose = replace(_a, may="c")
_heavy = Party("take@a", limit=3, key_limit=2)
_old, _dies = replace(_a, lease=3.0), replace(_a, lease=3.0, may="d")
_same = Party("take@a", limit=2, key_limit=2)

SCENARIOS += [
    # -- limits of keys
    *_keys("a key that is full", _a, _loose, _b, opening=_late, cancels=1),
    *_key_slots(
        *("a heavy head of its key", _heavy, replace(_heavy, jobs="take:2@a", may="c"), _heavy),
        opening=_late,
        cancels=1,
    ),
    *_key_slots(
        *("the overall limit, and keys", replace(_heavy, limit=2)),
        *(Party("take:2@b", "c", 2, key_limit=2), Party("take", limit=2, key_limit=2)),
        opening=_late,
        cancels=1,
    ),
    *_keys(
        *("limits of a key", replace(_a, jobs="limit:2@a wait limit:1@a")),
        replace(_a, jobs="take@a|take@a"),
        opening="10. 11.",
    ),
    *_later(
        *("fair+keys", "limits of a key, and a lost link"),
        replace(_a, jobs="limit:2@a wait limit:1@a", may="b"),
        replace(_a, jobs="take@a|take@a"),
        opening="10. 11.",
        cuts=1,
        lates=1,
    ),
    *_keys(
        *("a key is paused", replace(_a, jobs="limit:0@a wait limit:@a")),
        replace(_loose, jobs="take@a|take@b"),
        opening="10.",
        cancels=1,
    ),
    *_keys(
        *("all is paused, and keys", replace(_a, jobs="limit:0 wait limit:")),
        replace(_a, jobs="take@a|take@b"),
        opening="10.",
    ),
    *_key_slots(
        *(
            "a revoked permit, and a key",
            replace(_a, jobs="take@a show"),
            Party("revoke", "", 2, key_limit=1),
        ),
        _a,
        opening="00. 20.",
    ),
    *_key_slots(
        *("a permit with a key expires", replace(_a, jobs="take@a detach"), _loose),
        opening=_late,
        grain=0.3,
        ticks=2,
        cancels=1,
    ),
    *_key_slots(
        *(
            "an adoption, and a key",
            replace(_a, jobs="take@a send"),
            replace(_loose, jobs="adopt"),
        ),
        _a,
        opening="00. 20.",
        cancels=1,
    ),
    *_key_slots(
        *("a deletion, and keys", replace(_a, jobs="delete take@a")),
        replace(_a, jobs="take@a|take@a"),
        opening="10. 11.",
    ),
    # -- losses
    *_key_slots(
        *("a link with keys is lost", _a, replace(_loose, may="cb")),
        opening=_late,
        cuts=1,
        unnoticed=1,
        lates=1,
    ),
    *_key_slots(
        *("a process with a key dies", _dies, replace(_old, jobs="take@a|take@b")),
        opening=_late,
        kills=1,
        unnoticed=1,
    ),
    *_keys(
        *("a waiter with a key dies", _old, _dies, _old),
        opening="00. 10. 20.",
        kills=1,
        unnoticed=1,
    ),
    *_later(
        *("fair+keys", "a process with a key stands still", _dies),
        replace(_old, jobs="take@a stay|take@b"),
        opening=_late,
        grain=1.6,
        ticks=1,
        stops=1,
    ),
    *_keys(
        *("a deadline, and a key", _a, replace(_a, jobs="try@a|take@a")),
        opening="00. 10. 11.",
        grain=0.2,
        ticks=1,
    ),
    *_keys(
        *("a head start", _same, replace(_same, jobs="take:2@b")),
        replace(_same, jobs="take@c>20", may="c"),
        opening=_late,
        cancels=1,
    ),
    *_keys(
        *("a blocked key, and a head start", _a, _a, replace(_a, jobs="take@a>5")), opening=_late
    ),
    # -- shares
    *_later(
        *("fair+share", "shares", Party("take@a|take@a", limit=2, patience=3600.0)),
        *(Party("take@a", limit=2, patience=3600.0), Party("take@b", limit=2, patience=3600.0)),
        opening="00. 01. 10.",
    ),
    *_later(
        *("fair+share", "shares, and the limit of a key"),
        replace(_a, patience=3600.0, weight_of_b=2.0),
        replace(_a, jobs="take@a|take@b", may="c", patience=3600.0),
        opening=_late,
        cancels=1,
    ),
    *_share(
        *("shares, and a process dies", Party("take@a", "d", lease=3.0, patience=3600.0)),
        Party("take@a|take@b", lease=3.0, patience=3600.0),
        opening=_late,
        kills=1,
    ),
    *_later(
        *("fair+share", "shares, and patience", Party("take@a", patience=3600.0)),
        Party("take@a|take@b", patience=0.2),
        opening=_late,
        grain=0.4,
        ticks=1,
    ),
]
