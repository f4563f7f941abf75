"""An hour in which one key after another comes, by a simulated clock."""

from collections.abc import AsyncGenerator

from redis.asyncio import Redis

from redsem_async._core.keys import Address, new_hub_id
from redsem_async._protocol.hub_info import HubInfo
from redsem_async._protocol.operations import (
    Acquire,
    KeyTerms,
    Operation,
    Reap,
    Release,
    RequestOptions,
)
from redsem_async._redis.codec import Codec

HELD = 10.0  # seconds
LEASE_MS = 10_000
HOUR_US = 3_600_000_000
NEVER_RELEASED = 100  # one permit in so many
PARTS = 20
BATCH = 500  # commands in a pipeline
START_US = 1_800_000_000_000_000


async def run_hour(client: Redis, name: str, keys: int) -> AsyncGenerator[None]:
    """Let *keys* keys use a semaphore; yields from time to time. Ends a minute later."""
    now_us = START_US
    codec = Codec(Address("fair+share", "redsem", name, "local"), lambda: now_us)
    hub = new_hub_id()
    pipeline = client.pipeline(transaction=False)

    async def call(operation: Operation) -> None:
        script, (count, *arguments) = codec.encode(operation, 1, hub)
        _ = pipeline.evalsha(script.sha, int(count), *map(str, arguments))
        if len(pipeline.command_stack) >= BATCH:
            await pipeline.execute()

    for operation in (Acquire((1,), LEASE_MS, 1), Release(hub, (1,)), Reap()):
        await client.script_load(codec.encode(operation, 1, hub)[0].text)
    held = max(1, int(HELD * keys / 3600))  # at a time
    for number in range(1, keys + held + 1):
        if number <= keys:
            unusual = RequestOptions(key=KeyTerms(f"tenant {number}", limit=1, patience_ms=60_000))
            hub_info = HubInfo("benchmark") if number == 1 else None
            await call(Acquire((number,), LEASE_MS, keys, {number: unusual}, hub_info=hub_info))
        given_back = number - held
        if given_back > 0 and given_back % NEVER_RELEASED:
            await call(Release(hub, (given_back,)))
        now_us += HOUR_US // keys
        if number % max(1, keys // PARTS) == 0:
            await pipeline.execute()
            yield
    now_us += 60_000_000
    await call(Reap())
    await pipeline.execute()
