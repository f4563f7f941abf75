"""Error replies as redis-py's errors, and what they mean for the command that got them."""

import re
from urllib.parse import unquote

import redis.exceptions as errors

from redsem_async._protocol.errors import CommandError, ErrorKind, LayoutUse, NameUse

_MODE = re.compile(
    r"\bMODE ((?:fair|zset)(?:\+keys|\+share)?(?:\+rate)?(?:\+slots)? (?:server|local)(?: \S+)?)"
    r" (\d{1,16}) (\d{1,16}) (-?\d{1,16})"
)
_LAYOUT = re.compile(r"\bLAYOUT (\d{1,5}) (\d{1,5}) ([\w.+!,-]+) (-?\d{1,16})")
_SLOTS = re.compile(r"\bSLOTS ([\w.~%,-]+)")

# A script's own error arrives bare (7.0 on), or wrapped and prefixed (6.2), so look for the word.
_KINDS = (
    (ErrorKind.RETRY_NOW, re.compile(r"\b(NOSCRIPT|REORDERED|UNKNOWNHUB|VOID)\b")),
    (ErrorKind.NO_MEMORY, re.compile(r"\bOOM\b")),
    # The last one comes from a server without HELLO, to a connection that has not logged in.
    (ErrorKind.READ_ONLY, re.compile(r"\b(READONLY|MASTERDOWN|NOAUTH)\b")),
    (ErrorKind.RETRY_LATER, re.compile(r"\b(TRYAGAIN|CLUSTERDOWN)\b")),
    (ErrorKind.BUSY, re.compile(r"\b(BUSY|LOADING|NOREPLICAS|MISCONF|UNKILLABLE)\b")),
)
_REDIRECTION = re.compile(r"(MOVED|ASK) \d+ (.*):(\d{1,5})\Z")
_CLASSES: tuple[tuple[str, type[errors.RedisError]], ...] = (
    ("NOPERM", errors.NoPermissionError),
    ("NOAUTH", errors.AuthenticationError),
    ("OOM", errors.OutOfMemoryError),
    ("READONLY", errors.ReadOnlyError),
    ("LOADING", errors.BusyLoadingError),
    ("NOSCRIPT", errors.NoScriptError),
)

# A server that knows a command by another name, or not at all, quotes the arguments it got, and
# the ids of hubs are what makes the ids of permits hard to guess.
_QUOTED = re.compile(r",? with args beginning with.*|\b[0-9a-f]{32}\b(\.\d+)?", re.DOTALL)


def error_from(text: str) -> errors.RedisError:
    """Return redis-py's error for an error reply, without the arguments that it may quote."""
    text = _QUOTED.sub("…", text)
    for word, kind in _CLASSES:
        if re.search(rf"\b{word}\b", text):
            return kind(text)
    return errors.ResponseError(text)


def command_error(error: Exception) -> CommandError:
    """Return what an error reply means for the command that got it."""
    text = str(error)
    if redirection := _REDIRECTION.match(text):
        word, host, port = redirection.groups()
        return CommandError(ErrorKind[word], error, (host, int(port)))
    if layout := _LAYOUT.search(text):
        found, own, versions, left_ms = layout.groups()
        known = () if versions == "-" else tuple(sorted(versions.split(",")))
        of_layout = LayoutUse(int(found), int(own), known, _seconds(left_ms))
        return CommandError(ErrorKind.LAYOUT_MISMATCH, error, layout=of_layout)
    if mode := _MODE.search(text):
        kind, held, alive, left_ms = mode.groups()
        use = NameUse(kind, int(held) > 0, int(held) == int(alive) == 0, _seconds(left_ms))
        return CommandError(ErrorKind.MODE_MISMATCH, error, use=use)
    if slots := _SLOTS.search(text):
        names = [unquote(slot) for slot in slots[1].split(",")]
        return CommandError(ErrorKind.SLOTS_MISMATCH, error, slots=names)
    for what, pattern in _KINDS:
        if pattern.search(text):
            return CommandError(what, error)
    return CommandError(ErrorKind.REFUSED, error)


def _seconds(left_ms: str) -> float | None:
    """The seconds, unless they are not known, which is a negative number."""
    return int(left_ms) / 1000 if int(left_ms) >= 0 else None
