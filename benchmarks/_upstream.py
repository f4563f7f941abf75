"""An upstream that bears so many requests at once, by a schedule, and records how it was used."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, cast

from benchmarks._children import Context

OK = 200


@dataclass(frozen=True, slots=True)
class Phase:
    """How the upstream behaves for some seconds.

    Attributes:
        capacity: of concurrent requests, or of those of each key. With 0 it is down.
        status: of the requests that it refuses.
        retry_after: what it tells them, if anything.
        late: seconds after which it refuses them, as where a request times out.
        slows: refuses nothing, and shares its capacity among all requests.
        stray: share of the requests that it refuses whatever its capacity is.
    """

    seconds: float
    capacity: int
    status: int = 429
    retry_after: str = ""
    late: float = 0.0
    slows: bool = False
    stray: float = 0.0


class Event(NamedTuple):
    """A request came or went: *change* in what is in use, or 0 if it was refused."""

    at: float
    who: str
    change: int


class Upstream:
    """The behaviour, without a protocol, and what happened since `began`, by the loop's time."""

    def __init__(self, phases: Sequence[Phase], hold: float) -> None:
        self.events: list[Event] = []
        self.began = 0.0
        self._phases, self._hold = phases, hold
        self._busy: Counter[str] = Counter()  # by key
        self._loop, self._chance = asyncio.get_running_loop(), random.Random(1)

    def ask(self, path: str, reply: Callable[[int, str], Any]) -> None:
        """A request to ``/<who>/<key>/<weight>``; *reply* is told the status and Retry-After."""
        _, who, key, weight = path.split("/")
        phase, change = self._phase(), int(weight)
        slows = phase.slows and phase.capacity
        fits = slows or self._busy[key] + change <= phase.capacity
        if fits and self._chance.random() >= phase.stray:
            self._note(who, key, change)
            hold = self._hold * self._chance.uniform(0.5, 1.5)
            if slows:
                hold *= max(1.0, self._busy[key] / phase.capacity)
            self._loop.call_later(hold, self._note, who, key, -change)
            self._loop.call_later(hold, reply, OK, "")
        else:
            self._note(who, key, 0)
            self._loop.call_later(phase.late, reply, phase.status, phase.retry_after)

    def _note(self, who: str, key: str, change: int) -> None:
        self._busy[key] += change
        self.events.append(Event(self._loop.time() - self.began, who, change))

    def _phase(self) -> Phase:
        since = self._loop.time() - self.began
        ends = accumulate(phase.seconds for phase in self._phases)
        pairs = zip(ends, self._phases, strict=True)
        return next((phase for end, phase in pairs if since < end), self._phases[-1])


class _Server(asyncio.Protocol):
    """As much of HTTP/1.1 as is needed: GET without a body, one request at a time."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream, self._read = upstream, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._read += data
        if self._read.endswith(b"\r\n\r\n"):
            path, self._read = self._read.split(b" ", 2)[1].decode(), b""
            self._upstream.ask(path, self._reply)

    def _reply(self, status: int, retry_after: str) -> None:
        told = f"Retry-After: {retry_after}\r\n" if retry_after else ""
        head = f"HTTP/1.1 {status} -\r\n{told}Content-Length: 0\r\n\r\n"
        self._transport.write(head.encode())


async def listen(context: Context, phases: Sequence[Phase], hold: float, began: float) -> str:
    """A job: begin to listen, with a schedule that begins at *began*; returns the URL."""
    upstream = context.shared["upstream"] = Upstream(phases, hold)
    upstream.began, loop = began, asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Server(upstream), "127.0.0.1", 0)
    context.shared.setdefault("servers", []).append(server)  # which would be collected
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def recorded(context: Context) -> list[Event]:
    """A job: what happened."""
    upstream: Upstream = context.shared["upstream"]
    return upstream.events


@dataclass(slots=True)
class Use:
    """What happened for some seconds.

    Attributes:
        busy: what was in use, summed over time, at most the capacity.
        by: the same for each who asks, without that bound.
    """

    seconds: float
    capacity: int
    busy: float = 0.0
    by: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    answered: int = 0
    refused: int = 0


def uses(events: Sequence[Event], parts: Sequence[tuple[float, int]]) -> Iterator[Use]:
    """The use in each part of the time, of which the seconds and the capacity are given."""
    left, at, inside = iter([*events, Event(float("inf"), "", 0)]), 0.0, Counter[str]()
    event = next(left)
    for seconds, capacity in parts:
        use, end = Use(seconds, capacity), at + seconds
        while at < end:
            until = min(end, max(at, event.at))
            use.busy += min(inside.total(), capacity) * (until - at)
            for who, busy in inside.items():
                use.by[who] += busy * (until - at)
            at = until
            while event.at <= at:
                inside[event.who] += event.change
                use.answered += event.change < 0
                use.refused += event.change == 0
                event = next(left)
        yield use


def most_inside(events: Sequence[Event], who: str) -> int:
    """The most that *who* had in use at once."""
    return max(accumulate((e.change for e in events if e.who.startswith(who)), initial=0))
