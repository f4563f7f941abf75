"""The result of one check."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    NOTE = "note"  # for the operator to judge
    UNKNOWN = "unknown"  # the user may not run the check
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        about: the subject of the check.
        verdict: the severity.
        text: the result.
        advice: what to change, if anything.
    """

    about: str
    verdict: Verdict
    text: str
    advice: str = ""


def ok(about: str, text: str) -> Finding:
    return Finding(about, Verdict.OK, text)


def note(about: str, text: str, advice: str = "") -> Finding:
    return Finding(about, Verdict.NOTE, text, advice)


def unknown(about: str, text: str, advice: str) -> Finding:
    return Finding(about, Verdict.UNKNOWN, text, advice)


def problem(about: str, text: str, advice: str) -> Finding:
    return Finding(about, Verdict.PROBLEM, text, advice)
