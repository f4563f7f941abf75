"""What a mutant is: a promise broken by a small change of a function, which is found by its name.

A name is the end of the dotted name of a module, class or function, of Python's or of a Lua file:
``Lease.renew``, ``lua.acquire``, ``keyed.removed``. What is changed in it is a piece of its syntax
tree, or for Lua of its words, so neither moving code nor its form makes a mutant stale.

The runners of the package index make every small change there is of Python's operators. They know
no Lua, where most promises are kept, nor which test is meant to notice what.
"""

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE = "redsem_async"
_WORD = re.compile(r"""--[^\n]*|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[\w.]+|\S""")
_OPENS, _CLOSES = {"function", "if", "do", "repeat"}, {"end", "until"}
Found = TypeVar("Found")
_Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Stale(Exception):
    """The place that a mutant changes is not there exactly once: the package has moved on."""


class Change(NamedTuple):
    """In *where*, *old* becomes *new*; where *old* is empty, the whole body does."""

    where: str
    old: str
    new: str


class Mutant(NamedTuple):
    """A promise that is broken by *changes*, and *tests* catch it. It is one of a *group*."""

    promise: str
    tests: list[str]
    changes: list[Change]
    group: str

    def texts(self) -> Mapping[Path, str]:
        """The changed files."""
        texts: dict[Path, str] = {}
        for change in self.changes:
            [(path, name)] = _one(names().get(change.where, []), change)
            text = texts.get(path) or path.read_text(encoding="utf-8")
            changed = _lua if path.suffix == ".lua" else _python
            texts[path] = changed(text, name, change)
        return texts


def read_mutants() -> list[Mutant]:
    """All of mutants.txt."""
    found: list[Mutant] = []
    group, text = "", Path(__file__).with_name("mutants.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        what, _, rest = line.strip().partition(": ")
        if line.startswith("    "):
            old, _, new = f"{rest} ".partition("=> ")
            pieces = (piece.strip().replace("\\n", "\n") for piece in (old, new))
            found[-1].changes.append(Change(what, *pieces))
        elif line.startswith("  "):
            found.append(Mutant(what, [f"test_{test}" for test in rest.split("; ")], [], group))
        elif line:
            group = line
    return found


def _one(found: list[Found], what: object) -> list[Found]:
    if len(found) != 1:
        raise Stale(f"{len(found)} times, and not once: {what}")
    return found


# -- names


@functools.cache
def names() -> Mapping[str, list[tuple[Path, str]]]:
    """The files and names within them by every end of a dotted name."""
    found: dict[str, list[tuple[Path, str]]] = {}
    for path in sorted((CHECKOUT / PACKAGE).rglob("*")):
        if path.suffix not in {".py", ".lua"}:
            continue
        text = path.read_text(encoding="utf-8")
        module = ".".join(path.relative_to(CHECKOUT).with_suffix("").parts)
        inner = _lua_scopes(text) if path.suffix == ".lua" else _scopes(ast.parse(text))
        for name in dict(inner):
            parts = f"{module}.{name}".strip(".").split(".")
            for first in range(len(parts)):
                found.setdefault(".".join(parts[first:]), []).append((path, name))
    return found


def lines_of(path: Path, name: str) -> int:
    """How many lines a function has, or a class, or the whole file."""
    text = path.read_text(encoding="utf-8")
    if not name:
        return len(text.splitlines())
    if path.suffix == ".lua":
        words = dict(_lua_scopes(text))[name]
        return text.count("\n", words[0].start(), words[-1].end()) + 1
    scope = dict(_scopes(ast.parse(text)))[name]
    assert not isinstance(scope, ast.Module)
    return (scope.end_lineno or 0) - scope.lineno + 1


# -- Python


def _scopes(node: _Scope, name: str = "") -> Iterator[tuple[str, _Scope]]:
    yield name, node
    for inner in node.body:
        if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _scopes(inner, f"{name}.{inner.name}".strip("."))


def _python(text: str, name: str, change: Change) -> str:
    tree = ast.parse(text)
    scope = dict(_scopes(tree))[name]
    new = ast.parse(change.new).body
    if not change.old:
        scope.body = new
    else:
        replaced = _Replaced(ast.parse(change.old).body, new)
        replaced.visit(scope)
        _one([0] * replaced.count, change)
    return ast.unparse(ast.fix_missing_locations(tree))


class _Replaced(ast.NodeTransformer):
    """Replaces an expression by another, or statements that follow each other by others."""

    def __init__(self, old: list[ast.stmt], new: list[ast.stmt]) -> None:
        self.count = 0
        self._old = [ast.dump(statement) for statement in old]
        self._new = new
        self._expression: tuple[str, ast.expr] | None = None
        if isinstance(old[0], ast.Expr) and isinstance(new[0], ast.Expr):
            self._expression = ast.dump(old[0].value), new[0].value

    def visit(self, node: ast.AST) -> ast.AST:
        if self._expression and ast.dump(node) == self._expression[0]:
            self.count += 1
            return self._expression[1]
        for field in ("body", "orelse", "finalbody"):
            if isinstance(body := getattr(node, field, None), list) and not self._expression:
                setattr(node, field, self._statements(cast("list[ast.stmt]", body)))
        return self.generic_visit(node)

    def _statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        size = len(self._old)
        for i in range(len(body) - size + 1):
            if [ast.dump(statement) for statement in body[i : i + size]] == self._old:
                self.count += 1
                return [*body[:i], *self._new, *body[i + size :]]
        return body


# -- Lua


def _words(text: str) -> list[re.Match[str]]:
    return [word for word in _WORD.finditer(text) if not word[0].startswith("--")]


def _lua_scopes(text: str) -> Iterator[tuple[str, list[re.Match[str]]]]:
    """The words of the file, and those of each function that has a name."""
    words = _words(text)
    yield "", words
    opened: list[int] = []
    for i, word in enumerate(words):
        if word[0] in _OPENS:
            opened.append(i)
        elif word[0] in _CLOSES:
            first = opened.pop()
            if words[first][0] == "function" and words[first + 1][0] != "(":
                yield words[first + 1][0], words[first : i + 1]


def _lua(text: str, name: str, change: Change) -> str:
    words = dict(_lua_scopes(text))[name]
    texts, old = [word[0] for word in words], [word[0] for word in _words(change.old)]
    first, last = texts.index(")") + 1, len(words) - 2
    if old:
        found = [i for i in range(len(words)) if texts[i : i + len(old)] == old]
        [first] = _one(found, change)
        last = first + len(old) - 1
    return f"{text[: words[first].start()]} {change.new} {text[words[last].end() :]}"
