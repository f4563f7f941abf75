"""A worker process: sends the requests that it is assigned to the upstream, concurrently.

It emits for each request that it was ``started`` (with a semaphore: a permit is held), each time
that it was ``refused``, and that it was ``answered`` or ``failed``. It also emits when the worker
is ``ready`` and when it is ``leaving``.
"""

import asyncio
import contextlib
import json
import random

import httpx

from redsem_async import FairSemaphore, SemaphoreError
from redsem_async.cli._target import Target, connected

from ._ipc import emit, standard_input
from ._plan import WorkerSetup


class _Worker:
    def __init__(self, http: httpx.AsyncClient, semaphore: FairSemaphore) -> None:
        self._http = http
        self._semaphore = semaphore

    async def bare(self, number: int) -> None:
        """Send a request without a semaphore."""
        await self._complete(number)

    async def guarded(self, number: int) -> None:
        """Send a request while holding a permit."""
        async with self._semaphore.acquire():
            await self._complete(number)

    async def _complete(self, number: int) -> None:
        emit("started", number)
        while not await self._accepted(number):
            emit("refused", number)
            await asyncio.sleep(random.uniform(0.1, 0.3))
        emit("answered", number)

    async def _accepted(self, number: int) -> bool:
        response = await self._http.get(f"/{number}")
        if response.status_code == 429:
            return False
        response.raise_for_status()
        return True

    async def handle(self, kind: str, number: int) -> None:
        try:
            await {"bare": self.bare, "guarded": self.guarded}[kind](number)
        except (httpx.HTTPError, SemaphoreError) as error:
            emit("failed", number, f"{type(error).__name__}: {error}")


async def _main() -> None:
    stdin = await standard_input()
    setup = WorkerSetup(**json.loads(await stdin.readline()))
    async with contextlib.AsyncExitStack() as stack:
        # Ignore proxy settings of the environment: the upstream is local.
        client = httpx.AsyncClient(base_url=setup.upstream, trust_env=False, timeout=10)
        http = await stack.enter_async_context(client)
        target = Target(**setup.target)
        semaphore = FairSemaphore(
            await stack.enter_async_context(connected(target)),
            setup.semaphore,
            setup.limit,
            lease=setup.lease,
            prefix=target.prefix,
            label=setup.label,
        )
        worker = _Worker(http, semaphore)
        emit("ready")
        tasks: set[asyncio.Task[None]] = set()
        async for line in stdin:
            kind, number = line.decode().split()
            task = asyncio.create_task(worker.handle(kind, int(number)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        emit("leaving")
        # Cancelling the rest releases their permits.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_main())
