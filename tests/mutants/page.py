"""The page of the docs: one row for each mutant."""

from collections.abc import Mapping, Sequence

from .mutant import Mutant
from .target import is_test
from .trial import Verdict

_INTRODUCTION = """\
# The checkers are checked

A test that cannot fail proves nothing. So promises are broken on purpose, one at a time, by
changing a few words of the scripts, of the client, or of the scripts and their specification
alike. Each of these {mutants} mutants names the test that is meant to catch it, and
`nox -s mutants` runs exactly that test on a copy of the package with the change in it. It is first
seen that the test passes where nothing is changed. A mutant is *caught* when the test fails, and
fails again by itself: one failure on a busy machine is luck. The run fails when a mutant is not
caught by what it is meant for.

Seconds are until it was caught, both failures included. A mutant that was not tried when this page
was last written has none, but the test that it is meant for. *simulation* is `{simulation}`,
which does the same each time; what it found is quoted. Where a test drives two sides with the same
random steps, or reads a journal, it is named all the same; its steps are the same each time, too.
"""

_KINDS = {
    "script": "Mutants of the scripts",
    "client": "Mutants of the client",
    "design": "Mutants of the design: scripts and specification wrong in the same way",
}


def page(mutants: Sequence[Mutant], verdicts: Mapping[str, Verdict]) -> str:
    commands = {mutant.target for mutant in mutants if not is_test(mutant.target)}
    introduction = _INTRODUCTION.format(mutants=len(mutants), simulation=" ".join(commands))
    lines = [introduction.rstrip()]
    for kind, title in _KINDS.items():
        lines += ["", f"## {title}", "", "| what is wrong | promise | caught by | seconds |"]
        lines.append("| --- | --- | --- | --- |")
        lines += [
            _row(mutant, verdicts.get(mutant.name)) for mutant in mutants if mutant.kind == kind
        ]
    return "\n".join([*lines, ""])


def _row(mutant: Mutant, verdict: Verdict | None) -> str:
    if verdict is None:
        return f"| {mutant.name} | {mutant.breaks} | meant for `{mutant.target}` | |"
    if verdict.caught_by is None:
        return f"| {mutant.name} | {mutant.breaks} | **nothing** | |"
    by = verdict.caught_by.removeprefix("tests/")
    caught = f"`{by}`" if is_test(mutant.target) else f"simulation: {_escaped(by)}"
    return f"| {mutant.name} | {mutant.breaks} | {caught} | {verdict.seconds:.0f} |"


def _escaped(said: str) -> str:
    """What the simulation said, without the moment, short, and as a cell of a table."""
    text = said.partition(": ")[2].replace("|", "\\|")
    return text if len(text) <= 120 else text[:119] + "…"
