"""What goes on at a time."""

import asyncio


class Load:
    """Counts how many are inside, and the most that ever were."""

    def __init__(self) -> None:
        self.now = self.most = self.began = 0

    async def __aenter__(self) -> None:
        self.now += 1
        self.began += 1
        self.most = max(self.most, self.now)

    async def __aexit__(self, *_: object) -> None:
        self.now -= 1

    async def job(self, item: int = 0) -> int:
        """Be inside for a moment."""
        async with self:
            await asyncio.sleep(0.001)
        return item

    async def stays(self) -> None:
        """Be inside until cancelled."""
        async with self:
            await asyncio.Event().wait()


async def echo(number: int) -> int:
    await asyncio.sleep(0)
    return number
