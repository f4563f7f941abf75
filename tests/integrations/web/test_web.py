"""What every front promises: the middleware and the dependency, here and in a real uvicorn."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from redsem_async import (
    AcquireTimeout,
    AnySemaphore,
    FairSemaphore,
    QueueFull,
    Semaphore,
    aclose,
)
from redsem_async.asgi import ConcurrencyLimitMiddleware
from redsem_async.fastapi import RequirePermit
from redsem_async.testing import MemoryBackend
from tests.harness.wait import all_free, cancelled, until, waiting
from tests.integrations.web.fronts import FORMS, CutOff, Denied, Front, Here, InProcess, Served

pytestmark = pytest.mark.timeout(90)

JSON = {"content-type": "application/json"}


@pytest.fixture
async def service(front: Front) -> AsyncIterator[Served]:
    """A service with one permit."""
    async with front.serve() as served:
        yield served


@pytest.fixture
async def here(inside: InProcess) -> AsyncIterator[Here]:
    """One in this process."""
    async with inside.serve() as served:
        yield served


@pytest.mark.parametrize("path", ["/wait", "/sync", "/stream", "/sync-stream"])
async def test_a_request_holds_a_permit_until_its_end(
    front: Front, service: Served, path: str
) -> None:
    """A coroutine, a thread, and bodies that stream."""
    first = service.ask(path)
    await until(front.sem.locked)
    second = service.ask("/wait")
    await waiting(front.sem, 1)
    assert await service.entered() == 1
    await service.go()
    assert (await first.answer()).status == (await second.answer()).status == 200
    assert await service.entered() == 2
    await all_free(front.sem)


@pytest.mark.parametrize("status", [503, 429])
async def test_full_is_answered_with_retry_after(front: Front, status: int) -> None:
    """A client, or the balancer before it, learns when to come back."""
    async with front.serve(timeout=0.1, status=status) as service, front.sem:
        refused = await service.ask("/wait").answer()
        assert refused.status == status
        assert refused.body.replace(b": ", b":") == b'{"detail":"all permits are in use"}'
        assert 1 <= refused.retry_after <= 60
        assert await service.entered() == 0


@pytest.mark.parametrize("form", FORMS)
async def test_retry_after_may_be_computed_otherwise(form: str) -> None:
    """In whole seconds, rounded up."""
    inside = InProcess(form, FairSemaphore)

    def later(full: AcquireTimeout | QueueFull) -> float:
        assert full.name == inside.sem.name
        return 7.2

    async with inside.serve(timeout=0, retry_after=later) as service, inside.sem:
        assert (await service.ask("/wait").answer()).retry_after == 8


@pytest.mark.parametrize("said", [math.nan, math.inf, -math.inf, None, "8", 1e300, -5.0])
async def test_a_request_is_turned_away_whatever_the_function_says(
    said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """With the error's own estimate where it is no number, and a warning."""
    inside = InProcess("middleware", FairSemaphore)

    def says(_: AcquireTimeout | QueueFull) -> Any:
        return said

    async with inside.serve(timeout=0, retry_after=says) as service, inside.sem:
        answer = await service.ask("/wait").answer()
    assert (answer.status, answer.retry_after >= 1) == (503, True)
    warned = [record for record in caplog.records if getattr(record, "event", "") == "retry_after"]
    assert len(warned) == (said not in (1e300, -5.0))


def test_retry_after_is_a_function() -> None:
    sem, number = FairSemaphore(MemoryBackend(), "web", 1), cast("Any", 5)

    async def later(_: AcquireTimeout | QueueFull) -> float:
        return 5.0

    with pytest.raises(TypeError, match="coroutine"):
        RequirePermit(sem, retry_after=cast("Any", later))
    with pytest.raises(TypeError, match="function"):
        RequirePermit(sem, retry_after=number)
    with pytest.raises(TypeError, match="function"):
        ConcurrencyLimitMiddleware(cast("Any", None), sem, retry_after=number)


@pytest.mark.parametrize("form", FORMS)
async def test_a_full_queue_is_answered_at_once(form: str) -> None:
    """`max_waiters` bounds how many requests a process keeps open for nothing."""
    front = InProcess(form, FairSemaphore)
    async with front.serve(semaphore={"max_waiters": 0}) as service, front.sem:
        refused = await service.ask("/wait").answer()
        assert refused.status == 503
        assert refused.retry_after >= 1


@pytest.mark.parametrize(
    ("path", "body"),
    [("/wait", None), ("/echo", b"1234"), ("/echo", b""), ("/json", b'{"a":1}')],
)
async def test_a_client_that_hangs_up_in_the_queue_leaves_it(
    front: Front, service: Served, path: str, body: bytes | None
) -> None:
    """Its body is no reason to believe that it is still there."""
    async with front.sem:
        leaver = service.ask(path, body, JSON)
        await waiting(front.sem, 1)
        await leaver.hang_up()
        await waiting(front.sem, 0)
    await all_free(front.sem)
    assert await service.entered() == 0


