"""The Lua scripts, as texts to send and digests to name them by.

A script as the server receives it is the head, the operation's quick path where it has one, what
it uses of the files for many operations, and its own file. The quick path thus defines nothing
that it does not need. Comments and indentation are not sent.
"""

import functools
import hashlib
import re
from importlib import resources
from typing import NamedTuple

from redsem_async._core.keys import Mode

from .linking import Statement, linked, statements

_SHARED = ("ramp", "holders", "hubs")


class Script(NamedTuple):
    """One operation in one mode."""

    text: str
    sha: str


@functools.cache
def layout() -> int:
    """The number of this layout of the keys, which the head has."""
    head = resources.files("redsem_async") / "lua" / "head.lua"
    line = re.search(r"^local LAYOUT = '(\d+)'$", head.read_text(encoding="utf-8"), re.MULTILINE)
    assert line is not None
    return int(line[1])


@functools.cache
def script(mode: Mode, operation: str, sharded: bool = False) -> Script:  # noqa: FBT001, FBT002
    """Join the files of *operation*, with *sharded* if messages stay within a shard."""
    keyed, slotted, rated = "+keys" in mode or "+share" in mode, "+slots" in mode, "+rate" in mode
    tell = _files("tell/shard" if sharded else "tell/hub")
    order = ("keyed", "keyed_order") if keyed else ("order",)
    rates = _files("buckets") if rated else []
    is_quick = not slotted and not (rated and keyed and operation == "acquire")
    quick = _files(f"quick/{operation}") if is_quick else []
    head = linked(_files("head", "refusal"), [*tell, *_files("quick/usual"), *rates], quick)
    shared = [*rates, *_files(*_SHARED, *["slots"] * slotted, "queue", *order, "serve")]
    shared += _files("rate") if rated else []
    statements = linked(head, [*tell, *shared], _files(operation))
    text = "\n".join(each.text for each in statements)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _files(*names: str) -> list[Statement]:
    return [statement for name in names for statement in _statements(name)]


@functools.cache
def _statements(name: str) -> list[Statement]:
    """Those of a file; none if there is no such file, because few operations have a quick path."""
    file = resources.files("redsem_async") / "lua" / f"{name}.lua"
    return statements(file.read_text("utf-8")) if file.is_file() else []
