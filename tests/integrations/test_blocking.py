"""Permits in threads, in forked processes and in scripts, through a `Portal`."""

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Generator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import (
    AcquireTimeout,
    BackendUnavailable,
    FairSemaphore,
    Permit,
    PermitLost,
    SemaphoreClosed,
)
from redsem_async.blocking import BlockingSemaphore, Portal
from redsem_async.testing import MemoryBackend
from tests.harness.memory import Distant
from tests.harness.servers import complaints
from tests.harness.wait import all_free

SOON = 10.0
LONG = 60.0  # a lease that does not end in a test


@pytest.fixture
def portal(backend: MemoryBackend) -> Generator[Portal]:
    with Portal(backend) as portal:
        yield portal


@pytest.fixture
def sem(portal: Portal) -> Generator[BlockingSemaphore]:
    """One permit, which has to be free after the test."""
    sem = portal.fair("jobs", limit=1, lease=LONG)
    yield sem
    with sem.acquire(timeout=SOON):
        pass


def waiting(portal: Portal, sem: BlockingSemaphore) -> int:
    return portal.run(sem.wrapped.status()).waiting


def until_waiting(portal: Portal, sem: BlockingSemaphore) -> None:
    while not waiting(portal, sem):
        pass


def revoke(portal: Portal, sem: BlockingSemaphore, permit: Permit) -> None:
    assert portal.run(sem.wrapped.release(permit.id))


def test_the_limit_holds_among_threads_and_portals(backend: MemoryBackend) -> None:
    """Two portals are two processes. The end of a block has released; a back-off is for all."""
    inside: list[int] = []
    most: list[int] = []
    tokens: list[int] = []

    def work(sem: BlockingSemaphore) -> None:
        for _ in range(10):
            with sem.acquire(timeout=SOON) as permit:
                inside.append(1)
                most.append(len(inside))
                tokens.append(permit.fencing_token)
                inside.pop()

    with Portal(backend) as one, Portal(backend.peer()) as two, ThreadPoolExecutor(8) as threads:
        sems = [one.fair("jobs", limit=2), two.fair("jobs", 2)]
        list(threads.map(work, sems * 4))
        with sems[0].acquire(timeout=0) as permit:
            permit.back_off(30.0)
        with pytest.raises(AcquireTimeout) as refused, sems[1].acquire(timeout=0):
            pass
    assert max(most) <= 2
    assert len(set(tokens)) == 80
    assert refused.value.blocked_by == "back_off"


def test_the_end_of_a_block_has_released() -> None:
    """However far the server is: what the program does next may need the permit."""
    far = Distant()
    with Portal(far) as one, Portal(far.peer()) as two:
        here, there = one.fair("jobs", limit=1), two.fair("jobs", limit=1)
        with there.acquire():
            pass
        with here.acquire(timeout=SOON):
            far.delay = 0.1
        with there.acquire(timeout=0):
            pass


def test_a_semaphore_of_either_class(portal: Portal) -> None:
    slots = portal.semaphore("gpu", slots=["cuda:0"])
    with slots.acquire() as permit:
        assert permit.slot == "cuda:0"
        assert permit.expires_in > 0
        permit.check()
    keyed = portal.fair("llm", limit=2, key_limit=1)
    with keyed.acquire(key="acme"), keyed.acquire(key="beta"):
        pass


def test_no_permit_in_time(sem: BlockingSemaphore) -> None:
    with sem.acquire():
        for timeout in (0, 0.05):
            with pytest.raises(AcquireTimeout), sem.acquire(timeout=timeout):
                pytest.fail("it was free")
    with pytest.raises(ValueError, match="timeout"), sem.acquire(timeout=-1):
        pytest.fail("entered")
    with Portal("redis://127.0.0.1:1") as portal:
        nowhere = portal.fair("jobs", limit=1)
        with pytest.raises(BackendUnavailable), nowhere.acquire(timeout=0.2):
            pytest.fail("entered")


