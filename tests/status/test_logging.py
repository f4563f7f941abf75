"""What is logged, at which level, and with which facts."""

import asyncio
import logging
import re
from typing import Any

import pytest

from redsem_async import AcquireTimeout, BackendUnavailable, PermitLost, aclose
from redsem_async.testing import MemoryBackend
from tests.harness.clients import Client, Kind, Make
from tests.harness.wait import all_free, cancelled, queue_up, until

pytestmark = pytest.mark.one_mode

AN_ID = re.compile(r"[0-9a-f]{32}")


def facts(record: logging.LogRecord) -> dict[str, Any]:
    """What *record* says beside its text."""
    usual = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
    return {key: value for key, value in vars(record).items() if key not in usual}


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    return [
        facts(record)["event"]
        for record in caplog.records
        if facts(record).get("semaphore") == name
    ]


async def test_at_info_nothing_is_logged_of_what_goes_well(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor of requests that wait, are cancelled or time out."""
    caplog.set_level(logging.INFO)
    sem = make()
    async with sem as permit:
        await permit.refresh()
        await cancelled(await queue_up(sem))
        with pytest.raises(AcquireTimeout):
            await sem.acquire(timeout=0)
    assert not [record for record in caplog.records if record.name.startswith("redsem")]


async def test_at_debug_the_life_of_a_permit_can_be_followed(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """With facts for a program to read, and no ids."""
    caplog.set_level(logging.DEBUG, "redsem_async")
    sem = make()
    async with sem as permit:
        await permit.refresh()
        waiter = await queue_up(sem)
        await until(lambda: "queued" in events(caplog, sem.name))
        await cancelled(waiter)
        with pytest.raises(AcquireTimeout):
            await sem.acquire(timeout=0)
    await all_free(sem)
    assert events(caplog, sem.name) == [
        *("granted", "refreshed", "queued", "abandoned", "shed", "released")
    ]
    said = {facts(record)["event"]: facts(record) for record in caplog.records if facts(record)}
    granted = {
        "semaphore": sem.name,
        "permits": 1,
        "fencing_token": permit.fencing_token,
        "waited": permit.waited,
    }
    assert said["granted"].items() >= granted.items()
    assert said["shed"]["reason"] == "timeout"
    assert said["released"]["held"] > 0
    for record in caplog.records:
        assert not AN_ID.search(record.getMessage() + repr(facts(record)))


async def test_the_level_may_change_at_any_time(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """An event whose beginning was not logged is left out."""
    sem = make(2)
    before = await sem.acquire()
    caplog.set_level(logging.DEBUG, "redsem_async")
    async with sem:
        pass
    await before.release()
    assert events(caplog, sem.name) == ["granted", "released"]
    caplog.clear()
    caplog.set_level(logging.INFO, "redsem_async")
    for _ in range(2):
        async with sem:
            pass
    assert events(caplog, sem.name) == []


async def test_a_loss_is_logged_at_info(
    make: Make, other: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """And not as a warning: where the limit caps load, a loss is no fault."""
    caplog.set_level(logging.INFO)
    sem = make()
    permit = await sem.acquire()
    await make(client=other).release(permit.id)
    await until(lambda: permit.lost)
    [record] = [record for record in caplog.records if record.name == "redsem_async"]
    assert record.levelno == logging.INFO
    assert facts(record) == {
        "event": "lost",
        "semaphore": sem.name,
        "permits": 1,
        "fencing_token": permit.fencing_token,
        "reason": "revoked: another process released or adopted it",
    }
    assert permit.id not in record.getMessage()
    await permit.release()


async def test_a_loss_that_cancels_a_block_is_a_warning(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    backend = MemoryBackend()
    with pytest.raises(PermitLost):
        async with kind(backend, "jobs", 1) as permit:
            backend.lose(permit)
            await asyncio.sleep(5)
    [record] = caplog.records
    assert (record.levelno, facts(record)["event"]) == (logging.WARNING, "lost")


async def test_what_the_process_does_itself_is_no_loss_to_the_log(
    make: Make, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Released by its id, or closed."""
    caplog.set_level(logging.INFO)
    sem = make(2)
    permit, closed = await sem.acquire(), await sem.acquire()
    await sem.release(permit.id)
    await aclose(client)
    assert permit.lost
    assert closed.lost
    assert not [record for record in caplog.records if record.name == "redsem_async"]


def outages(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [r for r in caplog.records if facts(r).get("event", "").startswith("outage")]


async def test_an_outage_is_logged_when_it_has_begun_and_when_it_is_over(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    """Once each, however many wait meanwhile."""
    caplog.set_level(logging.INFO)
    backend = MemoryBackend()
    sem = kind(backend, "jobs", 1, lease=30.0)
    backend.down()
    waiters = [asyncio.create_task(sem.acquire(timeout=20)) for _ in range(5)]
    await until(lambda: outages(caplog), within=10)
    backend.up()
    for waiter in waiters:
        await (await waiter).release()
    begun, over = outages(caplog)
    assert [facts(record)["event"] for record in (begun, over)] == ["outage", "outage over"]
    assert facts(begun)["semaphores"] == ["jobs"]
    assert "is unavailable for 'jobs': " in begun.getMessage()
    assert {record.levelno for record in (begun, over)} == {logging.WARNING}
    assert 0 < facts(over)["seconds"] < 20


async def test_an_outage_in_which_callers_give_up_is_one_outage(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    backend = MemoryBackend()
    sem = kind(backend, "jobs", 1, lease=30.0)
    backend.down()
    for _ in range(2):
        with pytest.raises(BackendUnavailable):
            await sem.acquire(timeout=1)
        await until(hub_has_ended, within=10)
    backend.up()
    async with sem:
        pass
    assert [facts(record)["event"] for record in outages(caplog)] == ["outage", "outage over"]


def hub_has_ended() -> bool:
    return all(task.get_name() != "redsem-hub" for task in asyncio.all_tasks())
