"""An upstream that bears so many requests at once, by a schedule, and records how it was used."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, cast

from benchmarks._children import Context

OK = 200
LATE = 0.002  # seconds: a schedule's end waits so long for those that are under way
Reply = Callable[[int, str], None]  # is told the status, and Retry-After


@dataclass(frozen=True, slots=True)
class Phase:
    """How the upstream behaves for some seconds.

    Attributes:
        capacity: of concurrent requests, or of those of each key. With 0 it is down.
        status: of those that it refuses.
        retry_after: what it tells them, if anything.
        late: seconds after which it refuses them, such as a time-out.
        slows: whether it refuses none, and shares its capacity among all that it has.
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
    """What happened to a request: *change* in the use of the capacity, or 0 if it was refused."""

    at: float
    who: str
    change: int


class Upstream:
    """The behaviour, without a protocol. Each request names who asks, its key and its weight."""

    def __init__(self, phases: Sequence[Phase], hold: float) -> None:
        self.events: list[Event] = []
        self._phases = phases
        self._hold = hold
        self._busy: dict[str, int] = defaultdict(int)
        self._loop = asyncio.get_running_loop()
        self._chance = random.Random(1)
        self._began = self._loop.time()

    async def run(self, begin: float) -> list[Event]:
        """Follow the schedule from *begin* on. Returns what happened, by the time since then."""
        self._began = begin
        ends = begin + sum(phase.seconds for phase in self._phases)
        await asyncio.sleep(ends - self._loop.time() + LATE)
        return self.events

    def ask(self, path: str, reply: Reply) -> None:
        """A request to ``/<who>/<key>/<weight>``. *reply* is called when it is answered."""
        _, who, key, weight = path.split("/")
        phase, change = self._phase(), int(weight)
        room = phase.capacity - self._busy[key] >= change or (phase.slows and phase.capacity)
        if room and self._chance.random() >= phase.stray:
            self._note(who, key, change)
            hold = self._hold * self._chance.uniform(0.5, 1.5)
            if phase.slows:
                hold *= max(1.0, self._busy[key] / phase.capacity)
            self._loop.call_later(hold, self._answer, who, key, change, reply)
        else:
            self._note(who, key, 0)
            if phase.late:
                self._loop.call_later(phase.late, reply, phase.status, phase.retry_after)
            else:
                reply(phase.status, phase.retry_after)

    def _answer(self, who: str, key: str, change: int, reply: Reply) -> None:
        self._note(who, key, -change)
        reply(OK, "")

    def _note(self, who: str, key: str, change: int) -> None:
        self._busy[key] += change
        self.events.append(Event(self._loop.time() - self._began, who, change))

    def _phase(self) -> Phase:
        since = self._loop.time() - self._began
        for phase in self._phases:
            since -= phase.seconds
            if since < 0:
                return phase
        return self._phases[-1]


class _Server(asyncio.Protocol):
    """As much of HTTP/1.1 as needed: GET without a body, one request at a time."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._read = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._read += data
        if self._read.endswith(b"\r\n\r\n"):
            path, self._read = self._read.split(b" ", 2)[1].decode(), b""
            self._upstream.ask(path, self._reply)

    def _reply(self, status: int, retry_after: str) -> None:
        assert self._transport is not None
        told = f"Retry-After: {retry_after}\r\n" if retry_after else ""
        head = f"HTTP/1.1 {status} -\r\n{told}Content-Length: 0\r\n\r\n"
        self._transport.write(head.encode())


async def listen(context: Context, phases: Sequence[Phase], hold: float) -> str:
    """A job: begin to listen; returns the URL."""
    if (old := context.shared.get("server")) is not None:
        old.close()
    upstream = context.shared["upstream"] = Upstream(phases, hold)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Server(upstream), "127.0.0.1", 0)
    context.shared["server"] = server
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def follow(context: Context, begin: float) -> list[Event]:
    """A job: follow the schedule from *begin* on; returns what happened."""
    upstream: Upstream = context.shared["upstream"]
    return await upstream.run(begin)


@dataclass(slots=True)
class Use:
    """What happened between two times.

    Attributes:
        busy: the permits in use, summed over time, at most the capacity.
        by: the same of each who asks, without that bound.
    """

    seconds: float
    capacity: int
    busy: float
    by: dict[str, float]
    answered: int
    refused: int

    @property
    def share(self) -> float:
        """Of the capacity."""
        return self.busy / (self.capacity * self.seconds) if self.capacity else 0.0

    @property
    def share_refused(self) -> float:
        """Of the answers."""
        return self.refused / max(1, self.refused + self.answered)


def uses(
    events: Sequence[Event], phases: Sequence[Phase], keys: int = 1, step: float = 0.0
) -> Iterator[Use]:
    """The use in each phase, or in each *step* of each."""
    left, begin = iter([*events, Event(float("inf"), "", 0)]), 0.0
    event, inside = next(left), defaultdict[str, int](int)
    for phase in phases:
        count = round(phase.seconds / step) if step else 1
        for _ in range(count):
            length = phase.seconds / count
            use = Use(length, keys * phase.capacity, 0.0, defaultdict(float), 0, 0)
            end = begin + length
            while begin < end:
                until = min(end, event.at)
                use.busy += min(sum(inside.values()), use.capacity) * max(0.0, until - begin)
                for who, busy in inside.items():
                    use.by[who] += busy * max(0.0, until - begin)
                begin = max(begin, until)
                while event.at <= begin:
                    inside[event.who] += event.change
                    use.answered += event.change < 0
                    use.refused += event.change == 0
                    event = next(left)
            yield use


def most_inside(events: Sequence[Event], who: str) -> int:
    """The most that *who* had in use at once."""
    return max(accumulate((event.change for event in events if event.who == who), initial=0))
