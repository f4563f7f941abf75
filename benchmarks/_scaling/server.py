"""Measures what the server spends, by its own account, on the library's own scripts.

Commands are made by the library's Wire and written by plain connections, a hub's worth of state
to each, so that what the client spends is not in the figures. Each command travels in a write of
its own, as it does from many processes; many are on their way at a time, as on a busy server.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from typing import Any, cast

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from redsem_async import FairSemaphore, Semaphore
from redsem_async._keys import Address, channel, new_hub_id
from redsem_async._protocol import (
    WAITING,
    Acquire,
    Call,
    Heartbeat,
    Introduction,
    Refresh,
    Release,
    Reply,
    Request,
)
from redsem_async._wire import Wire, who_text
from redsem_async.testing import embedded_redis

from .figures import MODES, Case, Cost, Memory, Mode

LEASE_MS = 10_000
LONG_MS = 1_000_000_000
ENTRIES = 10_240  # holders and waiters whose memory is measured
AT_ONCE = 256  # of them in one call
CONNECTIONS = 200
PROCESSES = 20  # that write at a time
WHO = Introduction(who_text(label=None, host="worker-0001.example", pid=12345, started=1.8e9))
EMPTY = "return 1"

SIZES = (1, 10, 50, 250)
HANDED_SIZES = (1, 10, 50)
ASKED: dict[Mode, tuple[int, ...]] = {"fair": (1, 100), "zset": (1,)}
REFRESHED = (1, 1000)
HEAVY = (100, 1000)
TASKS = (1, 50, 1000)
PIPELINED = 100


@contextmanager
def server(which: str) -> Generator[str]:
    """The address of an ``embedded`` server, or of the one that *which* names."""
    if which == "embedded":
        with embedded_redis() as running:
            yield running.url
    else:
        yield which


def version_of(url: str) -> str:
    """Name and version of the server."""
    with closing(Redis.from_url(url)) as client:
        info = _info(client, "server")
    valkey = info.get("valkey_version")
    return f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"


def measure(
    url: str, seconds: float, say: Callable[[str], None]
) -> tuple[dict[Case, Cost], Memory]:
    """One round of everything, *seconds* for each case."""
    with closing(Redis.from_url(url)) as client:
        meter = Meter(client, seconds)
        costs: dict[Case, Cost] = {}
        for case, measured in _cases(url, meter):
            say(f"{case.subject}, {case.mode}, {case.size}")
            costs[case] = measured()
        say("memory")
        return costs, memory(url, client)


def _cases(url: str, meter: "Meter") -> Iterator[tuple[Case, Callable[[], Cost]]]:
    for mode in MODES:
        for size in SIZES:
            yield Case("free pair", mode, size), partial(free_pair, url, meter, mode, size)
        sparse = partial(free_pair, url, meter, mode, 1, silence_ms=LEASE_MS)
        yield Case("sparse pair", mode, 1), sparse
        for size in HANDED_SIZES:
            yield Case("home pair", mode, size), partial(home_pair, url, meter, mode, size)
            yield Case("handed pair", mode, size), partial(handed_pair, url, meter, mode, size)
        for size in ASKED[mode]:
            yield Case("heartbeat", mode, size), partial(heartbeat, url, meter, mode, size)
        for size in TASKS:
            yield Case("library pair", mode, size), partial(library_pair, url, meter, mode, size)
    for size in REFRESHED:
        yield Case("refresh", "fair", size), partial(refresh, url, meter, size)
    for size in HEAVY:
        beside = partial(free_pair, url, meter, "fair", 1, heavy=size)
        yield Case("pair beside heavy", "fair", size), beside
    yield Case("empty script", "fair", 1), partial(empty_script, url, meter)
    pipelined = partial(empty_script_pipelined, url, meter)
    yield Case("empty script, pipelined", "fair", PIPELINED), pipelined


class Meter:
    """Reads the server's account of itself before and after."""

    def __init__(self, client: Redis, seconds: float) -> None:
        self._client = client
        self._seconds = seconds

    def cost(self, work: Callable[[], int]) -> Cost:
        """What one unit costs, *work* doing some each time and telling how many."""
        self._work_for(work, self._seconds / 4)
        before = self._spent()
        units = self._work_for(work, self._seconds)
        return per_unit(before, self._spent(), units)

    def _work_for(self, work: Callable[[], int], seconds: float) -> int:
        end, units = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            units += work()
        return units

    def _spent(self) -> Cost:
        info = _info(self._client, "everything")
        scripts = info.get("cmdstat_evalsha", {"usec": 0, "calls": 0})
        return Cost(
            cpu=1e6 * (info["used_cpu_user"] + info["used_cpu_sys"]),
            script=scripts["usec"],
            heard=info["total_net_input_bytes"],
            said=info["total_net_output_bytes"],
            calls=scripts["calls"],
        )


