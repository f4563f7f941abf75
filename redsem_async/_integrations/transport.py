"""The transport of `httpx` and `httpx2`, which differ in the name of the library alone."""

import functools
from collections.abc import Callable
from types import EllipsisType, TracebackType
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast

from redsem_async._api.group import SemaphoreGroup
from redsem_async._api.semaphore import AnySemaphore
from redsem_async._core.errors import AcquireTimeout, QueueFull
from redsem_async._core.rates import Cost

from .outage import OnOutage, Outage
from .outbound import HeldPermit, ReleasingStream, raising
from .overload import Overloads
from .selector import Selector
from .settlement import Settlements

Request = TypeVar("Request")
Response = TypeVar("Response")
Wrapped = TypeVar("Wrapped")


class Library(NamedTuple):
    """A client library, and what is both this package's and the library's."""

    http: Any
    timeout: type[AcquireTimeout]
    queue_full: type[QueueFull]


@functools.cache
def _body_of(http: Any) -> type[ReleasingStream]:
    """Create the class of bodies that is both this package's and the library's."""
    return cast("type[ReleasingStream]", type("Body", (ReleasingStream, http.AsyncByteStream), {}))


class Transport(Generic[Request, Response, Wrapped]):
    """Sends requests, each with a permit, by the transport that it wraps.

    A subclass says what it is made of. That is all in which the transports differ.
    """

    _library: ClassVar[Library]

    def __init__(
        self,
        sem_or_group: AnySemaphore | SemaphoreGroup,
        wrapped: Wrapped | None = None,
        *,
        key: Callable[[Request], str] | str | EllipsisType | None = ...,
        timeout: float | EllipsisType | None = ...,
        permits: int = 1,
        cancel_on_loss: bool | None = None,
        cost: Callable[[Request], Cost | None] | Cost | None = None,
        settle: Callable[[Response], Cost | None] | None = None,
        back_off: bool | Callable[[Response], float | None] = False,
        on_outage: OnOutage = "closed",
    ) -> None:
        self._choose = Selector(
            sem_or_group,
            key,
            _host,
            timeout=timeout,
            permits=permits,
            cancel_on_loss=cancel_on_loss,
            cost=cost,
        )
        self._overloads = Overloads(back_off)
        self._settlements = Settlements(sem_or_group, settle)
        self._outage = Outage(on_outage)
        http = self._library.http
        self._wrapped: Any = http.AsyncHTTPTransport() if wrapped is None else wrapped
        bases = type(self._wrapped).__mro__
        made_by = {base.__module__.partition(".")[0] for base in bases} & {"httpx", "httpx2"}
        foreign = made_by and http.__name__ not in made_by
        if foreign or not hasattr(self._wrapped, "handle_async_request"):
            what = f"an async transport of {http.__name__}"
            raise TypeError(f"wrapped must be {what}, not {wrapped!r}")

    async def handle_async_request(self, request: Request) -> Response:
        """Acquire a permit and send *request*. The client calls this."""
        if not isinstance(request, self._library.http.Request):
            library = type(request).__module__.partition(".")[0]
            raise TypeError(f"this is a client of {library}: use redsem_async.{library} in it")
        return cast("Response", await self._send(request))

    async def _send(self, request: Any) -> Any:
        choice = self._choose(request)
        timeout: float | EllipsisType | None = ...
        pool = request.extensions.get("timeout", {}).get("pool")
        if choice.options["timeout"] is ... and pool is not None:
            own = choice.semaphore.timeout
            timeout = pool if own is None else min(own, pool)
        held = HeldPermit(choice.semaphore, self._outage.held(choice, timeout))
        with raising(self._library.timeout, self._library.queue_full):
            await held.begin()
        try:
            with held.guarded():
                response = await self._wrapped.handle_async_request(request)
            self._overloads.note(held.permit, choice.key, response)
            if not response.is_closed:
                response.stream = self._body(response, request, held)
                held.expect_reading(f"{request.method} {request.url.host}")
                return response
            response.request = request
            self._settlements.note(held.permit, lambda: response)
        except BaseException:
            await held.end()
            raise
        await held.end()  # the response has its content already, as in tests
        return response

    def _body(self, response: Any, request: Any, held: HeldPermit) -> ReleasingStream:
        http = self._library.http
        if not isinstance(response.stream, http.AsyncByteStream):
            said = f"has no async body of {http.__name__}"
            raise TypeError(f"the wrapped transport's response {said}")
        status, headers = response.status_code, response.headers
        copy = functools.partial(http.Response, status, headers=headers, request=request)
        when_read = self._settlements.when_read(held.permit, copy)
        return _body_of(http)(response.stream, held, when_read)

    async def aclose(self) -> None:
        """Close the wrapped transport. Open responses keep their permits."""
        await self._wrapped.aclose()

    async def __aenter__(self) -> Self:
        await self._wrapped.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._wrapped.__aexit__(exc_type, exc_value, traceback)


def _host(request: Any) -> str:
    host: str = request.url.host
    return host
