"""What a greedy tenant does to another, without and with ``share``.

``python -m benchmarks.greedy`` draws the chart of docs/keys.md, with an embedded server.
"""

import asyncio
import time
from importlib import import_module
from typing import Any

from benchmarks.chart import INK, PICTURE, in_ink
from redsem_async import FairSemaphore, connect
from redsem_async.testing import embedded_redis

LIMIT = 4
HOLD = 0.02  # seconds
GREEDY = 200  # tasks that ask again and again
OTHERS = 12  # single requests of the other tenant, one after another
COLOURS = {"light": ("#c2410c", "#0b4f9e"), "dark": ("#fb923c", "#7db4f0")}  # without, with share


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


def draw(scheme: str, without: list[float], shared: list[float]) -> None:
    figure: Any = import_module("matplotlib.figure").Figure((9, 4), layout="constrained")
    axes, numbers = figure.subplots(), range(1, OTHERS + 1)
    before, after = COLOURS[scheme]
    axes.semilogy(numbers, without, "s-", color=before, label="first come, first served")
    axes.semilogy(numbers, shared, "o-", color=after, label="share=True")
    axes.axhline(HOLD, color=INK[scheme], linestyle=":", label="one hold")
    axes.set_xlabel("request of the other tenant")
    axes.set_ylabel("seconds until its permit")
    axes.grid(visible=True, color="#9aa3ad", linewidth=0.3)
    axes.legend(framealpha=0)
    figure.savefig(PICTURE / f"greedy-tenant-{scheme}.png", transparent=True, dpi=150)


async def main(url: str) -> None:
    without, shared = await waits(url, share=False), await waits(url, share=True)
    for name, seconds in (("without share", without), ("with share", shared)):
        print(f"{name}: first {seconds[0]:.3f} s, median {sorted(seconds)[OTHERS // 2]:.3f} s")
    for scheme in INK:
        with in_ink(scheme):
            draw(scheme, without, shared)


if __name__ == "__main__":
    with embedded_redis() as server:
        asyncio.run(main(server.url))