async def test_a_websocket_that_hangs_up_in_the_queue_leaves_it(
    front: Front, service: Served
) -> None:
    async with front.sem:
        leaver = asyncio.create_task(service.connect())
        await waiting(front.sem, 1)
        if isinstance(service, Here):
            service.exchanges[0].hang_up()
        await cancelled(leaver)
        await waiting(front.sem, 0)
    await all_free(front.sem)
    assert await service.entered() == 0


@pytest.mark.parametrize("length", [0, 4, 70_000, 300_000])
async def test_a_body_is_not_lost_in_the_queue(front: Front, service: Served, length: int) -> None:
    """Shorter and longer than what is read ahead."""
    async with front.sem:
        upload = service.ask("/echo", b"x" * length)
        await waiting(front.sem, 1)
    assert (await upload.answer()).body == str(length).encode()
    assert (await service.ask("/json", b'{"a":1}', JSON).answer()).body == b'{"a":1}'
    await all_free(front.sem)


async def test_a_client_that_hangs_up_in_a_stream_gives_its_permit_back(
    front: Front, service: Served
) -> None:
    """Cancelled streams that keep permits are what users complain of most."""
    leaver = service.ask("/stream")
    await leaver.streams()
    assert await front.sem.locked()
    await leaver.hang_up()
    await all_free(front.sem)


@pytest.mark.parametrize("path", ["/wait", "/sync"])
async def test_a_permit_lost_before_the_headers_gives_503(
    front: Front, service: Served, path: str
) -> None:
    """The client can try again; a 500 would blame the handler."""
    request = service.ask(path)
    await until(front.sem.locked)
    await front.sem.clear()
    answer = await request.answer()
    await service.go()
    assert (answer.status, answer.retry_after) == (503, 1)
    assert b"the permit of this request was lost" in answer.body
    await all_free(front.sem)


async def test_a_permit_lost_after_the_headers_cuts_the_response_off(
    front: Front, service: Served
) -> None:
    """Otherwise a client would take a part for the whole."""
    request = service.ask("/stream")
    await request.streams()
    await front.sem.clear()
    with pytest.raises(CutOff):
        await request.answer()
    await all_free(front.sem)


@pytest.mark.parametrize(
    "options", [{"semaphore": {"cancel_on_loss": False}}, {"cancel_on_loss": False}]
)
async def test_without_cancel_on_loss_a_request_is_finished(
    inside: InProcess, options: dict[str, Any]
) -> None:
    """Where the limit caps load, half an answer would help nobody."""
    async with inside.serve(**options) as here:
        request = here.ask("/wait")
        await until(inside.sem.locked)
        [permit] = here.service.permits
        assert permit is not None
        inside.backend.lose(permit)
        await until(lambda: permit.lost)
        await here.go()
        assert (await request.answer()).status == 200


async def test_a_websocket_holds_a_permit_until_it_is_closed(
    front: Front, service: Served
) -> None:
    """With its messages untouched."""
    socket = await service.connect()
    for text in ("one", "two"):
        await socket.send(text)
        assert await socket.recv() == text
    assert await front.sem.locked()
    await socket.hang_up()
    await all_free(front.sem)


async def test_a_websocket_without_a_permit_is_denied(front: Front) -> None:
    """With a whole response."""
    async with front.serve(timeout=0.1) as service, front.sem:
        with pytest.raises(Denied) as denied:
            await service.connect()
        assert denied.value.answer.status == 503
        assert denied.value.answer.retry_after >= 1


async def test_a_websocket_is_closed_where_a_denial_cannot_be_sent(inside: InProcess) -> None:
    """The extension is optional for servers."""
    async with inside.serve(timeout=0.05) as here, inside.sem:
        refused = await here.start("/ws", kind="websocket", denial=False).done()
        reason = "all permits are in use"
        assert refused.sent == [{"type": "websocket.close", "code": 1013, "reason": reason}]


async def test_a_websocket_whose_permit_is_lost_is_closed(front: Front, service: Served) -> None:
    """With the code that says to come back later."""
    socket = await service.connect()
    await until(front.sem.locked)
    await front.sem.clear()
    assert await socket.closed() == 1013
    await all_free(front.sem)


async def test_each_tenant_has_a_limit_of_its_own(front: Front) -> None:
    """Any value of the header is a key, and no value an error of the server."""
    tenants = ["acme", "{odd}\xff%7B", "*?[a]:/", "", "x" * 4000]
    async with front.serve(per_tenant=True, timeout=0.5) as service:
        taken = [service.ask("/wait", headers={"x-tenant": tenant}) for tenant in tenants]
        await until(lambda: has_entered(service, len(tenants)))
        more = [service.ask("/wait", headers={"x-tenant": tenant}) for tenant in tenants]
        assert [(await request.answer()).status for request in more] == [503] * len(tenants)
        assert await service.entered() == len(tenants)
        await service.go()
        assert [(await request.answer()).status for request in taken] == [200] * len(tenants)


