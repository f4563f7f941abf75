"""What a mutant is: a promise broken on purpose, by changing a few words of the package."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = "redsem_async/lua/"
SPECIFICATION = "redsem_async/testing/_spec/"


class Stale(Exception):
    """The text that a mutant changes does not occur exactly once: the package has moved on."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one place in one file."""

    path: str
    old: str
    new: str

    def applied_to(self, text: str) -> str:
        count = text.count(self.old)
        if count != 1:
            raise Stale(f"{self.path} has {count} times, and not once: {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One thing that is wrong.

    Attributes:
        breaks: the promise that is broken by it.
        target: what is meant to catch it, see `target`.
    """

    name: str
    breaks: str
    target: str
    edits: tuple[Edit, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(edit.path for edit in self.edits))

    @property
    def kind(self) -> str:
        if any(path.startswith(SPECIFICATION) for path in self.paths):
            return "design"
        return "script" if self.paths[0].startswith(SCRIPTS) else "client"

    def texts(self, root: Path) -> Mapping[str, str]:
        """The changed files, as they are below *root* but for the change."""
        texts: dict[str, str] = {}
        for edit in self.edits:
            text = texts.get(edit.path) or (root / edit.path).read_text(encoding="utf-8")
            texts[edit.path] = edit.applied_to(text)
        return texts

    def apply(self, root: Path) -> None:
        for path, text in self.texts(root).items():
            (root / path).write_text(text, encoding="utf-8")


def mutant(name: str, breaks: str, target: str, *edits: tuple[str, str, str]) -> Mutant:
    """A mutant, its edits being (file in the package, old, new)."""
    changes = tuple(Edit(f"redsem_async/{e[0]}", e[1], e[2]) for e in edits)
    return Mutant(name, breaks, target, changes)
