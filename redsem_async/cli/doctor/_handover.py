"""Measures how fast a permit is handed from one connection to another, in both modes."""

import asyncio
import secrets
import time
from contextlib import suppress
from typing import Any

from redsem_async import (
    AnySemaphore,
    BackendError,
    FairSemaphore,
    Permit,
    Semaphore,
    SemaphoreError,
)
from redsem_async.cli._erase import erase
from redsem_async.cli._target import describe

from ._finding import Finding, note, ok, problem

LEASE = 10.0  # seconds; a heartbeat is sent every third of it
STEP_TIMEOUT = 5.0  # seconds for each step
MAX_BY_MESSAGE = 0.9  # seconds; a heartbeat takes longer


async def check_handover(here: Any, there: Any, prefix: str, *, no_push: bool) -> list[Finding]:
    """Hold a permit with one client, wait with the other, and release it.

    *no_push*: the server has no push messages that semaphores could use.
    """
    found: list[Finding] = []
    for kind in (FairSemaphore, Semaphore):
        name = f"doctor-{secrets.token_hex(8)}"
        ours, theirs = (
            kind(client, name, 1, lease=LEASE, prefix=prefix, label="doctor")
            for client in (here, there)
        )
        try:
            found.append(verdict_on(kind, await _hand_over(ours, theirs), no_push=no_push))
        except (SemaphoreError, TimeoutError) as error:
            found.append(
                problem(kind.__name__, describe(error) or "no reply in time", _advice(error))
            )
        finally:
            with suppress(SemaphoreError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await erase(here, ours, prefix)
    return found


async def _hand_over(ours: AnySemaphore, theirs: AnySemaphore) -> float:
    """Seconds from the release to the grant."""
    async with asyncio.timeout(4 * STEP_TIMEOUT):
        permit = await ours.acquire(timeout=STEP_TIMEOUT)
        waiter = asyncio.create_task(theirs.acquire(timeout=2 * STEP_TIMEOUT))
        try:
            await _queued(ours, waiter)
            began = time.perf_counter()
            await permit.release()
            permit = await waiter
        finally:
            waiter.cancel()
            await asyncio.wait([waiter])
        took = time.perf_counter() - began
        await permit.release()
        return took


async def _queued(semaphore: AnySemaphore, waiter: "asyncio.Task[Permit]") -> None:
    while True:
        if waiter.done() or (await semaphore.status(0)).waiting:
            return
        await asyncio.sleep(0.01)


def verdict_on(kind: type[AnySemaphore], took: float, *, no_push: bool) -> Finding:
    """The finding for a hand-over that took *took* seconds."""
    if took > MAX_BY_MESSAGE:
        late = f"the waiter was served only at its heartbeat, after {took:.1f} s"
        if no_push:
            return note(
                kind.__name__,
                f"{late}: this version has no sharded pub/sub in a cluster",
                "use Redis 7.0 or newer, or Valkey, if that is too slow",
            )
        return problem(
            kind.__name__,
            f"no push message arrived: {late}",
            "allow PUBLISH and SUBSCRIBE; use no proxy that blocks RESP3 or pub/sub",
        )
    return ok(
        kind.__name__,
        f"a permit was handed from one connection to another in {took * 1000:.1f} ms",
    )


def _advice(error: BaseException) -> str:
    if isinstance(error, BackendError):
        return "see the findings on rights, memory and role, and the server's log"
    return "see the finding on latency"