def per_unit(before: Cost, after: Cost, units: int) -> Cost:
    """The difference, shared among *units*."""
    return Cost(*((late - early) / units for early, late in zip(before, after, strict=True)))


class Process:
    """What a process is to the server: a hub's id, its connection, its subscription."""

    def __init__(self, client: Redis, wire: Wire) -> None:
        self.hub = new_hub_id()
        self._wire = wire
        self._tags = count(1)
        self._numbers = count(1)
        self._asked: list[Call] = []
        self._connection = cast("Any", client.connection_pool.get_connection())
        self._connection.send_command("SUBSCRIBE", channel(wire.address.prefix, self.hub))
        self._connection.send_command("PING")
        self._connection.read_response()  # messages are passed over

    def numbers(self, size: int) -> list[int]:
        """For as many new requests."""
        return [next(self._numbers) for _ in range(size)]

    def write(self, call: Call) -> None:
        """Send a call."""
        script, arguments = self._wire.command(call, next(self._tags), self.hub)
        self._connection.send_command("EVALSHA", script.sha, *arguments)
        self._asked.append(call)

    def read(self) -> Reply:
        """The reply to the oldest call."""
        reply = self._wire.reply(self._asked.pop(0), self._connection.read_response())
        assert isinstance(reply, Reply)
        return reply


class Semaphores:
    """One semaphore of a name of its own, and processes that use it."""

    def __init__(self, client: Redis, mode: Mode, *, processes: int, ticking: bool = False):
        name = f"scaling-{secrets.token_hex(6)}"
        self.now_us = time.time_ns() // 1000
        self.address = Address(mode, "redsem", name, "local" if ticking else "server")
        wire = Wire(self.address, lambda: self.now_us)
        self.processes = [Process(client, wire) for _ in range(processes)]
        for call in (
            Acquire([1], LEASE_MS, 1),
            Release(self.processes[0].hub, [1]),
            Refresh([1], LEASE_MS),
            Heartbeat(LEASE_MS),
        ):
            client.script_load(wire.command(call, 1, self.processes[0].hub)[0].text)
        # Everybody is known from here on, as in the second of many calls.
        for process in self.processes:
            numbers = process.numbers(1)
            process.write(Acquire(numbers, LEASE_MS, processes, introduction=WHO))
            process.write(Release(process.hub, numbers))
            _all(process.read(), lambda answer: answer > 0)
            _all(process.read(), lambda answer: answer == 1)


@contextmanager
def _used(
    url: str, mode: Mode, *, processes: int = PROCESSES, ticking: bool = False
) -> Generator[Semaphores]:
    with closing(Redis.from_url(url, protocol=3, max_connections=processes + 1)) as client:
        semaphores = Semaphores(client, mode, processes=processes, ticking=ticking)
        yield semaphores
        client.connection_pool.disconnect()
        client.delete(*semaphores.address.keys)


def _everybody(
    processes: Sequence[Process], call: Callable[[Process], Call], expected: Callable[[int], bool]
) -> None:
    """All write, then all read: the server finds many commands waiting."""
    for process in processes:
        process.write(call(process))
    for process in processes:
        _all(process.read(), expected)


def _all(reply: Reply, expected: Callable[[int], bool]) -> None:
    """A measurement of anything else than what it says is worth nothing."""
    for answer in reply.answers:
        if not isinstance(answer, int) or not expected(answer):
            raise AssertionError(f"an answer of {answer} was not expected")


def _granted(answer: int) -> bool:
    return answer > 0


