"""Requests of two tenants to the two processes: enough for a queue now and then.

SERVICES=http://localhost:8001,http://localhost:8002 python traffic.py
"""

import asyncio
import os
import random

import httpx

SERVICES = os.environ["SERVICES"].split(",")
RATES = {"acme": 12.0, "umbrella": 7.0}  # requests a second, beside limits of 4 and 2


async def visit(client: httpx.AsyncClient, tenant: str) -> None:
    """Send one request. An answer of 503 is a result like any other here."""
    try:
        await client.get(f"{random.choice(SERVICES)}/work", headers={"x-tenant": tenant})
    except httpx.HTTPError as error:
        print(f"{tenant}: {error!r}")


async def visits(client: httpx.AsyncClient, tenant: str, rate: float) -> None:
    """Send requests at random moments, *rate* of them a second on average, forever."""
    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(random.expovariate(rate))
            group.create_task(visit(client, tenant))


async def main() -> None:
    """Send the requests of all tenants."""
    async with httpx.AsyncClient(timeout=10) as client, asyncio.TaskGroup() as group:
        for tenant, rate in RATES.items():
            group.create_task(visits(client, tenant, rate))


if __name__ == "__main__":
    asyncio.run(main())
