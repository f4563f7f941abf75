"""heartbeat="thread": what the thread does to a permit that the event loop knows as well."""

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from redsem_async import Permit, PermitLost, aclose
from redsem_async._core.clock import now as clock
from redsem_async._core.lease import Outcome
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Kind
from tests.harness.inside import lease_of

pytestmark = pytest.mark.one_mode

LEASE = 10.0


@pytest.fixture
async def permit(kind: Kind) -> AsyncIterator[Permit]:
    """A permit that a thread keeps."""
    backend = MemoryBackend()
    semaphore = kind(backend, "jobs", 1, lease=LEASE, heartbeat="thread", cancel_on_loss=False)
    async with semaphore as permit:
        yield permit
    await aclose(backend)


Answer = Callable[[Outcome, float], None]


@pytest.fixture
def answer(permit: Permit) -> Answer:
    """What the thread does with an answer, done in this loop: nothing happens between two steps.

    Takes what the server said of the permit, and when it was asked.
    """
    watchdog = permit._bound.refresher.watchdog()
    return partial(watchdog.refreshed, permit._bound.remote, lease_of(permit))


async def test_a_renewal_counts_from_sending(permit: Permit, answer: Answer) -> None:
    """The server started its own count no earlier."""
    sent_at, lease = clock(), lease_of(permit)
    lease.trusted_until = sent_at + 3
    answer(Outcome.RENEWED, sent_at)
    assert LEASE - 1 < lease.trusted_until - sent_at < LEASE
    answer(Outcome.RENEWED, sent_at - 5)
    assert LEASE - 1 < lease.trusted_until - sent_at, "a late answer shortened trust"


async def test_trust_that_ended_is_not_revived(permit: Permit, answer: Answer) -> None:
    """The process was stopped: the body may know by now that the permit is lost."""
    lease_of(permit).trusted_until = clock() - 0.001
    answer(Outcome.RENEWED, clock() - 0.002)
    with pytest.raises(PermitLost):
        permit.check()


async def test_gone_is_seen_at_once_and_for_good(permit: Permit, answer: Answer) -> None:
    """Before the loop comes to it, by a body that blocks the loop."""
    answer(Outcome.GONE, clock())
    with ThreadPoolExecutor() as pool, pytest.raises(PermitLost) as caught:
        pool.submit(permit.check).result()
    assert permit.lost
    answer(Outcome.RENEWED, clock())
    assert permit.lost
    lost = await permit.wait_lost()
    assert caught.value.reason == lost.reason == "the server does not hold it any more"


async def test_gone_after_a_release_is_no_loss(permit: Permit, answer: Answer) -> None:
    """A refresh that the release overtook finds nothing, as it should."""
    released = asyncio.ensure_future(permit.release())
    await asyncio.sleep(0)  # asked for, and not answered
    answer(Outcome.GONE, clock())
    assert await released
    assert not permit.lost


async def test_a_permit_is_held_though_there_can_be_no_thread(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the loop does is still done, and the log says what is not."""

    def refuses(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    backend = MemoryBackend()
    semaphore = kind(backend, "jobs", 1, lease=LEASE, heartbeat="thread")
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "redsem_async"):
        patch.setattr(threading.Thread, "start", refuses)
        async with semaphore as permit:
            assert not permit.lost
    assert "can't start new thread" in caplog.text
    assert await semaphore.available() == 1
    await aclose(backend)


def test_the_thread_is_imported_where_it_is_asked_for() -> None:
    code = "import sys, redsem_async; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "redsem_async._keepalive.refresher" in loaded
    assert not loaded & {"redsem_async._keepalive.watchdog"}
