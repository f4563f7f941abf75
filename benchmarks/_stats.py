"""What a server and a process use."""

import asyncio
import contextlib
import gc
import os
import resource
import secrets
import sys
import time
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from benchmarks._children import Context


async def traffic(url: str, seconds: float) -> tuple[float, float]:
    """Commands per second that clients send, and including those that scripts call, by MONITOR.

    INFO does not separate commands of scripts from commands of clients, and counts itself.
    """
    sent = within = 0
    async with Redis.from_url(url, socket_timeout=None) as client:
        connection = await cast("Any", client.connection_pool).get_connection()
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
    return sent / seconds, (sent + within) / seconds


async def scripts_run(client: Redis) -> tuple[float, float]:
    """How many scripts the server ran, and the time that it took for them, in µs."""
    stats: dict[str, dict[str, float]] = await client.info("commandstats")
    ran = [of for name, of in stats.items() if name.endswith(("_eval", "_evalsha"))]
    return sum(of["calls"] for of in ran), sum(of["usec"] for of in ran)


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
    keys = cast("AsyncIterator[bytes]", client.scan_iter(f"*{name}*", count=1000))
    sizes = [await client.memory_usage(key, samples=0) async for key in keys]
    return sum(size or 0 for size in sizes)


async def own_cpu_time(_: Context) -> float:
    """A job: the CPU time of the process so far, in seconds."""
    times = os.times()
    return times.user + times.system


async def own_memory(_: Context) -> int:
    """A job: the resident memory of the process in bytes, after a garbage collection."""
    gc.collect()
    return _resident_memory()


def _resident_memory() -> int:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    # Elsewhere only the peak is known, on macOS in bytes.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