@pytest.mark.parametrize(("on_outage", "let_in"), [("closed", 0), ("open", 4), (2, 2)])
async def test_on_outage_decides_while_redis_is_away(
    front: Front, on_outage: str | int, let_in: int
) -> None:
    """And the shared limit holds again when it is back."""
    async with front.serve(timeout=0.3, on_outage=on_outage, status=429) as service:
        front.down()
        requests = [service.ask("/wait") for _ in range(4)]
        tasks = [asyncio.create_task(request.answer()) for request in requests]
        await until(lambda: sum(task.done() for task in tasks) == 4 - let_in)
        await until(lambda: has_entered(service, let_in))
        await service.go()
        refused = [answer for answer in await asyncio.gather(*tasks) if answer.status != 200]
        assert len(refused) == 4 - let_in
        assert {(answer.status, answer.retry_after) for answer in refused} <= {(503, 1)}
        again = await service.ask("/wait").answer()
        assert again.status == (200 if let_in else 503), "what was let in has ended"
        front.up()
        await until(lambda: is_full(front.sem, service), within=10)


async def has_entered(service: Served, count: int) -> bool:
    return await service.entered() == count


async def is_full(sem: AnySemaphore, service: Served) -> bool:
    async with sem:
        return (await service.ask("/wait").answer()).status == 429


async def test_a_request_without_a_permit_gets_none(inside: InProcess) -> None:
    """A handler that needs a fencing token can see that there is none."""
    async with inside.serve(timeout=0.05, on_outage="open") as here:
        await here.go()
        inside.backend.down()
        assert (await here.ask("/wait").answer()).status == 200
        assert here.service.permits == [None]


async def test_the_permit_is_the_one_that_is_held(inside: InProcess, here: Here) -> None:
    """Its fencing token is for what the handler writes."""
    _ = here.ask("/wait")
    await until(inside.sem.locked)
    [holder] = (await inside.sem.status()).holders
    [permit] = here.service.permits
    assert permit is not None
    assert (permit.id, permit.fencing_token) == (holder.id, holder.fencing_token)


async def test_aclose_turns_waiting_requests_away(inside: InProcess, here: Here) -> None:
    """At the end of a process they learn at once that they had better go elsewhere."""
    first = here.ask("/wait")
    await until(inside.sem.locked)
    second = here.ask("/wait")
    await waiting(inside.sem, 1)
    closing = asyncio.create_task(aclose(inside.backend, drain=5.0))
    assert (await second.answer()).status == 503
    await here.go()
    assert (await first.answer()).status == 200
    await closing


async def test_a_detached_permit_outlives_its_request(front: Front, service: Served) -> None:
    """A worker adopts it by its id."""
    answer = await service.ask("/detach", b"").answer()
    assert await front.sem.locked()
    async with front.sem.adopt(answer.body.decode().strip('"')):
        assert await front.sem.locked()
    await all_free(front.sem)


async def test_an_error_of_the_handler_gives_the_permit_back(
    front: Front, service: Served
) -> None:
    assert (await service.ask("/error").answer()).status == 500
    await all_free(front.sem)


@pytest.mark.parametrize("path", ["/wait", "/stream"])
async def test_a_cancelled_request_leaves_nothing_behind(
    inside: InProcess, here: Here, path: str
) -> None:
    """A server cancels those that take too long at its end, the waiting ones too."""
    held = here.start(path)
    await until(inside.sem.locked)
    in_queue = here.start("/wait")
    await waiting(inside.sem, 1)
    for exchange in (in_queue, held):
        exchange.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchange.done()
    await all_free(inside.sem)


async def test_what_redis_refuses_is_an_error(inside: InProcess) -> None:
    """A mistake in the configuration is neither full nor an outage: it belongs in the log."""
    other = Semaphore if isinstance(inside.sem, FairSemaphore) else FairSemaphore
    async with inside.serve() as here, other(inside.backend, "web", 1):
        assert (await here.ask("/wait").answer()).status == 500
    assert here.service.permits == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"on_outage": "ajar"}, ValueError),
        ({"on_outage": 0}, ValueError),
        ({"on_outage": True}, TypeError),
        ({"status": 200}, ValueError),
        ({"status": 600}, ValueError),
        ({"timeout": -1}, ValueError),
        ({"permits": 2}, ValueError),
        ({"key": str}, TypeError),
    ],
)
async def test_bad_arguments_are_refused_at_once(
    inside: InProcess, options: dict[str, Any], error: type[Exception]
) -> None:
    """When the application is made, and not with the first request."""
    with pytest.raises(error):
        inside.gate(inside.sem, **options)


async def test_a_group_needs_a_key(inside: InProcess) -> None:
    """And a semaphore with keys: otherwise its limits of keys would hold nobody, in silence."""
    with pytest.raises(TypeError, match="key="):
        inside.gate(inside.group)
    keyed = FairSemaphore(inside.backend, "keyed", 2, key_limit=1)
    with pytest.raises(TypeError, match=r"needs key=.*key=None is for"):
        inside.gate(keyed)
    inside.gate(keyed, key=None)
    with pytest.raises(TypeError, match="semaphore"):
        inside.gate(inside.backend)