def free_pair(
    url: str, meter: Meter, mode: Mode, size: int, *, heavy: int = 0, silence_ms: int = 0
) -> Cost:
    """A pair when nobody waits, *size* of them in one call.

    Beside *heavy* holders of two permits each; or after a silence, by a clock that we set.
    """
    with _used(url, mode, ticking=silence_ms > 0) as used:
        processes = used.processes
        limit = len(processes) * size + 2 * heavy
        for start in range(0, heavy, AT_ONCE):
            numbers = processes[0].numbers(min(AT_ONCE, heavy - start))
            several = dict.fromkeys(numbers, (2, True))
            processes[0].write(Acquire(numbers, LONG_MS, limit, several))
            _all(processes[0].read(), _granted)
        held: dict[Process, list[int]] = {}

        def acquire(process: Process) -> Call:
            held[process] = process.numbers(size)
            return Acquire(held[process], LEASE_MS, limit)

        def work() -> int:
            used.now_us += 1000 * silence_ms
            _everybody(processes, acquire, _granted)
            _everybody(processes, lambda p: Release(p.hub, held[p]), bool)
            return size * len(processes)

        return meter.cost(work)


def home_pair(url: str, meter: Meter, mode: Mode, size: int) -> Cost:
    """A pair when each permit goes to a waiter of the same process, *size* of them in one call.

    The release answers who was served (fair), or leaves it to the acquire behind it (zset). Each
    process has a semaphore to itself, so that nobody else's waiters are served.
    """
    with ExitStack() as stack:
        processes = [
            stack.enter_context(_used(url, mode, processes=1)).processes[0]
            for _ in range(PROCESSES)
        ]
        held: dict[Process, list[int]] = {}
        behind: dict[Process, list[int]] = {}

        def acquire(process: Process) -> Call:
            held[process] = process.numbers(size)
            return Acquire(held[process], LEASE_MS, size, waits=size)

        def queue(process: Process) -> Call:
            behind[process] = process.numbers(size)
            return Acquire(behind[process], LEASE_MS, size)

        def release(process: Process) -> Call:
            return Release(process.hub, held[process], keep=size)

        def fair() -> int:
            _everybody(processes, queue, lambda answer: answer == WAITING)
            _everybody(processes, release, bool)
            held.update(behind)
            return size * len(processes)

        def zset() -> int:
            _everybody(processes, release, bool)
            _everybody(processes, acquire, _granted)
            return size * len(processes)

        _everybody(processes, acquire, _granted)
        return meter.cost(fair if mode == "fair" else zset)


def handed_pair(url: str, meter: Meter, mode: Mode, size: int) -> Cost:
    """A pair when each permit goes to a waiter of another process, *size* of them in one call.

    All that such a pair costs: asking and being told to wait, the release with its message, and
    then the refresh (fair) or the asking again (zset) that follows a message.
    """
    with _used(url, mode) as used:
        half = len(used.processes) // 2
        limit = half * size
        held: dict[Process, list[int]] = {}
        asked: dict[Process, list[int]] = {}

        def acquire(process: Process) -> Call:
            held[process] = process.numbers(size)
            return Acquire(held[process], LEASE_MS, limit)

        def queue(process: Process) -> Call:
            asked[process] = process.numbers(size)
            return Acquire(asked[process], LEASE_MS, limit)

        def follow(process: Process) -> Call:
            if mode == "fair":
                held[process] = asked[process]
                return Refresh(held[process], LEASE_MS)
            held[process] = process.numbers(size)
            return Acquire(held[process], LEASE_MS, limit, hinted=size)

        holders, waiters = used.processes[:half], used.processes[half:]
        _everybody(holders, acquire, _granted)

        def work() -> int:
            nonlocal holders, waiters
            _everybody(waiters, queue, lambda answer: answer <= WAITING)
            _everybody(holders, lambda p: Release(p.hub, held[p]), bool)
            _everybody(waiters, follow, _granted)
            holders, waiters = waiters, holders
            return limit

        return meter.cost(work)


def heartbeat(url: str, meter: Meter, mode: Mode, asked: int) -> Cost:
    """A heartbeat of a process that asks about so many waiters, behind one holder.

    By a clock that we set, so that the time between two heartbeats has passed.
    """
    with _used(url, mode, ticking=True) as used:
        first, *waiting = used.processes
        first.write(Acquire(first.numbers(1), LONG_MS, 1))
        _all(first.read(), _granted)
        requests: dict[Process, list[Request]] = {}

        def queue(process: Process) -> Call:
            numbers = process.numbers(asked)
            requests[process] = [Request(number, LEASE_MS, 1) for number in numbers]
            return Acquire(numbers, LEASE_MS, 1)

        def beat(process: Process) -> Call:
            if mode == "fair":
                return Heartbeat(LEASE_MS, requests[process])
            return Heartbeat(LEASE_MS, limit=1, waits=asked)

        _everybody(waiting, queue, lambda answer: answer <= WAITING)

        def work() -> int:
            used.now_us += 1000 * LEASE_MS // 3
            _everybody(waiting, beat, lambda answer: answer == WAITING)
            return len(waiting)

        return meter.cost(work)


