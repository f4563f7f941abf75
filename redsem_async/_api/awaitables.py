"""What `acquire`, `adopt` and `locked` return: coroutines with another use than `await`."""

from collections.abc import Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, TypeVar, final

from .permit import Permit

T = TypeVar("T")


class AwaitableCall(Coroutine[Any, Any, T]):
    """A coroutine that is created by the call, wrapped to add methods.

    Everything that asyncio inspects is the inner coroutine's: task stacks, the warning about a
    coroutine that was never awaited, the error about one that is awaited twice.
    """

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *args: Any) -> Any:
        return self._coroutine.throw(*args)

    def close(self) -> None:
        self._coroutine.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cr_") or name in ("__name__", "__qualname__"):
            return getattr(self._coroutine, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._coroutine!r}>"


@final
class Acquisition(AwaitableCall[Permit], AbstractAsyncContextManager[Permit, None]):
    """What ``acquire()`` and ``adopt()`` return: await it or enter it, once."""

    __slots__ = ("_permit",)

    def __await__(self) -> Generator[Any, Any, Permit]:
        if getattr(self._coroutine, "cr_frame", self) is None:
            name = self.__qualname__
            raise RuntimeError(f"{name}() was already awaited: call it again for another permit")
        return self._coroutine.__await__()

    async def __aenter__(self) -> Permit:
        permit = self._permit = await self
        return await permit.__aenter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        permit = self._permit
        del self._permit
        await permit.__aexit__(exc_type, exc, traceback)


@final
class AwaitableBool(AwaitableCall[bool]):
    """A bool that must be awaited."""

    __slots__ = ()

    def __bool__(self) -> bool:  # no NoReturn: checkers would skip what follows an `if`
        self.close()
        raise TypeError("locked() sends a command to the server: await it")
