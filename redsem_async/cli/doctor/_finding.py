"""The result of one check."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial


class Verdict(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    NOTE = "note"  # for the operator to judge
    UNKNOWN = "unknown"  # the user may not run the check
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    verdict: Verdict
    about: str
    text: str
    advice: str = ""  # what to change, if anything


ok = partial(Finding, Verdict.OK)
note = partial(Finding, Verdict.NOTE)
unknown = partial(Finding, Verdict.UNKNOWN)
problem = partial(Finding, Verdict.PROBLEM)