def test_a_loss_is_told_and_raised_at_the_end(portal: Portal, sem: BlockingSemaphore) -> None:
    told: list[tuple[PermitLost, int]] = []
    heard = threading.Event()

    def on_loss(loss: PermitLost) -> None:
        told.append((loss, waiting(portal, sem)))  # it may block, and use the portal
        heard.set()

    with pytest.raises(PermitLost) as raised, sem.acquire(on_loss=on_loss) as permit:
        revoke(portal, sem, permit)
        assert heard.wait(SOON)
        assert permit.lost
        with pytest.raises(PermitLost):
            permit.check()
    assert told == [(raised.value, 0)]


def test_the_portal_does_not_wait_for_itself(portal: Portal, sem: BlockingSemaphore) -> None:
    async def acquire() -> None:
        with sem.acquire():
            pytest.fail("entered")

    with pytest.raises(RuntimeError, match="would block"):
        portal.run(acquire())


def test_a_generator_is_collected_in_its_thread(portal: Portal, sem: BlockingSemaphore) -> None:
    """As a streamed response that nobody read, in a cycle: the permit is free, and all goes on."""

    def stream() -> Generator[None]:
        with sem.acquire():
            yield

    async def collect() -> None:
        gc.collect()

    cycle: list[Any] = [stream()]
    cycle.append(cycle)
    next(cycle[0])
    del cycle
    portal.run(collect())
    entered = sem.acquire()
    entered.__enter__()
    del entered  # as where an exception came before the first line of the block


def test_a_loss_may_be_no_error(portal: Portal, sem: BlockingSemaphore) -> None:
    """And an error of the block wins."""
    with sem.acquire(cancel_on_loss=False) as permit:
        revoke(portal, sem, permit)
        assert permit.lost
    with pytest.raises(KeyError), sem.acquire() as permit:
        revoke(portal, sem, permit)
        raise KeyError


def test_closing_ends_what_waits_and_what_holds(portal: Portal, sem: BlockingSemaphore) -> None:
    """And the portal may be used again."""
    refused: list[BaseException] = []

    def wait() -> None:
        with pytest.raises(SemaphoreClosed) as closed, sem.acquire():
            pass
        refused.append(closed.value)

    waiter = threading.Thread(target=wait)
    with pytest.raises(PermitLost), sem.acquire():
        waiter.start()
        until_waiting(portal, sem)
        portal.close()
        waiter.join(SOON)
    assert refused
    with sem.acquire(cancel_on_loss=False):
        with pytest.raises(AcquireTimeout), sem.acquire(timeout=0):
            pass
        portal.close()


def test_a_wait_that_the_loop_cancels_is_refused(portal: Portal, sem: BlockingSemaphore) -> None:
    """By a coroutine that cancels all others, say. The thread would wait for ever."""

    async def cancel_others() -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if "hold" in repr(task.get_coro()):
                task.cancel()

    refused: Future[Any] = Future()

    def wait() -> None:
        with pytest.raises(SemaphoreClosed) as closed, sem.acquire():
            pass
        refused.set_result(closed.value)

    portal.run(sem.wrapped.pause())
    threading.Thread(target=wait, daemon=True).start()
    until_waiting(portal, sem)
    portal.run(cancel_others())
    refused.result(SOON)
    portal.run(sem.wrapped.resume())


class Interrupted(Exception):
    pass


