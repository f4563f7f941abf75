"""A TCP proxy in front of a server, that loses, delays and holds back what a test asks for.

It reads the commands that pass, so that a fault can strike one operation of the library and
no other, and it says when it did: a test of a lost reply proves that the reply was lost.
"""

import asyncio
import hashlib
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, Self

import hiredis
from redis import Redis

from redsem_async._core.keys import MODES
from redsem_async._redis.scripts import script

_OPERATIONS = (
    *("acquire", "release", "refresh", "abandon", "heartbeat", "adopt"),
    *("detach", "status", "set_limit", "back_off", "reap", "delete"),
)
_INCOMPLETE = object()


@cache
def _operations() -> dict[str, str]:
    return {script(mode, op).sha: op for mode in MODES for op in _OPERATIONS}


def load_scripts(client: Redis) -> None:
    """Have the server know the scripts, so that a fault does not strike a call that it refuses."""
    with client.pipeline(transaction=False) as pipeline:
        for mode in MODES:
            for operation in _OPERATIONS if "slots" not in mode else ():
                pipeline.script_load(script(mode, operation).text)
        pipeline.execute()


def _operation_of(command: list[bytes]) -> str:
    """Which of the library's operations it is; otherwise the command's own name."""
    name = command[0].upper()
    if name == b"EVALSHA":
        return _operations().get(command[1].decode(), "EVALSHA")
    if name == b"EVAL":
        return _operations().get(hashlib.sha1(command[1]).hexdigest(), "EVAL")
    return name.decode()


@dataclass(frozen=True, slots=True)
class Sent:
    """A command that a client sent."""

    connection: int
    operation: str
    arguments: list[bytes]
    raw: bytes


Strike = Literal["cut", "swallow", "hold", "answer"]


@dataclass(slots=True, eq=False)
class Fault:
    """Strikes the next command of an operation, once."""

    operation: str
    kind: Strike
    answer: bytes = b""
    struck: asyncio.Event = field(default_factory=asyncio.Event)
    sent: Sent | None = None
    reply: int = 0  # which of the connection's replies is meant
    lifted: asyncio.Event = field(default_factory=asyncio.Event)

    def lift(self) -> None:
        """Let pass what is held back."""
        self.lifted.set()


