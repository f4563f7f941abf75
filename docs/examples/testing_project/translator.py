"""The code under test: a model that accepts few concurrent calls, from all processes together."""

from collections.abc import Awaitable, Callable

from redsem_async import AnySemaphore, BackendUnavailable, SemaphoreFull


class Busy(Exception):
    """The model is busy: retry in *after* seconds."""

    def __init__(self, after: float) -> None:
        super().__init__(after)
        self.after = after


class Translator:
    """Translates with *model*, and holds a permit of *sem* for each call."""

    def __init__(self, sem: AnySemaphore, model: Callable[[str], Awaitable[str]]) -> None:
        self._sem = sem
        self._model = model

    async def translate(self, text: str) -> str:
        try:
            async with self._sem:
                return await self._model(text)
        except SemaphoreFull as full:
            raise Busy(full.retry_after) from full
        except BackendUnavailable as outage:
            raise Busy(5.0) from outage
