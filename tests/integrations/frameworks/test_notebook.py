"""The cells of the page in a real kernel, which is interrupted and restarted."""

import asyncio
import importlib
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore
from tests.harness.programs import Programs
from tests.harness.wait import available

pytestmark = [
    pytest.mark.timeout(120),
    # Of the packages for notebooks, on which these tests have no influence.
    pytest.mark.filterwarnings("default"),
]

CELLS = ("cell_1.py", "cell_2.py")
# As the page says.
HOLD, RELEASE = "permit = await gpu.acquire(timeout=60)", "await permit.release()"


class Notebook:
    """A kernel, and the cells that it has run."""

    def __init__(self) -> None:
        # Imported by name, because these packages are only in this session's environment.
        self._format: Any = importlib.import_module("nbformat.v4")
        client: Any = importlib.import_module("nbclient").NotebookClient
        self._notebook = self._format.new_notebook()
        self.client: Any = client(self._notebook, timeout=60, kernel_name="python3")

    async def run(self, code: str, *, allow_errors: bool = False) -> list[Any]:
        """Run *code* as the next cell."""
        cell = self._format.new_code_cell(code)
        self._notebook.cells.append(cell)
        self.client.allow_errors = allow_errors
        await self.client.async_execute_cell(cell, len(self._notebook.cells) - 1)
        outputs: list[Any] = cell.outputs
        return outputs


async def test_the_cells_of_the_page(programs: Programs) -> None:
    """Permits live across cells. An interrupt and closing release; a restart does not."""
    notebook = Notebook()
    async with notebook.client.async_setup_kernel(), Redis.from_url(programs.url) as redis:
        sem = FairSemaphore(redis, "gpu", 2)
        for name in CELLS:
            await notebook.run(programs.text(name))
        await notebook.run(HOLD)
        shown = await notebook.run("(await gpu.status()).held, permit.lost")
        assert shown[0]["data"]["text/plain"] == "(1, False)"
        await asyncio.sleep(11)  # longer than the lease
        assert (await sem.status()).held == 1

        block = "async with gpu:\n    await asyncio.sleep(60)"
        interrupted = asyncio.create_task(notebook.run(block, allow_errors=True))
        await available(sem, 0)
        await notebook.client.km.interrupt_kernel()
        assert "CancelledError" in (await interrupted)[-1]["ename"]
        await available(sem, 1)

        await notebook.run(RELEASE)
        await available(sem, 2)

        await notebook.run(HOLD)
        await notebook.client.km.restart_kernel(now=False)
        assert (await sem.status()).held == 1
        await available(sem, 2, within=11)
        for cell in (programs.text("cell_1.py"), HOLD, "await aclose(redis)"):
            await notebook.run(cell)
        assert (await sem.status()).held == 0
