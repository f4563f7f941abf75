"""Servers that a test scripts, in the place of the network: bytes in, bytes out.

They stand where redis-py opens a socket. What is above that is real: its connection with the
handshake, ours that takes the streams over, and the hub. In simulated time nothing takes any.
"""

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import hiredis

from redsem_async._core.keys import Address
from redsem_async._protocol.backend import AnyReply
from redsem_async._protocol.errors import CommandError
from redsem_async._protocol.operations import AnyOperation
from redsem_async._protocol.pushes import Push
from redsem_async.testing._redis import ErrorReply, MemoryRedis

SILENCE = b""  # in the place of a reply


def packed(value: Any, sign: bytes = b"*") -> bytes:
    """A reply in RESP. A list may have another *sign*, such as that of a push message."""
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, str | bytes):
        text = value.encode() if isinstance(value, str) else value
        return b"$%d\r\n%s\r\n" % (len(text), text)
    return b"%s%d\r\n" % (sign, len(value)) + b"".join(map(packed, value))


def packed_map(value: Mapping[str, Any]) -> bytes:
    return b"%%%d\r\n" % len(value) + b"".join(map(packed, chain(*value.items())))


def push(*parts: Any) -> bytes:
    return packed(parts, b">")


def error(text: str) -> bytes:
    return f"-{text}\r\n".encode()


class Wire(asyncio.Transport):
    """A connection as its server has it.

    Attributes:
        sent: the commands that came over it.
    """

    def __init__(self, peer: "Peer | None" = None) -> None:
        super().__init__()
        self.sent: list[list[bytes]] = []
        self.channels: set[bytes] = set()
        self.protocol: Any = None
        self.resp3 = False
        self._peer = peer
        self._commands = hiredis.Reader()
        self._closing = False

    @property
    def names(self) -> list[str]:
        """The names of the commands since this was last looked at."""
        sent, self.sent = self.sent, []
        return [each[0].decode() for each in sent]

    def write(self, data: Any) -> None:
        if self._closing:
            return
        self._commands.feed(bytes(data))
        while (command := self._commands.gets()) is not False:
            arguments: Any = command
            self.sent.append(arguments)
            if self._peer is not None:
                self.say(self._peer.reply(self, arguments))

    def say(self, data: bytes) -> None:
        """Write to the client, which reads in a later turn of the loop."""
        if data:
            asyncio.get_running_loop().call_soon(self._arrive, data)

    def _arrive(self, data: bytes) -> None:
        if not self._closing:
            self.protocol.data_received(data)

    def hang_up(self) -> None:
        """End the connection from the server's side."""
        if not self.protocol.eof_received():
            self.abort()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def vanish(self) -> None:
        self._closing = True

    def is_closing(self) -> bool:
        return self._closing

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    close = abort


class Peer:
    """A server: as it comes, a Redis 7 in memory that runs scripts.

    Attributes:
        says: what it replies to the next commands of a name instead, for as long as that lasts.
        wires: its connections.
    """

    def __init__(self, network: "Network", version: str = "7.2.0") -> None:
        self.says: dict[str, Iterator[bytes]] = {}
        self.wires: list[Wire] = []
        self.version = version
        self._network = network
        self._scripts: dict[bytes, bytes] = {}

    @property
    def names(self) -> list[str]:
        """The names of the commands since this was last looked at, of all connections."""
        return [name for wire in self.wires for name in wire.names]

    def refuses(self, text: str, *names: str, times: int | None = None) -> None:
        """Reply so to these commands, or to all that have keys."""
        for name in names or ("EVAL", "EVALSHA", "SSUBSCRIBE"):
            self.says[name] = repeat(error(text)) if times is None else repeat(error(text), times)

    def reply(self, wire: Wire, command: Sequence[bytes]) -> bytes:
        """The bytes that answer *command*."""
        name, *arguments = command
        if (said := next(self.says.get(name.decode(), iter(())), None)) is not None:
            return said
        match name:
            case b"HELLO":
                wire.resp3 = True
                return packed_map({"version": self.version, "proto": 3})
            case b"INFO":
                return packed("maxmemory:0\r\nmaxmemory_policy:noeviction\r\n")
            case b"CLUSTER":
                return packed(
                    [[0, 16383, *([host, port, "id"] for host, port in self._network.nodes)]]
                )
            case b"SENTINEL":
                host, port = self._network.nodes[0]
                state = {"name": "service", "ip": host, "port": str(port), "flags": "master"}
                state |= {"num-other-sentinels": "0", "quorum": "1"}
                return b"*1\r\n" + (
                    packed_map(state) if wire.resp3 else packed([*chain(*state.items())])
                )
            case b"SUBSCRIBE" | b"SSUBSCRIBE":
                wire.channels.add(arguments[0])
                return push(name.lower(), arguments[0], 1)
            case b"SUNSUBSCRIBE":
                wire.channels.discard(arguments[0])
                return push(name.lower(), arguments[0], 0)
            case b"EVAL":
                self._scripts[hashlib.sha1(arguments[0]).hexdigest().encode()] = arguments[0]
                return self._run(arguments)
            case b"EVALSHA" if arguments[0] in self._scripts:
                return self._run([self._scripts[arguments[0]], *arguments[1:]])
            case b"EVALSHA":
                return error("NOSCRIPT No matching script.")
            case _:
                return b"+OK\r\n"

    def _run(self, arguments: Sequence[bytes]) -> bytes:
        text, *rest = arguments
        try:
            return packed(self._network.redis.eval(text.decode(), *rest))
        except ErrorReply as refused:
            return error(str(refused))


