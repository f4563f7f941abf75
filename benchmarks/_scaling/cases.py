"""The measured cases. Each checks its replies, and returns the cost of one unit."""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from redsem_async import FairSemaphore, Semaphore
from redsem_async._core.keys import Address
from redsem_async._protocol.operations import (
    Acquire,
    Heartbeat,
    Operation,
    Refresh,
    Release,
    Request,
    Unusual,
)
from redsem_async._protocol.replies import WAITING

from .contention import measure_contention
from .figures import MODES, Case, Contention, Cost, Fleet, Memory, Mode
from .processes import LEASE_MS, PROCESSES, Process, all_at_once, expect, granted, in_use
from .server import Meter, info_of

LONG_MS = 1_000_000_000
ENTRIES = 10_240  # holders, and waiters, whose memory is measured
AT_ONCE = 256  # entries per call
CONNECTIONS = 200
EMPTY = "return 1"

SIZES = (1, 10, 50, 250)
HANDED_SIZES = (1, 10, 50)
WAITERS: dict[Mode, tuple[int, ...]] = {"fair": (1, 100), "zset": (1,)}
REFRESHED = (1, 1000)
HEAVY = (100, 1000)
TASKS = (1, 50, 1000)
PIPELINED = 100


def measure(
    url: str, seconds: float, progress: Callable[[str], None]
) -> tuple[dict[Case, Cost], Mapping[Fleet, Contention], Memory]:
    """Measure one round of all cases, *seconds* each."""
    with closing(Redis.from_url(url)) as client:
        meter = Meter(client, seconds)
        costs: dict[Case, Cost] = {}
        for case, measured in _cases(url, meter):
            progress(f"{case.subject}, {case.mode}, {case.size}")
            costs[case] = measured()
        progress("contention")
        contention = measure_contention(url, meter)
        progress("memory")
        return costs, contention, memory(url, client)


def _cases(url: str, meter: Meter) -> Iterator[tuple[Case, Callable[[], Cost]]]:
    for mode in MODES:
        for size in SIZES:
            yield Case("free pair", mode, size), partial(free_pair, url, meter, mode, size)
        sparse = partial(free_pair, url, meter, mode, 1, silence_ms=LEASE_MS)
        yield Case("sparse pair", mode, 1), sparse
        for size in HANDED_SIZES:
            yield Case("home pair", mode, size), partial(home_pair, url, meter, mode, size)
            yield Case("handed pair", mode, size), partial(handed_pair, url, meter, mode, size)
        for size in WAITERS[mode]:
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


def free_pair(
    url: str, meter: Meter, mode: Mode, size: int, *, heavy: int = 0, silence_ms: int = 0
) -> Cost:
    """A pair without waiters, *size* of them per call.

    *heavy*: number of other holders, of two permits each. *silence_ms*: inactivity before each
    pair, by a clock set here.
    """
    with in_use(url, mode, ticking=silence_ms > 0) as used:
        processes = used.processes
        limit = len(processes) * size + 2 * heavy
        for start in range(0, heavy, AT_ONCE):
            numbers = processes[0].numbers(min(AT_ONCE, heavy - start))
            several = dict.fromkeys(numbers, Unusual(2))
            processes[0].write(Acquire(numbers, LONG_MS, limit, several))
            expect(processes[0].read(), granted)
        held: dict[Process, list[int]] = {}

        def acquire(process: Process) -> Operation:
            held[process] = process.numbers(size)
            return Acquire(held[process], LEASE_MS, limit)

        def work() -> int:
            used.now_us += 1000 * silence_ms
            all_at_once(processes, acquire, granted)
            all_at_once(processes, lambda p: Release(p.hub, held[p]), bool)
            return size * len(processes)

        return meter.cost(work)


def home_pair(url: str, meter: Meter, mode: Mode, size: int) -> Cost:
    """A pair whose permit goes to a waiter of the same process, *size* of them per call.

    The reply to the release contains the grants (fair), or the next acquire takes the permit
    (zset). Each process has its own semaphore, so that no waiter of another process is served.
    """
    with ExitStack() as stack:
        processes = [
            stack.enter_context(in_use(url, mode, processes=1)).processes[0]
            for _ in range(PROCESSES)
        ]
        held: dict[Process, list[int]] = {}
        behind: dict[Process, list[int]] = {}

        def acquire(process: Process) -> Operation:
            held[process] = process.numbers(size)
            return Acquire(held[process], LEASE_MS, size, waits=size)

        def queue(process: Process) -> Operation:
            behind[process] = process.numbers(size)
            return Acquire(behind[process], LEASE_MS, size)

        def release(process: Process) -> Operation:
            return Release(process.hub, held[process], keep=size)

        def fair() -> int:
            all_at_once(processes, queue, lambda answer: answer == WAITING)
            all_at_once(processes, release, bool)
            held.update(behind)
            return size * len(processes)

        def zset() -> int:
            all_at_once(processes, release, bool)
            all_at_once(processes, acquire, granted)
            return size * len(processes)

        all_at_once(processes, acquire, granted)
        return meter.cost(fair if mode == "fair" else zset)


