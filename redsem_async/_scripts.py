"""The Lua scripts, as texts to send and digests to name them by.

A script as the server receives it is the common prelude, the prelude of its mode, and its own
file. An operation that both modes share stands once, beside the modes' folders.
"""

import functools
import hashlib
from dataclasses import dataclass
from importlib import resources

from ._keys import Mode

LIGHT_KEYS = 5  # how many of a semaphore's keys a refresh declares


@dataclass(frozen=True, slots=True)
class Script:
    """One operation in one mode."""

    text: str
    sha: str


@functools.cache
def script(mode: Mode, operation: str) -> Script:
    """Read and join the files of *operation*."""
    lua = resources.files("redsem_async") / "lua"
    own = lua / mode / f"{operation}.lua"
    if not own.is_file():
        own = lua / f"{operation}.lua"
    parts = (lua / "prelude.lua", lua / mode / "prelude.lua", own)
    text = "\n".join(part.read_text(encoding="utf-8") for part in parts)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
