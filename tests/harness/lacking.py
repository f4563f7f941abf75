"""A proxy that makes a plain server lack what services and forks of Redis lack.

It refuses commands, and puts a line before each script that hides what their interpreters hide. It
knows nothing of the library. With ``REDSEM_LACKS=time`` (or several, with commas) the server that
the tests run on is behind one.
"""

import asyncio
import hashlib
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

from tests.harness.lua54 import Lua54, packed
from tests.harness.proxy import Proxy, Sent

REQUESTED = tuple(filter(None, os.environ.get("REDSEM_LACKS", "").split(",")))

_NOT_ALLOWED = "{err = 'ERR This Redis command is not allowed from script'}"

# What the log says once of a server that lacks something.
REMARKS = ("lacks features that the library works around", "no push messages come")

# What a script does before a `command` is called, with `how` call or pcall.
_INSTEAD = {
    "time": f"if command == 'TIME' then local no = {_NOT_ALLOWED}"
    " if how == 'call' then error(no) end return no end",
    "pexpiretime": "if command == 'PEXPIRETIME' then return {err = 'ERR unknown command'} end",
    "count": "if string.find(command, 'PUBLISH$') then"
    " local said = real[how](command, ...) return type(said) == 'number' and 0 or said end",
}
# And where it looks for the field `name`.
_HIDDEN = {"set_repl": "if name == 'set_repl' or string.find(name, '^REPL_') then return nil end"}
_REFUSED = {
    "resp3": {b"HELLO"},
    "subscribe": {b"SUBSCRIBE"},
    "admin": {b"INFO", b"CONFIG", b"CLIENT", b"SCRIPT"},
}
LACKS = (*_INSTEAD, *_HIDDEN, *_REFUSED, "lua51")


class Lacking(Proxy):
    """Passes on to the server at *port* what it does not lack.

    Attributes:
        met: whether anything was asked for that it lacks.
    """

    def __init__(self, port: int, *lacks: str) -> None:
        assert set(lacks) <= set(LACKS), lacks
        super().__init__(port)
        self._refused = set[bytes]().union(*(_REFUSED.get(lack, set[bytes]()) for lack in lacks))
        self._before = _shadow(lacks)
        self._lua = Lua54(port) if "lua51" in lacks else None
        self._shas: dict[bytes, bytes] = {}
        self._texts: dict[bytes, bytes] = {}
        self._query = "?protocol=2" if "resp3" in lacks else ""  # for the tests' own clients
        self.lacks = lacks
        self.met = False

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        if self._lua is not None:
            self._lua.close()

    @property
    def url(self) -> str:
        return super().url + self._query

    def passed_on(self, sent: Sent) -> bytes:
        self.sent.clear()  # nobody asks, and a whole run may pass through here
        return packed(*self._changed(sent.arguments))

    def _changed(self, command: list[bytes]) -> list[bytes]:
        name = command[0].upper()
        if name in self._refused:
            self.met = True
            # The server replies to it, as to what it does not know, in its turn.
            return [b"REFUSED_" + name]
        if name not in (b"EVAL", b"EVALSHA") or not (self._before or self._lua):
            return command
        self.met = True
        sha = hashlib.sha1(command[1]).hexdigest().encode() if name == b"EVAL" else command[1]
        if name == b"EVAL":
            self._texts[sha] = command[1]
            if self._before:
                command[1] = b"%s return (function() %s\nend)()" % (self._before, command[1])
                self._shas[sha] = hashlib.sha1(command[1]).hexdigest().encode()
        elif self._before:
            command[1] = self._shas.get(sha, b"0" * 40)
        if self._lua is not None and sha in self._texts:
            keys = 3 + int(command[2])
            return self._lua.run(self._texts[sha], command[3:keys], command[keys:])
        return command


def _shadow(lacks: tuple[str, ...]) -> bytes:
    """What stands before a script: another table `redis`."""
    instead = " ".join(_INSTEAD[lack] for lack in lacks if lack in _INSTEAD)
    hidden = " ".join(_HIDDEN[lack] for lack in lacks if lack in _HIDDEN)
    if not (instead or hidden):
        return b""
    called = (
        "local function called(how) return function(command, ...)"
        f" {instead} return real[how](command, ...) end end"
    )
    return (
        f"local redis = (function(real) {called} return setmetatable("
        "{call = called('call'), pcall = called('pcall')},"
        f" {{__index = function(_, name) {hidden} return real[name] end}}) end)(redis)"
    ).encode()


@contextmanager
def server_that_lacks(port: int, *lacks: str) -> Generator[str]:
    """The URL of a stand-in that runs in a thread of its own, for all event loops."""
    loop = asyncio.new_event_loop()
    stand_in = Lacking(port, *lacks)
    loop.run_until_complete(stand_in.__aenter__())
    thread = threading.Thread(target=loop.run_forever, name="stand-in")
    thread.start()
    try:
        yield stand_in.url
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(stand_in.__aexit__())
        loop.close()
