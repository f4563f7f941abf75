"""A server, and its costs according to INFO."""

import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from typing import Any

from redis import Redis

from redsem_async.testing import embedded_redis

from .figures import Cost


@contextmanager
def server(which: str) -> Generator[str]:
    """The URL of an ``embedded`` server, or *which*, a URL."""
    if which == "embedded":
        with embedded_redis() as running:
            yield running.url
    else:
        yield which


def version_of(url: str) -> str:
    """Name and version of the server."""
    with closing(Redis.from_url(url)) as client:
        info = info_of(client, "server")
    valkey = info.get("valkey_version")
    return f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"


class Meter:
    """Measures costs as the difference of two INFO replies, over about so many *seconds*."""

    def __init__(self, client: Redis, seconds: float) -> None:
        self.seconds: float = seconds
        self._client = client

    def cost(self, work: Callable[[], int]) -> Cost:
        """The cost of one unit. *work* performs some units, and returns their number."""
        self._work_for(work, self.seconds / 4)
        before = self.spent()
        units = self._work_for(work, self.seconds)
        return per_unit(before, self.spent(), units)

    def _work_for(self, work: Callable[[], int], seconds: float) -> int:
        end, units = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            units += work()
        return units

    def spent(self) -> Cost:
        """The totals so far."""
        info = info_of(self._client, "everything")
        scripts = info.get("cmdstat_evalsha", {"usec": 0, "calls": 0})
        return Cost(
            cpu=1e6 * (info["used_cpu_user"] + info["used_cpu_sys"]),
            script=scripts["usec"],
            received=info["total_net_input_bytes"],
            sent=info["total_net_output_bytes"],
            calls=scripts["calls"],
        )


def per_unit(before: Cost, after: Cost, units: int) -> Cost:
    """The difference, divided by *units*."""
    return Cost(*((late - early) / units for early, late in zip(before, after, strict=True)))


def info_of(client: Redis, section: str) -> dict[str, Any]:
    return client.info(section)
