"""What is logged, at which level, and with which facts."""

import asyncio
import logging
import re
from typing import Any

import pytest

from redsem_async import AcquireTimeout, BackendUnavailable, PermitLost, aclose
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Make
from tests.harness.wait import all_free, cancelled, queue_up, until

AN_ID = re.compile(r"[0-9a-f]{32}")


def facts(record: logging.LogRecord) -> dict[str, Any]:
    """What *record* says beside its text."""
    usual = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
    return {key: value for key, value in vars(record).items() if key not in usual}


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "redsem_async"]


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [facts(record)["event"] for record in ours(caplog)]


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
async def test_at_debug_the_life_of_a_permit_can_be_followed(
    make: Make, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    """With facts for a program to read, and no ids. At INFO nothing is said of what goes well."""
    caplog.set_level(level, "redsem_async")
    sem = make()
    async with sem as permit:
        await permit.refresh()
        await cancelled(await queue_up(sem))
        with pytest.raises(AcquireTimeout):
            await sem.acquire(timeout=0)
        permit.back_off(9)
    await all_free(sem)
    if level == logging.INFO:
        assert not ours(caplog)
        return
    lived = ["granted", "refreshed", "queued", "abandoned", "shed", "released", "backed_off"]
    assert events(caplog) == lived
    last = ours(caplog)[-1].getMessage()
    assert last.endswith("backed_off: no permit for 9 s, then at most 1 in use")
    said = {facts(record)["event"]: facts(record) for record in ours(caplog)}
    granted = {"fencing_token": permit.fencing_token, "waited": permit.waited}
    assert said["granted"].items() >= {"semaphore": sem.name, "permits": 1, **granted}.items()
    assert said["shed"]["reason"] == "timeout"
    assert said["released"]["held"] > 0
    for record in ours(caplog):
        assert not AN_ID.search(record.getMessage() + repr(facts(record)))


async def test_a_loss_is_logged_and_a_warning_where_it_cancels_a_block(
    make: Make, client: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the limit caps load it is no fault. What the process does itself is no loss."""
    caplog.set_level(logging.INFO)
    sem = make(4)
    permit, released, closed = [await sem.acquire() for _ in range(3)]
    client.lose(permit)
    with pytest.raises(PermitLost):
        async with sem as of_a_block:
            client.lose(of_a_block)
            await asyncio.Event().wait()
    await sem.release(released.id)
    await aclose(client)
    assert permit.lost and released.lost and closed.lost
    outside, cancels = ours(caplog)
    assert (outside.levelno, cancels.levelno) == (logging.INFO, logging.WARNING)
    assert facts(outside) == {
        "event": "lost",
        "semaphore": sem.name,
        "permits": 1,
        "fencing_token": permit.fencing_token,
        "reason": "revoked: another process released or adopted it",
    }
    assert permit.id not in outside.getMessage()


@pytest.mark.parametrize("give_up", [False, True])
async def test_an_outage_is_logged_when_it_has_begun_and_when_it_is_over(
    make: Make, client: MemoryBackend, caplog: pytest.LogCaptureFixture, give_up: bool
) -> None:
    """Once each, however many wait meanwhile, and although callers give up in it."""
    caplog.set_level(logging.INFO)
    sem = make(lease=30.0)
    client.down()
    for _ in range(2 if give_up else 0):
        with pytest.raises(BackendUnavailable):
            await sem.acquire(timeout=0.6)
        await until(hub_has_ended, within=10)
    waiters = [asyncio.create_task(sem.acquire(timeout=20)) for _ in range(5)]
    await until(lambda: ours(caplog), within=10)
    client.up()
    for waiter in waiters:
        await (await waiter).release()
    begun, over = ours(caplog)
    assert events(caplog) == ["outage", "outage over"]
    assert facts(begun)["semaphores"] == [sem.name]
    assert f"is unavailable for {sem.name!r}: " in begun.getMessage()
    assert {record.levelno for record in (begun, over)} == {logging.WARNING}
    assert 0 < facts(over)["seconds"] < 20


def hub_has_ended() -> bool:
    return all(task.get_name() != "redsem-hub" for task in asyncio.all_tasks())