def refresh(url: str, meter: Meter, size: int) -> Cost:
    """A refresh of *size* permits, by a clock that we set; both modes have the same script."""
    with _used(url, "fair", ticking=True) as used:
        processes = used.processes
        held: dict[Process, list[int]] = {process: [] for process in processes}
        for start in range(0, size, AT_ONCE):
            for process in processes:
                numbers = process.numbers(min(AT_ONCE, size - start))
                held[process] += numbers
                process.write(Acquire(numbers, LEASE_MS, len(processes) * size))
                _all(process.read(), _granted)

        def work() -> int:
            used.now_us += 1000 * LEASE_MS // 3
            _everybody(processes, lambda p: Refresh(held[p], LEASE_MS), bool)
            return len(processes)

        return meter.cost(work)


def empty_script(url: str, meter: Meter) -> Cost:
    """What a script call costs whatever it does."""
    with closing(Redis.from_url(url)) as client:
        sha = client.script_load(EMPTY)
        connections: list[Any] = [
            client.connection_pool.get_connection() for _ in range(PROCESSES)
        ]

        def work() -> int:
            for connection in connections:
                connection.send_command("EVALSHA", sha, 0)
            for connection in connections:
                connection.read_response()
            return len(connections)

        cost = meter.cost(work)
        client.connection_pool.disconnect()
        return cost


def empty_script_pipelined(url: str, meter: Meter) -> Cost:
    """The same, many in one write."""
    with closing(Redis.from_url(url)) as client:
        sha = client.script_load(EMPTY)

        def work() -> int:
            pipeline: Any = client.pipeline(transaction=False)
            for _ in range(PIPELINED):
                pipeline.evalsha(sha, 0)
            pipeline.execute()
            return PIPELINED

        return meter.cost(work)


def library_pair(url: str, meter: Meter, mode: Mode, tasks: int) -> Cost:
    """A pair of the library's, by so many tasks of this process: a check on the others."""
    kind = FairSemaphore if mode == "fair" else Semaphore
    with asyncio.Runner() as runner:
        client = AsyncRedis.from_url(url)
        sem = kind(client, f"scaling-{secrets.token_hex(6)}", limit=2 * tasks)
        each = max(5, 1000 // tasks)

        async def pairs() -> None:
            for _ in range(each):
                async with sem:
                    pass

        async def together() -> None:
            await asyncio.gather(*(pairs() for _ in range(tasks)))

        def work() -> int:
            runner.run(together())
            return each * tasks

        cost = meter.cost(work)
        runner.run(sem.clear())
        runner.run(client.aclose())
        return cost


def memory(url: str, client: Redis) -> Memory:
    """Bytes of a holder and a waiter, among many, of a process, and of its connection."""
    processes = PROCESSES
    with _used(url, "fair", processes=processes) as used:
        one = used.processes[0]

        def fill(expected: Callable[[int], bool]) -> float:
            before = _memory_of(client, used.address)
            for _ in range(ENTRIES // AT_ONCE):
                one.write(Acquire(one.numbers(AT_ONCE), LONG_MS, ENTRIES))
                _all(one.read(), expected)
            return (_memory_of(client, used.address) - before) / ENTRIES

        holder, waiter = fill(_granted), fill(lambda answer: answer == WAITING)
    with _used(url, "fair", processes=CONNECTIONS) as used:
        process = _memory_of(client, used.address) / CONNECTIONS
        crowded = _info(client, "memory")["used_memory"]
    time.sleep(0.2)  # the server frees what a connection had soon after it ended
    alone = _info(client, "memory")["used_memory"]
    connection = (crowded - alone) / CONNECTIONS - process
    return Memory(holder, waiter, process, connection)


def _memory_of(client: Redis, address: Address) -> float:
    sizes: list[int] = [client.memory_usage(key, samples=0) or 0 for key in address.keys]
    return sum(sizes)


def _info(client: Redis, section: str) -> dict[str, Any]:
    return client.info(section)
