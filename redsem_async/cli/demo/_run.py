"""Runs the demo in two rounds, each with an upstream and worker processes of its own.

A worker of each round is killed. In the second round its permits are watched until they are free.
"""

import asyncio
import contextlib
import json
import secrets
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.markup import escape

from redsem_async import FairSemaphore
from redsem_async.cli._ephemeral import server_for
from redsem_async.cli._target import Target, connected, erase

from ._parts import Upstream, Worker
from ._record import Kill, Plan, Record, Round, Step
from ._show import Display

_POLL_INTERVAL = 0.01  # seconds


def run(plan: Plan, url: str | None, prefix: str, console: Console, *, cluster: bool) -> Record:
    """Run the demo on the Redis or cluster at *url*, or on an embedded server.

    All processes and keys are removed in every case, including Ctrl-C.

    Raises:
        ServerNotFound, ServerDidNotStart: no embedded server is available.
        SemaphoreError, RedisError, OSError: Redis is unreachable or returned an error, perhaps in
            an `ExceptionGroup`.
    """
    display = Display(console)
    with server_for(url, prefix, cluster=cluster) as (target, server):
        display.log(f"Redis: {escape(server)}")
        display.log(f"upstream: accepts {plan.limit} concurrent requests, answers others with 429")
        bare, guarded = asyncio.run(_both_rounds(plan, target, display))
    return Record(plan, server, bare, guarded)


async def _both_rounds(plan: Plan, target: Target, display: Display) -> tuple[Round, Round]:
    count, name = plan.requests, f"demo-{secrets.token_hex(4)}"
    async with connected(target) as client:
        options: dict[str, Any] = {"prefix": target.prefix, "lease": plan.lease, "label": "demo"}
        semaphore = FairSemaphore(client, name, plan.most or plan.limit, **options)
        async with semaphore.acquire(timeout=0):
            pass  # Raises if Redis is unreachable.
        try:
            how = "each process for itself" if plan.overload else "without a semaphore"
            display.log(f"[bold]1. {count} requests, {how}[/]")
            first = _Workers(plan, target, display, None)
            bare = await first.process(range(1, count + 1))
            how = "permit.back_off()" if plan.overload else f"lease {plan.lease:g} s"
            display.log(f"[bold]2. {count} requests with {semaphore!r}, {how}[/]")
            second = _Workers(plan, target, display, semaphore)
            guarded = await second.process(range(count + 1, 2 * count + 1))
        finally:
            await erase(client, semaphore, target.prefix)
    return bare, guarded