class Proxy:
    """Passes everything on to the server at *upstream*, but for what a test asks for.

    With *context* it speaks TLS, for a server that was not built with it.
    """

    def __init__(self, upstream: int, context: ssl.SSLContext | None = None) -> None:
        self.connections: list[_Connection] = []
        self.sent: list[Sent] = []
        self.refusing = False  # new connections
        self.delay = 0.0  # seconds that everything takes on its way, in each direction
        self.before: Callable[[Sent], Awaitable[object]] | None = None
        self._upstream = upstream
        self._context = context
        self._faults: deque[Fault] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", ssl=self._context)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    # -- faults

    def swallow(self, operation: str) -> Fault:
        """Pass the next such command on, lose its reply, and drop the connection then."""
        return self._fault(Fault(operation, "swallow"))

    def cut(self, operation: str) -> Fault:
        """Drop the connection instead of passing the next such command on."""
        return self._fault(Fault(operation, "cut"))

    def hold(self, operation: str) -> Fault:
        """Pass the next such command on, and hold its reply and all that follows until lifted."""
        return self._fault(Fault(operation, "hold"))

    def answer(self, operation: str, error: str) -> Fault:
        """Answer the next such command with an error, as a server would that is in trouble."""
        return self._fault(Fault(operation, "answer", f"-{error}\r\n".encode()))

    def _fault(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def stop(self, operation: str) -> asyncio.Event:
        """Pass no such command on, nor what follows it, before the event is set."""
        go_on = asyncio.Event()

        async def wait(sent: Sent) -> None:
            if sent.operation == operation:
                await go_on.wait()

        self.before = wait
        return go_on

    def drop(self) -> None:
        """Close every connection."""
        for connection in self.connections:
            connection.close()

    def half_open(self) -> None:
        """Pass nothing on any more over the present connections, and do not close them."""
        for connection in self.connections:
            connection.dead = True

    def mute(self) -> None:
        """Pass nothing on of what the server writes to the present connections."""
        for connection in self.connections:
            connection.muted = True

    def lead_to(self, port: int) -> None:
        """Pass new connections on to another server; those that are made stay where they are."""
        self._upstream = port

    def inject(self, data: bytes) -> None:
        """Write something to the clients as if the server had."""
        for connection in self.open_connections():
            connection.to_client.write(data)

    def open_connections(self) -> list["_Connection"]:
        return [connection for connection in self.connections if not connection.closed]

    def operations(self, operation: str) -> list[Sent]:
        """The commands of an operation that were sent so far."""
        return [sent for sent in self.sent if sent.operation == operation]

    def strike(self, sent: Sent) -> Fault | None:
        """The fault that waits for a command like this one."""
        for fault in self._faults:
            if fault.operation == sent.operation:
                self._faults.remove(fault)
                fault.sent = sent
                return fault
        return None

    def passed_on(self, sent: Sent) -> bytes:
        """What the server gets of a command."""
        return sent.raw

    async def _accept(self, *client: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        writers: list[asyncio.StreamWriter] = [client[1]]
        try:
            if not self.refusing:
                server = await asyncio.open_connection("127.0.0.1", self._upstream)
                writers.append(server[1])
                await self._relay(client, server)
        except (OSError, asyncio.CancelledError):
            pass  # one of them has gone, or all is over
        finally:
            for writer in writers:
                writer.transport.abort()

    async def _relay(self, client: Any, server: Any) -> None:
        """Pass on what both write, until one of them ends."""
        connection = _Connection(self, len(self.connections), client[1], server[1])
        self.connections.append(connection)
        pumps = [
            asyncio.create_task(connection.pump_commands(client[0])),
            asyncio.create_task(connection.pump_replies(server[0])),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            connection.close()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


class _Connection:
    """One client's connection, and the one made for it to the server."""

    def __init__(
        self,
        proxy: Proxy,
        number: int,
        to_client: asyncio.StreamWriter,
        to_server: asyncio.StreamWriter,
    ) -> None:
        self.proxy = proxy
        self.number = number
        self.to_client = to_client
        self.to_server = to_server
        self.closed = False
        self.dead = False
        self.muted = False
        self._replicates = False
        self._fault: Fault | None = None
        self._asked = 0
        self._answered = 0
        self._progress = asyncio.Event()
        self._replies = hiredis.Reader(notEnoughData=_INCOMPLETE)

    def close(self) -> None:
        self.closed = True
        self.to_client.transport.abort()
        self.to_server.transport.abort()

    async def pump_commands(self, reader: asyncio.StreamReader) -> None:
        while command := await read_command(reader):
            arguments, raw = command
            sent = Sent(self.number, _operation_of(arguments), arguments, raw)
            self.proxy.sent.append(sent)
            if self.proxy.before is not None:
                await self.proxy.before(sent)
            if self.dead:
                continue
            self._replicates = self._replicates or sent.operation == "PSYNC"
            fault = self.proxy.strike(sent)
            if fault is not None and not await self._passes(fault):
                continue
            self._asked += 1
            self._send(self.to_server, self.proxy.passed_on(sent))

    async def _passes(self, fault: Fault) -> bool:
        """Prepare for *fault*; whether its command is passed on all the same."""
        if fault.kind == "answer":
            while self._answered < self._asked:  # in its turn
                self._progress.clear()
                await self._progress.wait()
            self._send(self.to_client, fault.answer)
            fault.struck.set()
            return False
        if fault.kind == "cut":
            self.close()
            fault.struck.set()
            return False
        fault.reply = self._asked + 1
        self._fault = fault
        return True

    async def pump_replies(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65536):
            self._count(data)
            fault = self._fault
            if fault is not None:
                if self._answered < fault.reply:
                    if fault.kind == "hold":
                        self._send(self.to_client, data)
                    continue
                fault.struck.set()
                if fault.kind == "swallow":
                    return
                await fault.lifted.wait()
                self._fault = None
            if not (self.dead or self.muted):
                self._send(self.to_client, data)
            self._progress.set()

    def _count(self, data: bytes) -> None:
        if self._replicates:  # a file comes, and then writes: no replies
            return
        self._replies.feed(data)
        while (item := self._replies.gets()) is not _INCOMPLETE:
            # A subscription is confirmed by a push, which is its reply.
            if not isinstance(item, hiredis.PushNotification) or item[0] == b"subscribe":
                self._answered += 1

    def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self.proxy.delay > 0:
            loop = asyncio.get_running_loop()
            loop.call_later(self.proxy.delay, self._write, writer, data)
        else:
            self._write(writer, data)

    def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if not (self.closed or self.dead or writer.transport.is_closing()):
            writer.write(data)


async def read_command(reader: asyncio.StreamReader) -> tuple[list[bytes], bytes] | None:
    """The next command's arguments, and its bytes; None at the end."""
    try:
        head = await reader.readuntil(b"\r\n")
        raw, arguments = [head], list[bytes]()
        for _ in range(int(head[1:])):
            size = await reader.readuntil(b"\r\n")
            text = await reader.readexactly(int(size[1:]) + 2)
            arguments.append(text[:-2])
            raw += [size, text]
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return arguments, b"".join(raw)


async def say_again(port: int, sent: Sent) -> object:
    """Let the server run a command once more, as it came, from a connection of nobody's.

    That is what a duplicate is that the network kept for a while.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    replies = hiredis.Reader(notEnoughData=_INCOMPLETE)
    writer.write(sent.raw)
    while (reply := replies.gets()) is _INCOMPLETE:
        data = await asyncio.wait_for(reader.read(65536), 10)
        assert data, "the server closed the connection"
        replies.feed(data)
    writer.close()
    await writer.wait_closed()
    return reply
