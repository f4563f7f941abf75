"""What a greedy tenant does to another, without and with ``share``.

``python -m benchmarks.greedy`` draws docs/pictures/greedy-tenant.png, with an embedded server.
"""

import asyncio
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from redsem_async import FairSemaphore, connect
from redsem_async.testing import embedded_redis

LIMIT = 4
HOLD = 0.02  # seconds
GREEDY = 200  # tasks that ask again and again
OTHERS = 12  # single requests of the other tenant, one after another
PICTURE = Path("docs/pictures/greedy-tenant.png")


async def waits(url: str, *, share: bool) -> list[float]:
    """The seconds that each request of the other tenant waited."""
    async with connect(url) as redis:
        name = f"greedy {share}"
        sem = FairSemaphore(redis, name, LIMIT, key_limit=LIMIT, share=share)

        async def call(key: str) -> float:
            began = time.perf_counter()
            async with sem.acquire(key=key):
                waited = time.perf_counter() - began
                await asyncio.sleep(HOLD)
            return waited

        async def ask_for_ever() -> None:
            while True:
                await call("greedy")

        greedy = [asyncio.create_task(ask_for_ever()) for _ in range(GREEDY)]
        while (await sem.status(0)).waiting < GREEDY // 2:  # noqa: ASYNC110
            await asyncio.sleep(HOLD)
        waited = [await call("other") for _ in range(OTHERS)]
        for task in greedy:
            task.cancel()
        await asyncio.gather(*greedy, return_exceptions=True)
        return waited


def draw(without: list[float], shared: list[float]) -> None:
    import_module("matplotlib").use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(
        figsize=(9, 4), dpi=110, facecolor="white", layout="constrained"
    )
    numbers = range(1, OTHERS + 1)
    axes.semilogy(numbers, without, "s-", color="#c2410c", label="first come, first served")
    axes.semilogy(numbers, shared, "o-", color="#0b4f9e", label="share=True")
    axes.axhline(HOLD, color="#18181b", linestyle=":", label="one hold")
    axes.set_xlabel("request of the other tenant")
    axes.set_ylabel("seconds until its permit")
    axes.grid(visible=True, color="#d4d4d8", linewidth=0.7)
    axes.legend()
    figure.savefig(PICTURE)


async def main(url: str) -> None:
    without, shared = await waits(url, share=False), await waits(url, share=True)
    for name, seconds in (("without share", without), ("with share", shared)):
        print(f"{name}: first {seconds[0]:.3f} s, median {sorted(seconds)[OTHERS // 2]:.3f} s")
    draw(without, shared)


if __name__ == "__main__":
    with embedded_redis() as server:
        asyncio.run(main(server.url))
