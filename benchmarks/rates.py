"""What is granted in time by rates of this library and of others, and what settling is for.

``python -m benchmarks.rates`` draws the picture of docs/rates.md, with an embedded server.
"""

import asyncio
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from benchmarks._bench import FULL, Bench, Table
from benchmarks.cases.rates import P16, REQUESTS, TOKENS, Turn, turns
from benchmarks.chart import INK, OTHERS, OURS, PICTURE, in_ink
from redsem_async.testing import embedded_redis

PANELS = ((REQUESTS, "Requests granted, 100 a second"), (TOKENS, "Tokens used, 20,000 a second"))
LINES = ("-", "--", ":")


def draw(scheme: str, done: Sequence[Turn]) -> None:
    """A panel for each rate: what was granted until then, beside what may be."""
    figure: Any = import_module("matplotlib.figure").Figure((12, 4.4), layout="constrained")
    for axes, (rate, title) in zip(figure.subplots(1, 2), PANELS, strict=True):
        shown = [turn for turn in done if turn.rate is rate]
        for turn, line in zip(shown, LINES, strict=False):
            at, total = [0.0], [0.0]
            begin = min(use.granted for use in turn.uses)
            for use in sorted(turn.uses, key=lambda use: use.granted):
                at.append(use.granted - begin)
                total.append(total[-1] + use.cost)
            name = turn.label.removeprefix("FairSemaphore, tokens, ")
            colour = OURS if turn is shown[0] else OTHERS
            axes.step(at, total, line, where="post", color=colour, label=name)
        axes.set_title(title, loc="left", fontweight="bold", fontsize=10)
        axes.set_xlabel("seconds")
        axes.set_xlim(0, FULL.window)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(framealpha=0)
    figure.savefig(PICTURE / f"rates-{scheme}.png", transparent=True, dpi=150)


async def main(url: str) -> None:
    table = Table(case=P16.name, title=P16.title, how=P16.how, loop="asyncio")
    bench = Bench(url=url, loop="asyncio", effort=FULL, progress=print, table=table)
    done = [turn async for turn in turns(bench)]
    for scheme in INK:
        with in_ink(scheme):
            draw(scheme, done)


if __name__ == "__main__":
    with embedded_redis() as server:
        asyncio.run(main(server.url))
