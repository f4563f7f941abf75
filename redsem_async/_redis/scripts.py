"""The Lua scripts, as texts to send and digests to name them by.

A script as the server receives it is the head, the operation's quick path where it has one, what
it uses of the files for many operations (how messages are published, the prelude, slots, the queue
and how it is served, with or without keys), and its own file. The quick path thus defines nothing
that it does not need.
"""

import functools
import hashlib
import re
from importlib import resources
from typing import NamedTuple

from redsem_async._core.keys import Mode

from .linking import linked

LIGHT_KEYS = 4  # how many of a semaphore's keys a refresh declares


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
        files = [lua / name for name in names if name and (lua / name).is_file()]
        return "\n".join(file.read_text(encoding="utf-8") for file in files)

    head = joined(
        "slots/keys.lua" if slotted else "", "keyed/keys.lua" if keyed else "", "head.lua"
    )
    tell = joined("tell/shard.lua" if sharded else "tell/hub.lua", "settled.lua")
    quick = joined(f"{'keyed/' * keyed}quick/{operation}.lua") if not slotted else ""
    shared = joined(
        "prelude.lua",
        "slots/prelude.lua" if slotted else "",
        "queue.lua",
        "keyed/prelude.lua" if keyed else "serve.lua",
    )
    own = joined(f"{operation}.lua")
    text = linked(linked(head, tell, quick), tell + shared, own)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
