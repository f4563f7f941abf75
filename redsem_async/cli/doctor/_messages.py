"""What scripts and messages lack on a server, and how fast a permit is handed over."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from typing import Any

from redis.exceptions import ResponseError

from redsem_async import AnySemaphore, BackendError, FairSemaphore, Semaphore, SemaphoreError
from redsem_async._core.keys import Address, new_hub_id
from redsem_async._protocol.backend import ConnectionRejected
from redsem_async._redis.dial import Opened, dial, target_of
from redsem_async._redis.inquiry import Asker, Met
from redsem_async.cli._target import Target, describe, erase

from ._finding import Finding, note, ok, problem

WHERE = "see docs/where-it-runs.md"
LEASE = 10.0  # seconds. A heartbeat is sent every third of it
STEP_TIMEOUT = 5.0  # seconds for each step of a hand-over
MAX_BY_MESSAGE = 0.9  # seconds. A heartbeat takes longer


async def scripts_and_messages(client: Any, target: Target) -> list[Finding]:
    """Connect as the library does to a server that is no cluster's, and ask what it asks."""
    if target.cluster:
        return []
    address = Address("fair", target.prefix, f"doctor-{secrets.token_hex(4)}", "server")
    try:
        opened: Opened = await dial(
            target_of(client.connection_pool), Asker(new_hub_id(), address)
        )
    except ConnectionRejected as rejection:
        return [problem("messages", f"the server {rejection}", "check user and password")]
    opened.transport.abort()
    met, found = opened.met or Met(), list[Finding]()
    if opened.no_push is not None:
        text = f"push messages are unavailable ({opened.no_push}): waiters are served late,"
        advice = "connect without a proxy that supports only RESP2"
        found.append(problem("messages", f"{text} at heartbeats", advice))
    if met.uncounted:
        text = "PUBLISH does not count subscribers: a permit that is granted to a killed process"
        found.append(note("messages", f"{text} goes to the next waiter some seconds later", WHERE))
    if met.no_set_repl:
        text = "there is no redis.set_repl: push messages are also sent to replicas"
        found.append(note("scripts", text, WHERE))
    if met.no_time and "permission" not in met.no_time:  # which `rights` names
        found.append(await _script_clock(client, address.keys[0], met.no_time))
    return found


async def _script_clock(client: Any, key: str, why: str) -> Finding:
    try:
        await client.execute_command("PEXPIRETIME", key)
    except ResponseError as error:
        text = f"scripts cannot read the server's clock: TIME ({why}), PEXPIRETIME ({error})"
        advice = 'use clock="local" and NTP, or ACL SETUSER ... +pexpiretime'
        return problem("scripts", text, advice)
    text = f"scripts cannot call TIME ({why}): they read the clock from the expiry of a key"
    return note("scripts", text, WHERE)


async def check_handover(
    here: Any, there: Any, prefix: str, *, no_push: bool
) -> AsyncGenerator[Finding]:
    """In both modes, hold a permit with one client, wait with the other, and release it.

    *no_push* says why the server has no push messages that semaphores could use.
    """
    for kind in (FairSemaphore, Semaphore):
        name = f"doctor-{secrets.token_hex(8)}"
        ours, theirs = (
            kind(client, name, 1, lease=LEASE, prefix=prefix, label="doctor")
            for client in (here, there)
        )
        try:
            finding = of_handover(kind, await _hand_over(ours, theirs), no_push=no_push)
        except (SemaphoreError, TimeoutError) as error:
            advice = "see the finding on latency"
            if isinstance(error, BackendError):
                advice = "see the findings on rights, memory and role, and the server's log"
            finding = problem(kind.__name__, describe(error) or "no reply in time", advice)
        finally:
            await erase(here, ours, prefix)
        yield finding


async def _hand_over(ours: AnySemaphore, theirs: AnySemaphore) -> float:
    """Seconds from the release to the grant."""
    async with asyncio.timeout(4 * STEP_TIMEOUT):
        permit = await ours.acquire(timeout=STEP_TIMEOUT)
        waiter = asyncio.create_task(theirs.acquire(timeout=2 * STEP_TIMEOUT))
        try:
            while not (waiter.done() or (await ours.status(0)).waiting):  # noqa: ASYNC110 - of Redis
                await asyncio.sleep(0.01)
            began = time.perf_counter()
            await permit.release()
            permit = await waiter
        finally:
            waiter.cancel()
            await asyncio.wait([waiter])
        took = time.perf_counter() - began
        await permit.release()
        return took


def of_handover(kind: type[AnySemaphore], took: float, *, no_push: bool) -> Finding:
    """The finding for a hand-over that took *took* seconds."""
    about, late = kind.__name__, f"the waiter was served only at its heartbeat, after {took:.1f} s"
    if took <= MAX_BY_MESSAGE:
        text = f"a permit was handed from one connection to another in {took * 1000:.1f} ms"
        return ok(about, text)
    if no_push:
        text = f"{late}: this version has no sharded pub/sub in a cluster"
        return note(about, text, "use Redis 7.0 or newer, or Valkey, if that is too slow")
    advice = "allow PUBLISH and SUBSCRIBE; use no proxy that blocks RESP3 or pub/sub"
    return problem(about, f"no push message arrived: {late}", advice)