def test_an_exception_in_the_queue_leaves_nothing(portal: Portal, sem: BlockingSemaphore) -> None:
    """Ctrl-C, or the soft time limit of a Celery task."""

    def interrupt(*_: Any) -> None:
        raise Interrupted

    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with sem.acquire():

            def watch() -> None:
                until_waiting(portal, sem)
                signal.pthread_kill(main, signal.SIGUSR1)

            threading.Thread(target=watch).start()
            with pytest.raises(Interrupted) as kept, sem.acquire():
                pytest.fail("it was free")
            assert kept.tb is not None  # as a notebook keeps it, and an error tracker
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_wait_ends_what_it_waits_for(
    portal: Portal, sem: BlockingSemaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coroutine is cancelled, and an acquire that has not begun takes no permit then."""
    blocks, go_on = threading.Event(), threading.Event()
    futures: list[Future[Any]] = []

    async def works() -> None:
        blocks.set()
        go_on.wait(SOON)
        await asyncio.sleep(LONG)

    def interrupted(future: Future[Any]) -> None:
        futures.append(future)
        assert blocks.wait(SOON)
        raise KeyboardInterrupt

    monkeypatch.setattr(portal, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        portal.run(works())
    with pytest.raises(KeyboardInterrupt), sem.acquire():
        pytest.fail("entered")
    monkeypatch.undo()
    go_on.set()
    assert futures[0].cancelled()


@pytest.mark.parametrize("error", [None, KeyError], ids=["normally", "by an error"])
def test_an_exception_while_a_block_ends_is_raised(
    sem: BlockingSemaphore, error: type[Exception] | None
) -> None:
    """Ctrl-C that is swallowed in a finalizer has to be pressed again. Tried at every line."""
    lines = left = 0

    def trace(frame: types.FrameType, event: str, arg: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(("blocking.py", "weakref.py")):
            return None
        left -= event == "line"
        if left == 0:
            raise Interrupted
        return trace

    before = sys.gettrace()
    while left <= 0:
        lines = left = lines + 1
        try:
            with suppress(KeyError), sem.acquire(timeout=SOON):
                sys.settrace(trace)
                if error is not None:
                    raise error
        except Interrupted:
            continue
        finally:
            sys.settrace(before)
        assert left > 0, f"interrupted at line {lines}, and went on"
    assert lines > 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("how", ["stop", "exit"])
def test_a_portal_starts_again(portal: Portal, sem: BlockingSemaphore, how: str) -> None:
    """By a coroutine of the program's own. Its blocks have lost their permits."""

    async def stop() -> None:
        if how == "exit":
            raise SystemExit
        asyncio.get_running_loop().stop()
        await asyncio.sleep(LONG)

    with pytest.raises(PermitLost), sem.acquire() as permit:
        with pytest.raises((SystemExit, CancelledError)):
            portal.run(stop())
        with sem.acquire(timeout=SOON) as another:
            another.check()
        assert permit.lost
    assert portal.run(sem.wrapped.available()) == 1


PROGRAM = """
import multiprocessing, os, sys, threading, time
from redsem_async import AcquireTimeout, PermitLost
from redsem_async.blocking import Portal

_, url, name = sys.argv
portal = Portal(url)
sem = portal.fair(name, limit=2, lease=60)
"""

FORK = """
try:
    with sem.acquire() as permit:
        child = os.fork()
        if not child:
            with sem.acquire(timeout=10) as own:
                assert own.fencing_token > permit.fencing_token
                try:
                    with sem.acquire(timeout=0):
                        raise AssertionError
                except AcquireTimeout:
                    pass
        else:
            assert os.waitpid(child, 0)[1] == 0
            permit.check()
except PermitLost as lost:
    assert not child and "forked" in lost.reason, lost
    os._exit(0)
assert child
with sem.acquire(timeout=10), sem.acquire(timeout=10):
    pass
"""

PREFORK = """
with sem.acquire(timeout=10):
    pass

def work(number):
    with sem.acquire(timeout=10) as permit:
        return permit.fencing_token

with multiprocessing.get_context("fork").Pool(3) as pool:
    tokens = pool.map(work, range(30), chunksize=1)
assert len(set(tokens)) == 30
with sem.acquire(timeout=0), sem.acquire(timeout=0):
    pass
"""

END = """
def hold():
    with sem.acquire():
        held.set()
        time.sleep(60)

held = threading.Event()
threading.Thread(target=hold, daemon=True).start()
held.wait()
"""


@pytest.mark.parametrize("code", [FORK, PREFORK, END], ids=["fork", "pool", "end"])
async def test_a_program_leaves_nothing(
    code: str, redis: Redis, server_url: str, name: str
) -> None:
    """It forks, ends or is interrupted; all permits are free long before a lease has ended."""
    arguments = [sys.executable, "-X", "dev", "-c", PROGRAM + code, server_url, name]
    done = await asyncio.to_thread(
        subprocess.run, arguments, capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, complaints(done.stderr)) == (0, []), done.stderr
    await all_free(FairSemaphore(redis, name, 2))
