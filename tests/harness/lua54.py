"""Runs scripts in Lua 5.4, as Dragonfly does, with the commands of a real server.

A float that a command or a reply is given is an error here: 5.4 tells 2.0 from 2, and what comes
of the one and the other differs.
"""

import json
import socket
from importlib import import_module
from typing import Any, cast

import hiredis

_lua54: Any = import_module("lupa.lua54")  # whose types are known to one checker of two
_INCOMPLETE = object()
_SETUP = b"""
local ask = ...
local scripts = {}
unpack = table.unpack  -- which is there
redis = {
  pcall = ask,
  call = function(...)
    local reply = ask(...)
    if type(reply) == 'table' and reply.err then error(reply) end
    return reply
  end,
  error_reply = function(text) return { err = text } end,
}
setmetatable(_G, { __index = function(_, name) error('no global ' .. name) end })
return function(text, keys, arguments)
  KEYS, ARGV = keys, arguments
  local mistake
  if not scripts[text] then scripts[text], mistake = load(text, 'script', 't') end
  if mistake then return { err = mistake } end
  local done, reply = pcall(scripts[text])
  if done then return reply end
  return { err = type(reply) == 'table' and reply.err or tostring(reply) }
end
"""


class Lua54:
    """An interpreter, and its connection to the server at *port*."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._replies = hiredis.Reader(replyError=_Refused, notEnoughData=_INCOMPLETE)
        self._lua: Any = _lua54.LuaRuntime(encoding=None)
        self._script: Any = self._lua.execute(_SETUP, self._ask)

    def close(self) -> None:
        self._socket.close()

    def run(self, text: bytes, keys: list[bytes], arguments: list[bytes]) -> list[bytes]:
        """The command that has the server reply what the script does."""
        table = self._lua.table_from
        try:
            reply = json.dumps([self._read(self._script(text, table(keys), table(arguments)))])
        except _Refused as refused:
            return [b"EVAL", b"return redis.error_reply(ARGV[1])", b"0", str(refused).encode()]
        return [b"EVAL", b"return cjson.decode(ARGV[1])[1]", b"0", reply.encode()]

    def _ask(self, *arguments: bytes | float) -> Any:
        for argument in arguments:
            assert not isinstance(argument, float), f"{arguments} has a float"
        self._socket.sendall(packed(*arguments))
        while (reply := self._replies.gets()) is _INCOMPLETE:
            data = self._socket.recv(65536)
            assert data, "the server closed the connection"
            self._replies.feed(data)
        return self._told(reply)

    def _told(self, reply: Any) -> Any:
        if isinstance(reply, _Refused):
            return self._lua.table_from({b"err": str(reply).encode()})
        if isinstance(reply, list):
            parts = cast("Any", reply)
            return self._lua.table_from([self._told(one) for one in parts])
        return False if reply is None else reply

    def _read(self, said: Any) -> Any:
        if isinstance(said, bytes):
            return said.decode()
        if said is None or said is False:
            return None
        if isinstance(said, int):
            return said
        if isinstance(said, float):
            raise _Refused(f"ERR the reply has a float: {said}")
        if said[b"err"] is not None:
            raise _Refused(said[b"err"].decode())
        return [self._read(said[place]) for place in range(1, len(said) + 1)]


def packed(*parts: bytes | float) -> bytes:
    """A command as bytes."""
    return cast("bytes", hiredis.pack_command(cast("Any", parts)))


class _Refused(Exception):
    """An error reply."""
