"""What a doctor says."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"  # worth knowing
    UNKNOWN = "unknown"  # this user may not ask
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        about: what.
        verdict: how bad it is.
        text: what was found.
        advice: what to change, where something should be.
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
