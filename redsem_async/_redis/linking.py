"""Leaves out of a script what it does not use of the files that many scripts share.

Lua creates every function that a script defines each time the script runs, which costs more than
the commands of a short script, and allows 200 locals. Therefore a script carries the definitions
that its own statements reach, and no others.
"""

import functools
import re
from typing import NamedTuple

_TEXT = re.compile(r"--[^\n]*|'[^'\n]*'")
_NAME = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(\.\w+)?")
_CONTINUES = re.compile(r"\W|(?:end|else|elseif)\b")
_DEFINITION = re.compile(r"local function (\w+)|function (\w+\.\w+)|local (\w+(?:, \w+)*)")
_MEMBER = re.compile(r"^ +function (\w+\.\w+)", re.MULTILINE)


class Statement(NamedTuple):
    """A statement that is not inside another one.

    Attributes:
        defines: locals, and members of tables as ``table.member``. None for one that only acts.
        uses: every name in it, whether defined here or elsewhere.
    """

    text: str
    defines: frozenset[str]
    uses: frozenset[str]


def linked(before: str, shared: str, own: str) -> str:
    """Join *before*, the statements of *shared* that are used, and *own*."""
    there = frozenset[str]().union(*(each.defines for each in _statements(before)))
    statements = [each for each in _statements(shared) if not each.defines or each.defines - there]
    names = _names(before) | _names(own)
    kept: set[Statement] = set()
    while found := {each for each in statements if _is_used(each, names)} - kept:
        names = names.union(*(each.uses for each in found))
        kept |= found
    return "\n".join([before, *(each.text for each in statements if each in kept), own])


def _is_used(statement: Statement, names: frozenset[str]) -> bool:
    return not statement.defines or not statement.defines.isdisjoint(names)


def without_comments(text: str) -> str:
    """*text* without comments and blank lines."""
    bare = _TEXT.sub(lambda found: "" if found[0].startswith("--") else found[0], text)
    return "\n".join(line.rstrip() for line in bare.splitlines() if line.strip()) + "\n"


@functools.cache
def _statements(text: str) -> tuple[Statement, ...]:
    parts: list[str] = []
    for line in text.splitlines():
        if not line or line.startswith("--"):
            continue
        if _CONTINUES.match(line):
            parts[-1] += f"\n{line}"
        else:
            parts.append(line)
    return tuple(Statement(part, _defined(part), _names(part)) for part in parts)


def _defined(statement: str) -> frozenset[str]:
    if statement.startswith("do\n"):
        return frozenset(_MEMBER.findall(statement))
    if (match := _DEFINITION.match(statement)) is None:
        return frozenset()
    function, member, names = match.groups()
    return frozenset([function or member] if names is None else names.split(", "))


def _names(text: str) -> frozenset[str]:
    found = _NAME.findall(_TEXT.sub("''", text))
    return frozenset(name for name, _ in found) | {f"{name}{member}" for name, member in found}
