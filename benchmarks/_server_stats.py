"""Statistics of a server during a measurement."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.exceptions import ResponseError

_SCRIPT_COMMANDS = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall")
SLOW = 100  # microseconds; slower scripts are in the slow log


@dataclass(frozen=True, slots=True)
class Traffic:
    """The commands that a server received.

    Attributes:
        sent: commands per second sent by clients.
        executed: commands per second including those called by scripts.
    """

    sent: float
    executed: float


async def traffic(url: str, seconds: float) -> Traffic:
    """Count commands with MONITOR for *seconds*.

    INFO does not separate commands of scripts from commands of clients, and counts itself.
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


@contextmanager
def script_times(url: str, name: str) -> Generator[list[tuple[float, float]]]:
    """Begin and end of each script with *name* in its keys, known after the block.

    MONITOR states the server's clock at the call and after each command inside it; the last of
    these is the end. On one machine this clock is ``time.time()``, converted to the monotonic one.
    """
    found: list[tuple[float, float]] = []
    ahead = max(time.time() - time.monotonic() for _ in range(9))  # a pause in between lowers it
    with BlockingRedis.from_url(url) as client, client.monitor() as monitor:
        yield found
        # Read only now: a reader would take a core from the processes that are measured.
        client.echo(end := secrets.token_hex(8))
        ours = False
        for line in cast("Generator[dict[str, Any]]", monitor.listen()):
            at = line["time"] - ahead
            if line["client_type"] != "lua":
                if end in line["command"]:
                    break
                ours = line["command"].upper().startswith("EVALSHA ") and name in line["command"]
                found += [(at, at)] * ours
            elif ours:
                found[-1] = (found[-1][0], at)


@dataclass(frozen=True, slots=True)
class Scripts:
    """Totals of all script calls.

    Attributes:
        calls: number of calls.
        microseconds: total duration.
    """

    calls: int
    microseconds: int

    def since(self, earlier: "Scripts") -> float:
        """Microseconds per script call since *earlier*."""
        calls = self.calls - earlier.calls
        return (self.microseconds - earlier.microseconds) / calls if calls else 0.0


async def scripts(client: Redis) -> Scripts:
    """The totals so far."""
    info: dict[str, dict[str, int]] = await client.info("commandstats")
    rows = [info[name] for name in _SCRIPT_COMMANDS if name in info]
    return Scripts(sum(row["calls"] for row in rows), sum(row["usec"] for row in rows))


@dataclass(slots=True)
class Slowest:
    """The duration of the slowest script in milliseconds, at least the threshold `SLOW`."""

    ms: list[float] = field(default_factory=lambda: [SLOW / 1000])


@asynccontextmanager
async def slowest(client: Redis) -> AsyncGenerator[Slowest]:
    """Record the slowest script during a block, with the slow log.

    If CONFIG is not allowed, ``ms`` is empty.
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
        # Other slow commands are queries of the benchmark itself.
        ms = [entry["duration"] / 1000 for entry in entries if b"EVAL" in entry["command"].upper()]
        found.ms = [max([SLOW / 1000, *ms])]
    finally:
        for name, value in before.items():
            await client.config_set(name, value)


async def cpu_time(client: Redis) -> float:
    """The CPU time of the server so far, in seconds."""
    info = await client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


async def connections(client: Redis) -> int:
    """The number of connected clients."""
    return int((await client.info("clients"))["connected_clients"])


async def used_memory(client: Redis) -> int:
    """The memory of the server in bytes, including connections."""
    return int((await client.info("memory"))["used_memory"])


async def key_memory(client: Redis, name: str) -> int:
    """The memory in bytes of all keys that contain *name*."""
    scan = cast("AsyncIterator[bytes]", client.scan_iter(f"*{name}*", count=1000))
    keys = [key async for key in scan]
    sizes = [await client.memory_usage(key, samples=0) for key in keys]
    return sum(size or 0 for size in sizes)
