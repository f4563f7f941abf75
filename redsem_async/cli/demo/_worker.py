"""A worker process of the demo, which sends the requests assigned to it, concurrently.

The first line of standard input is the setup as JSON, and each later line is the number of a
request. Standard output has a JSON line for each event (see `Step`), as pipes are independent of
the Redis under test, and keep what a worker wrote before it was killed. The process ends when its
standard input does, so that it cannot outlive the demo, whatever ends the demo.
"""

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import httpx

from redsem_async import FairSemaphore, SemaphoreError
from redsem_async.cli._target import Target, connected


def _report(kind: str, request: int = 0, detail: str = "") -> None:
    """Write an event at once, so that a SIGKILL cannot lose it."""
    try:
        print(json.dumps([kind, request, time.monotonic(), detail]), flush=True)
    except BrokenPipeError:
        os._exit(0)  # The demo is gone, and its server too.


async def _handle(
    http: httpx.AsyncClient,
    limit: "FairSemaphore | _OwnLimit | None",
    request: int,
    *,
    adapts: bool,
) -> None:
    """Send a request until the upstream accepts it, while holding a permit if there are any.

    If the limit *adapts*, it learns of a refusal, which costs this request its permit.
    """
    accepted = False
    try:
        while not accepted:
            async with limit.acquire() if limit else contextlib.nullcontext() as permit:
                _report("started", request)
                while not (accepted := await _is_accepted(http, request)):
                    if adapts and permit is not None:
                        permit.back_off(0)
                        _report("waiting", request)
                        break
                    _report("retrying", request)
                    await asyncio.sleep(random.uniform(0.1, 0.3))
                else:
                    _report("answered", request)
    except (httpx.HTTPError, SemaphoreError) as error:
        _report("failed", request, f"{type(error).__name__}: {error}")


async def _is_accepted(http: httpx.AsyncClient, request: int) -> bool:
    response = await http.get(f"/{request}")
    if response.status_code != 429:
        response.raise_for_status()
        return True
    return False


class _OwnLimit:
    """The limit that this process finds for itself, as TCP does, by what its requests meet."""

    def __init__(self, most: int) -> None:
        self._limit, self._most = float(most), most
        self._inside, self._cut = 0, 0.0
        self._change = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def acquire(self) -> AsyncGenerator["_OwnPermit"]:
        async with self._change:
            await self._change.wait_for(lambda: self._inside < int(self._limit))
            self._inside += 1
        permit = _OwnPermit(time.monotonic())
        try:
            yield permit
        finally:
            self._inside -= 1
            if not permit.is_refused:
                self._limit = min(self._most, self._limit + 1 / self._limit)
            elif permit.began > self._cut:  # Those that came together are one overload.
                self._limit, self._cut = max(1.0, self._limit / 2), time.monotonic()
            async with self._change:
                self._change.notify_all()


@dataclass
class _OwnPermit:
    began: float
    is_refused: bool = False

    def back_off(self, _seconds: float) -> None:
        self.is_refused = True


async def _main() -> None:
    setup = json.loads(sys.stdin.readline())
    target, options = Target(**setup["target"]), setup.get("semaphore")
    async with (
        # Ignore proxy settings of the environment, because the upstream is local.
        httpx.AsyncClient(base_url=setup["upstream"], trust_env=False, timeout=10) as http,
        connected(target) as redis,
        asyncio.TaskGroup() as group,
    ):
        semaphore = None
        if options is not None:
            label = setup["label"]
            semaphore = FairSemaphore(redis, prefix=target.prefix, label=label, **options)
        adapts, most = bool(setup["slots"]), setup["slots"]
        limit = semaphore or (_OwnLimit(most) if adapts else None)
        _report("ready")
        while line := await asyncio.to_thread(sys.stdin.readline):
            group.create_task(_handle(http, limit, int(line), adapts=adapts))
        sys.exit()  # Cancels the rest, which releases their permits.


if __name__ == "__main__":
    asyncio.run(_main())
