"""The Lua scripts, as texts to send and digests to name them by.

A script as the server receives it is the head, the operation's quick path where it has one, the
way messages are published, the common prelude, the prelude of its mode, and its own file: what the
quick path does not need is not even defined when it is taken. An operation that both modes share
stands once, beside the modes' folders.
"""

import functools
import hashlib
from importlib import resources
from typing import NamedTuple

from redsem_async._core.keys import Mode

LIGHT_KEYS = 4  # how many of a semaphore's keys a refresh declares


class Script(NamedTuple):
    """One operation in one mode."""

    text: str
    sha: str


@functools.cache
def script(mode: Mode, operation: str, sharded: bool = False) -> Script:  # noqa: FBT001, FBT002
    """Read and join the files of *operation*. *sharded*: messages stay within a shard."""
    lua = resources.files("redsem_async") / "lua"
    own = lua / mode / f"{operation}.lua"
    if not own.is_file():
        own = lua / f"{operation}.lua"
    quick = lua / "quick" / f"{operation}.lua"
    tell = lua / "tell" / ("shard.lua" if sharded else "hub.lua")
    preludes = (tell, lua / "prelude.lua", lua / mode / "prelude.lua")
    parts = (lua / "head.lua", *([quick] if quick.is_file() else []), *preludes, own)
    text = "\n".join(part.read_text(encoding="utf-8") for part in parts)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
