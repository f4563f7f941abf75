"""Simulated client processes: hub ids, connections and commands, without the library's hub.

The library's Codec encodes the commands. Each is written separately, as by many processes, and
many are in flight at a time, as on a busy server.
"""

import secrets
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from typing import Any, cast

from redis import Redis

from redsem_async._core.keys import Address, channel, new_hub_id
from redsem_async._protocol.hub_info import HubInfo, describe
from redsem_async._protocol.operations import Acquire, Heartbeat, Operation, Refresh, Release
from redsem_async._protocol.replies import Reply
from redsem_async._redis.codec import Codec

from .figures import Mode

LEASE_MS = 10_000
PROCESSES = 20  # that write concurrently
DESCRIPTION = HubInfo(describe(label=None, host="worker-0001.example", pid=12345, started=1.8e9))


class Process:
    """A process from the server's view: a hub id, a connection and a subscription."""

    def __init__(self, client: Redis, codec: Codec) -> None:
        self.hub = new_hub_id()
        self._codec = codec
        self._tags = count(1)
        self._numbers = count(1)
        self._in_flight: list[Operation] = []
        self._connection = cast("Any", client.connection_pool.get_connection())
        self._connection.send_command("SUBSCRIBE", channel(codec.address.prefix, self.hub))
        self._connection.send_command("PING")
        self._connection.read_response()  # push messages are skipped

    def numbers(self, size: int) -> list[int]:
        """Numbers for *size* new requests."""
        return [next(self._numbers) for _ in range(size)]

    def write(self, call: Operation) -> None:
        """Send an operation."""
        script, arguments = self._codec.encode(call, next(self._tags), self.hub)
        self._connection.send_command("EVALSHA", script.sha, *arguments)
        self._in_flight.append(call)

    def read(self) -> Reply:
        """Read the reply to the oldest operation."""
        reply = self._codec.reply(self._in_flight.pop(0), self._connection.read_response())
        assert isinstance(reply, Reply)
        return reply


class SemaphoreInUse:
    """A semaphore with a unique name, and processes that use it.

    *ticking*: the semaphore's clock is `now_us`, which the caller sets.
    """

    def __init__(self, client: Redis, mode: Mode, *, processes: int, ticking: bool = False):
        name = f"scaling-{secrets.token_hex(6)}"
        self.now_us = time.time_ns() // 1000
        self.address = Address(mode, "redsem", name, "local" if ticking else "server")
        codec = Codec(self.address, lambda: self.now_us)
        self.processes = [Process(client, codec) for _ in range(processes)]
        for call in (
            Acquire([1], LEASE_MS, 1),
            Release(self.processes[0].hub, [1]),
            Refresh([1], LEASE_MS),
            Heartbeat(LEASE_MS),
        ):
            client.script_load(codec.encode(call, 1, self.processes[0].hub)[0].text)
        # Register all processes, so that only calls after the first are measured.
        for process in self.processes:
            numbers = process.numbers(1)
            process.write(Acquire(numbers, LEASE_MS, processes, hub_info=DESCRIPTION))
            process.write(Release(process.hub, numbers))
            expect(process.read(), granted)
            expect(process.read(), bool)


@contextmanager
def in_use(
    url: str, mode: Mode, *, processes: int = PROCESSES, ticking: bool = False
) -> Generator[SemaphoreInUse]:
    """A `SemaphoreInUse` for the length of a block."""
    with closing(Redis.from_url(url, protocol=3, max_connections=processes + 1)) as client:
        used = SemaphoreInUse(client, mode, processes=processes, ticking=ticking)
        try:
            yield used
        finally:
            client.connection_pool.disconnect()
            client.delete(*used.address.keys)


def all_at_once(
    processes: Sequence[Process],
    call: Callable[[Process], Operation],
    expected: Callable[[int], bool],
) -> None:
    """All processes write, then all read, so that many commands are in flight."""
    for process in processes:
        process.write(call(process))
    for process in processes:
        expect(process.read(), expected)


def expect(reply: Reply, expected: Callable[[int], bool]) -> None:
    """Check that the operation did what the measurement assumes."""
    for answer in reply.answers:
        if not isinstance(answer, int) or not expected(answer):
            raise AssertionError(f"unexpected reply: {answer}")


def granted(answer: int) -> bool:
    return answer > 0