class Network:
    """Peers by host and port, which keep what they store together, as if it moved by itself.

    Attributes:
        drops: whether packets of new connections are dropped.
        loses: whether messages are lost that the server has counted.
        counts: whether PUBLISH says how many clients received a message.
        nodes: the master of all slots and its replicas, as nodes and sentinels tell.
    """

    def __init__(self) -> None:
        self.drops = self.loses = False
        self.counts = True
        self.nodes: list[tuple[str | None, int]] = [("one", 1)]
        self.peers: dict[tuple[str, int], Peer] = {}
        self.redis = MemoryRedis(self._now_us, self._publish)

    def peer(self, host: str = "one", port: int = 1, version: str = "7.2.0") -> Peer:
        """A server there."""
        return self.peers.setdefault((host, port), Peer(self, version))

    def close(self) -> None:
        """The end of the test, whose loop is gone."""
        for wire in self.wires:
            wire.vanish()

    @property
    def wires(self) -> list[Wire]:
        return [wire for peer in self.peers.values() for wire in peer.wires]

    async def open_connection(
        self, host: str, port: int, **_: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """In the place of asyncio's."""
        if self.drops:
            await asyncio.Event().wait()
        if (peer := self.peers.get((host, port))) is None:
            raise ConnectionRefusedError(f"nobody is at {host}:{port}")
        loop, wire = asyncio.get_running_loop(), Wire(peer)
        peer.wires.append(wire)
        reader = asyncio.StreamReader(loop=loop)
        wire.protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        wire.protocol.connection_made(wire)
        return reader, asyncio.StreamWriter(wire, wire.protocol, reader, loop)

    def _now_us(self) -> int:
        return 1_000_000_000_000_000 + round(asyncio.get_running_loop().time() * 1_000_000)

    def _publish(self, channel: bytes, message: bytes) -> int:
        heard = [wire for wire in self.wires if channel in wire.channels and not wire.is_closing()]
        kind = b"smessage" if b"{" in channel else b"message"
        for wire in heard if not self.loses else ():
            wire.say(push(kind, channel, message))
        return len(heard) if self.counts else 0


class Heard:
    """A listener that notes what reaches it."""

    hub_id = "0" * 32

    def __init__(self, *semaphores: Address) -> None:
        self.semaphores = semaphores
        self.replies: list[AnyReply | CommandError] = []
        self.pushes: list[tuple[str, Push]] = []
        self.gone: list[Address] = []
        self.mute: list[Exception] = []
        self.lost: list[Exception] = []
        self.resumed = 0

    def reply_received(self, command: AnyOperation, reply: AnyReply | CommandError) -> None:
        self.replies.append(reply)

    def push_received(self, prefix: str, push: Push) -> None:
        self.pushes.append((prefix, push))

    def unsubscribed(self, address: Address) -> None:
        self.gone.append(address)

    def push_unavailable(self, error: Exception) -> None:
        self.mute.append(error)

    def resume_writing(self) -> None:
        self.resumed += 1

    def connection_lost(self, error: Exception) -> None:
        self.lost.append(error)