def handed_pair(url: str, meter: Meter, mode: Mode, size: int) -> Cost:
    """A pair whose permit goes to a waiter of another process, *size* of them per call.

    It includes the acquire that is queued, the release with its push message, and the refresh
    (fair) or the second acquire (zset) that follows the message.
    """
    with in_use(url, mode) as used:
        half = len(used.processes) // 2
        limit = half * size
        held: dict[Process, list[int]] = {}
        requested: dict[Process, list[int]] = {}

        def acquire(process: Process) -> Operation:
            held[process] = process.numbers(size)
            return Acquire(held[process], LEASE_MS, limit)

        def queue(process: Process) -> Operation:
            requested[process] = process.numbers(size)
            return Acquire(requested[process], LEASE_MS, limit)

        def follow(process: Process) -> Operation:
            if mode == "fair":
                held[process] = requested[process]
                return Refresh(held[process], LEASE_MS)
            held[process] = process.numbers(size)
            return Acquire(held[process], LEASE_MS, limit, hinted=size)

        holders, waiters = used.processes[:half], used.processes[half:]
        all_at_once(holders, acquire, granted)

        def work() -> int:
            nonlocal holders, waiters
            all_at_once(waiters, queue, lambda answer: answer <= WAITING)
            all_at_once(holders, lambda p: Release(p.hub, held[p]), bool)
            all_at_once(waiters, follow, granted)
            holders, waiters = waiters, holders
            return limit

        return meter.cost(work)


def heartbeat(url: str, meter: Meter, mode: Mode, waiters: int) -> Cost:
    """A heartbeat of a process with that many waiters, behind one holder.

    The clock is set here, so that the interval between two heartbeats has passed.
    """
    with in_use(url, mode, ticking=True) as used:
        first, *waiting = used.processes
        first.write(Acquire(first.numbers(1), LONG_MS, 1))
        expect(first.read(), granted)
        requests: dict[Process, list[Request]] = {}

        def queue(process: Process) -> Operation:
            numbers = process.numbers(waiters)
            requests[process] = [Request(number, LEASE_MS, 1) for number in numbers]
            return Acquire(numbers, LEASE_MS, 1)

        def beat(process: Process) -> Operation:
            if mode == "fair":
                return Heartbeat(LEASE_MS, requests[process])
            return Heartbeat(LEASE_MS, limit=1, waits=waiters)

        all_at_once(waiting, queue, lambda answer: answer <= WAITING)

        def work() -> int:
            used.now_us += 1000 * LEASE_MS // 3
            all_at_once(waiting, beat, lambda answer: answer == WAITING)
            return len(waiting)

        return meter.cost(work)


def refresh(url: str, meter: Meter, size: int) -> Cost:
    """A refresh of *size* permits, by a clock set here. Both modes use the same script."""
    with in_use(url, "fair", ticking=True) as used:
        processes = used.processes
        held: dict[Process, list[int]] = {process: [] for process in processes}
        for start in range(0, size, AT_ONCE):
            for process in processes:
                numbers = process.numbers(min(AT_ONCE, size - start))
                held[process] += numbers
                process.write(Acquire(numbers, LEASE_MS, len(processes) * size))
                expect(process.read(), granted)

        def work() -> int:
            used.now_us += 1000 * LEASE_MS // 3
            all_at_once(processes, lambda p: Refresh(held[p], LEASE_MS), bool)
            return len(processes)

        return meter.cost(work)


def empty_script(url: str, meter: Meter) -> Cost:
    """The fixed cost of a script call."""
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
    """The fixed cost of a script call, with many in one write."""
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
    """A pair by the library itself with *tasks* tasks, to check the other cases."""
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
    """The memory of a holder, of a waiter, of a process and of its connection."""
    processes = PROCESSES
    with in_use(url, "fair", processes=processes) as used:
        one = used.processes[0]

        def fill(expected: Callable[[int], bool]) -> float:
            before = _memory_of(client, used.address)
            for _ in range(ENTRIES // AT_ONCE):
                one.write(Acquire(one.numbers(AT_ONCE), LONG_MS, ENTRIES))
                expect(one.read(), expected)
            return (_memory_of(client, used.address) - before) / ENTRIES

        holder, waiter = fill(granted), fill(lambda answer: answer == WAITING)
    with in_use(url, "fair", processes=CONNECTIONS) as used:
        process = _memory_of(client, used.address) / CONNECTIONS
        crowded = info_of(client, "memory")["used_memory"]
    _until_alone(client)
    alone = info_of(client, "memory")["used_memory"]
    connection = (crowded - alone) / CONNECTIONS - process
    return Memory(holder, waiter, process, connection)


def _until_alone(client: Redis) -> None:
    """Wait until the server has freed the memory of closed connections."""
    deadline = time.monotonic() + 10
    while info_of(client, "clients")["connected_clients"] > 1:
        if time.monotonic() > deadline:
            raise TimeoutError("closed connections are still open on the server")


def _memory_of(client: Redis, address: Address) -> float:
    sizes: list[int] = [client.memory_usage(key, samples=0) or 0 for key in address.keys]
    return sum(sizes)
