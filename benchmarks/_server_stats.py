"""What a server says about itself while something is measured."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import ResponseError

_SCRIPT_COMMANDS = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall")
SLOW = 100  # microseconds above which a script is noted


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a server was told in a while.

    Attributes:
        sent: commands a second that clients sent.
        executed: commands a second with those that scripts called.
    """

    sent: float
    executed: float


async def traffic(url: str, seconds: float) -> Traffic:
    """Listen for a while, by MONITOR.

    INFO would count what scripts call together with what was sent, and its reader too.
    """
    sent = within = 0
    async with Redis.from_url(url, socket_timeout=None) as client:
        pool = cast("Any", client.connection_pool)
        connection = await pool.get_connection()
        await connection.send_command("MONITOR")
        await connection.read_response()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while line := await connection.read_response():
                    if b" lua] " in line:
                        within += 1
                    else:
                        sent += 1
        await connection.disconnect()
    return Traffic(sent / seconds, (sent + within) / seconds)


@dataclass(frozen=True, slots=True)
class Scripts:
    """How much scripts ran, since some beginning.

    Attributes:
        calls: how many.
        microseconds: how long, in all.
    """

    calls: int
    microseconds: int

    def since(self, earlier: "Scripts") -> float:
        """Microseconds a script, since then."""
        calls = self.calls - earlier.calls
        return (self.microseconds - earlier.microseconds) / calls if calls else 0.0


async def scripts(client: Redis) -> Scripts:
    """How much scripts ran so far."""
    info: dict[str, dict[str, int]] = await client.info("commandstats")
    rows = [info[name] for name in _SCRIPT_COMMANDS if name in info]
    return Scripts(sum(row["calls"] for row in rows), sum(row["usec"] for row in rows))


@dataclass(slots=True)
class Slowest:
    """The longest that a command took, in milliseconds; the least is what was noted at all."""

    ms: list[float] = field(default_factory=lambda: [SLOW / 1000])


@asynccontextmanager
async def slowest(client: Redis) -> AsyncGenerator[Slowest]:
    """Watch for slow commands for the length of a block.

    A server that lets nobody configure it gives no answer: ``ms`` is empty then.
    """
    found = Slowest()
    wanted = {"slowlog-log-slower-than": str(SLOW), "slowlog-max-len": "4096"}
    try:
        before = {name: str((await client.config_get(name))[name]) for name in wanted}
        for name, value in wanted.items():
            await client.config_set(name, value)
    except ResponseError:
        found.ms = []
        yield found
        return
    await client.slowlog_reset()
    try:
        yield found
        entries = await client.slowlog_get(4096)
        # The other slow things are our own looks at the server.
        ms = [entry["duration"] / 1000 for entry in entries if b"EVAL" in entry["command"].upper()]
        found.ms = [max([SLOW / 1000, *ms])]
    finally:
        for name, value in before.items():
            await client.config_set(name, value)


async def connections(client: Redis) -> int:
    """How many clients are connected."""
    return int((await client.info("clients"))["connected_clients"])


async def used_memory(client: Redis) -> int:
    """Bytes that the server uses, connections included."""
    return int((await client.info("memory"))["used_memory"])


async def key_memory(client: Redis, name: str) -> int:
    """Bytes of all keys that have *name* in theirs."""
    scan = cast("AsyncIterator[bytes]", client.scan_iter(f"*{name}*", count=1000))
    keys = [key async for key in scan]
    sizes = [await client.memory_usage(key, samples=0) for key in keys]
    return sum(size or 0 for size in sizes)
