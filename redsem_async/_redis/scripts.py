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

from .linking import linked, without_comments

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
    """Read and join the files of *operation*, with *sharded* if messages stay within a shard."""
    lua = resources.files("redsem_async") / "lua"
    keyed, slotted = "+keys" in mode or "+share" in mode, "+slots" in mode

    def joined(*names: str) -> str:
        files = [lua / f"{name}.lua" for name in names]
        text = "\n".join(file.read_text("utf-8") for file in files if file.is_file())
        return without_comments(text)

    head = joined("head", "refusal")
    tell = joined("tell/shard" if sharded else "tell/hub")
    quick = "" if slotted else joined(f"quick/{operation}")
    order = ("keyed", "keyed_order") if keyed else ("order",)
    shared = joined(*_SHARED, *["slots"] * slotted, "queue", *order, "serve")
    text = linked(head, tell + joined("quick/usual"), quick)
    text = linked(text, tell + shared, joined(operation))
    text = re.sub(r"^ +", "", text, flags=re.MULTILINE)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