class _Workers:
    """The workers of a round, and the requests that they share.

    A worker gets the next request when it has finished another. Requests that a dead worker had
    not started are the next ones.
    """

    def __init__(
        self, plan: Plan, target: Target, display: Display, semaphore: FairSemaphore | None
    ) -> None:
        """Let the workers hold a permit for each request, if there is a *semaphore*."""
        self._plan = plan
        self._target = target
        self._display = display
        self._semaphore = semaphore
        self._events: list[Step] = []
        self._all: list[Worker] = []
        self._pending: deque[int] = deque()
        self._finished = asyncio.Event()  # all requests, or all workers

    async def process(self, requests: range) -> Round:
        plan, upstream = self._plan, Upstream(self._events)
        async with upstream.listening() as url, self._running(url), asyncio.TaskGroup() as group:
            pids = ", ".join(str(worker.process.pid) for worker in self._all)
            self._display.log(
                f"workers: {plan.workers} processes (pids {pids}), "
                f"{plan.slots} requests at a time each"
            )
            shown = group.create_task(self._display.show(self._all, upstream, self._semaphore))
            began = time.monotonic()
            upstream.accept(plan.limit)
            self._pending.extend(requests)
            self._finished.clear()  # set if a worker has ended before
            self._assign()
            kill = await (self._overload(upstream) if plan.overload else self._kill_one())
            await self._finished.wait()
            shown.cancel()
        in_order = sorted(self._events, key=lambda event: event.at)
        round_ = Round(requests, began, tuple(in_order), kill)
        refused, answered = round_.refused, len(round_.of_kind("answered"))
        times = f"[red]{refused} rejected (429)[/]" if refused else "[green]none rejected[/]"
        self._display.log(f"{answered} answered in {round_.seconds:.1f} s, {times}")
        return round_

    @contextlib.asynccontextmanager
    async def _running(self, url: str) -> AsyncGenerator[None]:
        """Run workers, once all are ready, during a block. Kill them after it."""
        setup: dict[str, Any] = {"upstream": url, "target": asdict(self._target)}
        setup["slots"] = self._plan.slots if self._plan.overload else 0
        if (semaphore := self._semaphore) is not None:
            of = {"name": semaphore.name, "limit": semaphore.limit, "lease": self._plan.lease}
            setup["semaphore"] = of
        # The group outlives the processes, so that its tasks read all events.
        async with asyncio.TaskGroup() as group:
            try:
                for number in range(1, self._plan.workers + 1):
                    process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-m", f"{__package__}._worker"),
                        stdin=asyncio.subprocess.PIPE,
                        stdout=asyncio.subprocess.PIPE,
                        # Ctrl-C reaches only the demo, which then ends its workers.
                        start_new_session=True,
                    )
                    worker = Worker(f"worker {number}", process)
                    self._all.append(worker)
                    # Not as an argument, because the URL may contain a password.
                    worker.write({**setup, "label": worker.label})
                for worker in self._all:
                    assert worker.process.stdout is not None
                    await worker.process.stdout.readline()  # it is ready
                    group.create_task(self._follow(worker, worker.process.stdout))
                yield
            finally:
                for worker in self._all:
                    with contextlib.suppress(ProcessLookupError):  # it has ended
                        worker.process.kill()
                    await worker.process.wait()

    async def _follow(self, worker: Worker, lines: asyncio.StreamReader) -> None:
        """Process the events of one worker until it ends."""
        async for line in lines:
            event = Step(*json.loads(line))
            self._events.append(event)
            worker.counts[event.kind] += 1
            worker.queued.discard(event.request)
            if event.kind in {"answered", "failed"}:
                worker.started.discard(event.request)
            elif event.kind == "waiting":
                worker.started.discard(event.request)
                worker.queued.add(event.request)
            else:
                worker.started.add(event.request)
            self._assign()
        worker.gone.set()
        self._pending.extendleft(sorted(worker.queued, reverse=True))
        now, reason = time.monotonic(), f"{worker.label} was gone"
        self._events += [Step("failed", number, now, reason) for number in worker.started]
        self._assign()

    def _assign(self) -> None:
        """Give every worker as many requests as it may have."""
        for worker in self._alive:
            while self._pending and len(worker.queued | worker.started) < self._plan.slots:
                number = self._pending.popleft()
                worker.queued.add(number)
                worker.write(number)
        if not any(worker.queued or worker.started for worker in self._alive):
            self._finished.set()

    @property
    def _alive(self) -> list[Worker]:
        return [worker for worker in self._all if not worker.gone.is_set()]

    async def _overload(self, upstream: Upstream) -> None:
        """Let *upstream* accept a quarter for some seconds, after a fifth of the requests."""
        while self._answered < self._plan.requests // 5:  # noqa: ASYNC110 - as in a display
            await asyncio.sleep(_POLL_INTERVAL)
        few, seconds = max(1, self._plan.limit // 4), self._plan.overload
        self._display.log(f"the upstream is overloaded and accepts {few} for {seconds:g} s")
        upstream.accept(few)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._finished.wait(), seconds)
        upstream.accept(self._plan.limit)

    @property
    def _answered(self) -> int:
        return sum(worker.counts["answered"] for worker in self._all)

    async def _kill_one(self) -> Kill | None:
        """Kill a worker and wait until its permits are free. None if the round ended before."""
        while (victim := await self._victim()) is None:
            if self._finished.is_set():
                return None
            await asyncio.sleep(_POLL_INTERVAL)
        victim.process.kill()
        returncode = await victim.process.wait()
        at = time.monotonic()
        await victim.gone.wait()
        lost, passed_on = tuple(sorted(victim.started)), tuple(sorted(victim.queued))
        kill = Kill(victim.label, victim.process.pid, returncode, at, lost, passed_on)
        killed = f"{kill.worker} (pid {kill.pid}) is killed with SIGKILL"
        if self._semaphore is None:
            self._display.log(f"{killed} during {len(lost)} requests")
            return kill
        # A dead process releases nothing, so it still holds what it held when it died.
        permits = [(at, (await _held(self._semaphore))[kill.pid])]
        self._display.log(f"{killed} while it holds {permits[0][1]} permits")
        lease = self._plan.lease
        while permits[-1][1] and time.monotonic() < at + 3 * lease:
            await asyncio.sleep(_POLL_INTERVAL)
            held = (await _held(self._semaphore))[kill.pid]
            if held != permits[-1][1]:
                permits.append((time.monotonic(), held))
        kill = replace(kill, permits_by_time=tuple(permits))
        if kill.unavailable is not None:
            after = f"{kill.unavailable:.2f} s later (lease: {lease:g} s)"
            self._display.log(f"its permits are free again {after}")
        return kill

    async def _victim(self) -> Worker | None:
        """A worker that does more than its share, if it may be killed now."""
        plan = self._plan
        if self._answered < plan.requests // 5:
            return None
        if self._semaphore is None:
            use = Counter({worker.process.pid: len(worker.started) for worker in self._all})
            most = plan.slots
        else:  # The others continue in the meantime only if it does not hold all permits.
            use, most = await _held(self._semaphore), plan.limit - 1
        share = min(plan.limit // plan.workers + 1, plan.slots - 1)
        busy = [worker for worker in self._alive if share <= use[worker.process.pid] <= most]
        return min(busy, key=lambda worker: use[worker.process.pid], default=None)


async def _held(semaphore: FairSemaphore) -> Counter[int]:
    """How many permits each process holds, by its id."""
    held = Counter[int]()
    for holder in (await semaphore.status()).holders:
        held[holder.client.pid or 0] += holder.permits
    return held
