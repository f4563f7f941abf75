"""Leaves out of a script what it does not use of the files that many scripts share.

Lua creates every function that a script defines each time the script runs, which costs more than
the commands of a short script, and allows 200 locals. Therefore a script carries the definitions
that its own statements reach, and no others.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_TEXT = re.compile(r"--[^\n]*|'[^'\n]*'")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:\.\w+)?")
_CONTINUES = re.compile(r"\W|(?:end|else|elseif)\b")
_DEFINITION = re.compile(r"local function (\w+)|function (\w+\.\w+)|local (\w+(?:, \w+)*)")
_MEMBER = re.compile(r"^ +function (\w+\.\w+)", re.MULTILINE)
_INDENTATION = re.compile(r"^ +", re.MULTILINE)


class Statement(NamedTuple):
    """A statement that is not inside another one, without comments and indentation.

    Attributes:
        defines: locals, and members of tables as ``table.member``. None for one that only acts.
        uses: every name in it, whether defined here or elsewhere.
    """

    text: str
    defines: frozenset[str]
    uses: frozenset[str]


def statements(text: str) -> list[Statement]:
    """The statements of a file."""
    parts: list[str] = []
    bare = _TEXT.sub(lambda found: "" if found[0].startswith("--") else found[0], text)
    for line in filter(None, map(str.rstrip, bare.splitlines())):
        if _CONTINUES.match(line):
            parts[-1] += f"\n{line}"
        else:
            parts.append(line)
    return [Statement(_INDENTATION.sub("", part), _defined(part), _names(part)) for part in parts]


def linked(
    before: Sequence[Statement], shared: Iterable[Statement], own: Sequence[Statement]
) -> list[Statement]:
    """Join *before*, those of *shared* that are used and not there already, and *own*."""
    there = frozenset[str]().union(*(each.defines for each in before))
    left = [each for each in shared if not each.defines or each.defines - there]
    used = set[str]().union(*(each.uses for each in (*before, *own)))
    kept: set[Statement] = set()
    while found := {each for each in left if _is_used(each, used)} - kept:
        used.update(*(each.uses for each in found))
        kept |= found
    return [*before, *(each for each in left if each in kept), *own]


def _is_used(statement: Statement, names: set[str]) -> bool:
    return not statement.defines or not statement.defines.isdisjoint(names)


def _defined(statement: str) -> frozenset[str]:
    if statement.startswith("do\n"):
        return frozenset(_MEMBER.findall(statement))
    if (match := _DEFINITION.match(statement)) is None:
        return frozenset()
    function, member, names = match.groups()
    return frozenset([function or member] if names is None else names.split(", "))


def _names(statement: str) -> frozenset[str]:
    found = {*_NAME.findall("".join(statement.split("'")[::2]))}  # not in strings
    return frozenset(found.union(name.partition(".")[0] for name in found))
