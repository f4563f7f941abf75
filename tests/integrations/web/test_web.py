"""What every front promises: the middleware and the dependency, in memory and on Redis."""

import asyncio
import math
import shlex
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from redsem_async import AnySemaphore, FairSemaphore, Semaphore, SemaphoreFull, aclose
from redsem_async.testing import EmbeddedRedis
from tests.harness.clients import Connect
from tests.harness.wait import all_free, cancelled, until, waiting
from tests.integrations.cli.commands import execute
from tests.integrations.web.exchange import Exchange
from tests.integrations.web.fronts import FORMS, CutOff, Denied, Front, Here

pytestmark = pytest.mark.timeout(90)

JSON = {"content-type": "application/json"}


@pytest.fixture
async def service(front: Front) -> AsyncIterator[Here]:
    """A service with one permit."""
    async with front.serve() as served:
        yield served


@pytest.mark.parametrize("path", ["/wait", "/sync", "/stream", "/sync-stream"])
async def test_a_request_holds_a_permit_until_its_end(
    front: Front, service: Here, path: str
) -> None:
    """A coroutine, a thread, and bodies that stream."""
    first = service.ask(path)
    await until(front.sem.locked)
    second = service.ask("/wait")
    await waiting(front.sem, 1)
    assert len(service.permits) == 1
    service.go()
    assert (await first.answer()).status == (await second.answer()).status == 200
    assert len(service.permits) == 2
    await all_free(front.sem)


@pytest.mark.parametrize(
    ("options", "status", "reason"),
    [
        ({"timeout": 0.1}, 503, b"all permits are in use"),
        ({"timeout": 0.1, "status": 429}, 429, b"all permits are in use"),
        ({"semaphore": {"max_waiters": 0}}, 503, b"too many requests are waiting"),
    ],
    ids=["timeout", "status", "max_waiters"],
)
async def test_full_is_answered_with_retry_after(
    front: Front, options: dict[str, Any], status: int, reason: bytes
) -> None:
    """A client, or the balancer before it, learns when to come back."""
    async with front.serve(**options) as service, front.sem:
        refused = await service.ask("/wait").answer()
        assert refused.status == status
        assert refused.body.replace(b": ", b":") == b'{"detail":"%s"}' % reason
        assert 1 <= refused.retry_after <= 60
        assert not service.permits


@pytest.mark.parametrize("said", [7.2, math.nan, math.inf, -math.inf, None, "8", 1e300, -5.0])
async def test_retry_after_is_what_the_function_says_in_whole_seconds(
    front: Front, said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it says no number, the error's own estimate is sent, and a warning logged."""

    def later(full: SemaphoreFull) -> Any:
        assert full.name == front.sem.name
        return said

    async with front.serve(timeout=0, retry_after=later) as service, front.sem:
        answer = await service.ask("/wait").answer()
    assert answer.status == 503
    assert answer.retry_after == 8 if said == 7.2 else answer.retry_after >= 1
    warned = [record for record in caplog.records if getattr(record, "event", "") == "retry_after"]
    assert len(warned) == (said not in (7.2, 1e300, -5.0))


@pytest.mark.parametrize(
    ("path", "body"), [("/wait", None), ("/echo", b"1234"), ("/echo", b""), ("/json", b'{"a":1}')]
)
async def test_a_client_that_hangs_up_in_the_queue_leaves_it(
    front: Front, service: Here, path: str, body: bytes | None
) -> None:
    """Its body is no reason to believe that it is still there."""
    async with front.sem:
        leaver = service.ask(path, body, JSON)
        await waiting(front.sem, 1)
        await leaver.hang_up()
        await waiting(front.sem, 0)
    await all_free(front.sem)
    assert not service.permits


async def test_a_websocket_that_hangs_up_in_the_queue_leaves_it(
    front: Front, service: Here
) -> None:
    async with front.sem:
        leaver = asyncio.create_task(service.connect())
        await waiting(front.sem, 1)
        await cancelled(leaver)
        await waiting(front.sem, 0)
    await all_free(front.sem)
    assert not service.permits


@pytest.mark.parametrize("length", [0, 4, 70_000, 300_000])
async def test_a_body_is_not_lost_in_the_queue(front: Front, service: Here, length: int) -> None:
    """Shorter and longer than what is read ahead."""
    async with front.sem:
        upload = service.ask("/echo", b"x" * length)
        await waiting(front.sem, 1)
    assert (await upload.answer()).body == str(length).encode()
    assert (await service.ask("/json", b'{"a":1}', JSON).answer()).body == b'{"a":1}'
    await all_free(front.sem)


async def test_a_client_that_hangs_up_in_a_stream_gives_its_permit_back(
    front: Front, service: Here
) -> None:
    """Cancelled streams that keep permits are what users complain of most."""
    leaver = service.ask("/stream")
    await leaver.streams()
    assert await front.sem.locked()
    await leaver.hang_up()
    await all_free(front.sem)


@pytest.mark.parametrize("path", ["/wait", "/sync"])
async def test_a_permit_lost_before_the_headers_gives_503(
    front: Front, service: Here, path: str
) -> None:
    """The client can try again; a 500 would blame the handler."""
    request = service.ask(path)
    await until(front.sem.locked)
    await front.sem.delete()
    answer = await request.answer()
    service.go()
    assert (answer.status, answer.retry_after) == (503, 1)
    assert b"the permit of this request was lost" in answer.body
    await all_free(front.sem)


async def test_a_permit_lost_after_the_headers_cuts_the_response_off(
    front: Front, service: Here
) -> None:
    """Otherwise a client would take a part for the whole."""
    request = service.ask("/stream")
    await request.streams()
    await front.sem.delete()
    with pytest.raises(CutOff):
        await request.answer()
    await all_free(front.sem)


@pytest.mark.parametrize(
    "options", [{"semaphore": {"cancel_on_loss": False}}, {"cancel_on_loss": False}]
)
async def test_without_cancel_on_loss_a_request_is_finished(
    front: Front, options: dict[str, Any]
) -> None:
    """Where the limit caps load, half an answer would help nobody."""
    async with front.serve(**options) as service:
        request = service.ask("/wait")
        await until(lambda: service.permits)
        [permit] = service.permits
        assert permit is not None
        await front.sem.delete()
        await until(lambda: permit.lost)
        service.go()
        assert (await request.answer()).status == 200


async def test_a_websocket_holds_a_permit_until_it_is_closed(front: Front, service: Here) -> None:
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


async def test_a_paused_semaphore_is_said_to_be_paused(front: Front) -> None:
    async with front.serve(timeout=0.1) as service:
        await front.sem.pause()
        refused = await service.ask("/wait").answer()
        assert refused.body.replace(b": ", b":") == b'{"detail":"paused"}'


async def test_a_websocket_is_closed_where_a_denial_cannot_be_sent(front: Front) -> None:
    """The extension is optional for servers."""
    app = front.service(timeout=0.05).app
    async with front.sem, Exchange(app, "/ws", kind="websocket", denial=False) as refused:
        await refused.done()
        reason = "all permits are in use"
        assert refused.sent == [{"type": "websocket.close", "code": 1013, "reason": reason}]


async def test_a_websocket_whose_permit_is_lost_is_closed(front: Front, service: Here) -> None:
    """With the code that says to come back later."""
    socket = await service.connect()
    await until(front.sem.locked)
    await front.sem.delete()
    assert await socket.closed() == 1013
    await all_free(front.sem)


async def test_each_tenant_has_a_limit_of_its_own(front: Front) -> None:
    """Any value of the header is a key, and no value an error of the server."""
    tenants = ["acme", "{odd}\xff%7B", "*?[a]:/", "", "x" * 4000]
    async with front.serve(per_tenant=True, timeout=0.5) as service:
        taken = [service.ask("/wait", headers={"x-tenant": tenant}) for tenant in tenants]
        await until(lambda: len(service.permits) == len(tenants))
        more = [service.ask("/wait", headers={"x-tenant": tenant}) for tenant in tenants]
        assert [(await request.answer()).status for request in more] == [503] * len(tenants)
        assert len(service.permits) == len(tenants)
        service.go()
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
        await until(lambda: len(service.permits) == let_in)
        service.go()
        refused = [answer for answer in await asyncio.gather(*tasks) if answer.status != 200]
        assert len(refused) == 4 - let_in
        assert {(answer.status, answer.retry_after) for answer in refused} <= {(503, 1)}
        again = await service.ask("/wait").answer()
        assert again.status == (200 if let_in else 503), "what was let in has ended"
        front.up()
        await until(lambda: is_full(front.sem, service), within=10)


async def test_those_beyond_the_number_wait_for_the_others(front: Front) -> None:
    """As they do for a permit, for up to their timeout."""
    async with front.serve(timeout=2.0, on_outage=1) as service:
        front.down()
        requests = [service.ask("/wait") for _ in range(3)]
        await until(lambda: len(service.permits) == 1, within=10)
        service.go()
        assert [(await request.answer()).status for request in requests] == [200] * 3
        assert service.permits == [None] * 3


REFUSALS = {
    "NOPERM": ("ACL SETUSER default -@scripting", "ACL SETUSER default +@scripting"),
    "OOM": ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
    "READONLY": ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    "NOAUTH": ("CONFIG SET requirepass s3cret", "CONFIG SET requirepass ''"),
}


@pytest.mark.parametrize(("refuse", "mend"), REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("form", FORMS)
async def test_on_outage_decides_while_redis_refuses(
    form: str, refuse: str, mend: str, server: EmbeddedRedis, connect: Connect
) -> None:
    """A full memory is as good as no Redis, and should not stop what may run without a permit."""
    front = Front(form, FairSemaphore, connect(server.url), server.kill, server.restart)
    async with (
        Redis.from_url(server.url) as admin,
        front.serve(timeout=0.5, on_outage="open") as service,
    ):
        service.go()
        assert (await service.ask("/wait").answer()).status == 200
        await execute(admin, *shlex.split(refuse))
        await execute(admin, "CLIENT", "KILL", "TYPE", "pubsub")  # that of the library
        assert (await service.ask("/wait").answer()).status == 200
        assert service.permits[1:] == [None], "it was let in without one"
        await execute(admin, *shlex.split(mend))
        await until(lambda: gets_a_permit(service), within=15)


async def gets_a_permit(service: Here) -> bool:
    assert (await service.ask("/wait").answer()).status == 200
    return service.permits[-1] is not None


async def is_full(sem: AnySemaphore, service: Here) -> bool:
    async with sem:
        return (await service.ask("/wait").answer()).status == 429


async def test_a_request_without_a_permit_gets_none(front: Front) -> None:
    """A handler that needs a fencing token can see that there is none."""
    async with front.serve(timeout=0.05, on_outage="open") as service:
        service.go()
        front.down()
        assert (await service.ask("/wait").answer()).status == 200
        assert service.permits == [None]


async def test_the_permit_is_the_one_that_is_held(front: Front, service: Here) -> None:
    """Its fencing token is for what the handler writes."""
    _ = service.ask("/wait")
    await until(lambda: service.permits)
    [holder] = (await front.sem.status()).holders
    [permit] = service.permits
    assert permit is not None
    assert (permit.id, permit.fencing_token) == (holder.id, holder.fencing_token)


async def test_aclose_turns_waiting_requests_away(front: Front, service: Here) -> None:
    """At the end of a process they learn at once that they had better go elsewhere."""
    first = service.ask("/wait")
    await until(front.sem.locked)
    second = service.ask("/wait")
    await waiting(front.sem, 1)
    closing = asyncio.create_task(aclose(front.backend, drain=5.0))
    assert (await second.answer()).status == 503
    service.go()
    assert (await first.answer()).status == 200
    await closing


async def test_a_detached_permit_outlives_its_request(front: Front, service: Here) -> None:
    """A worker adopts it by its id."""
    answer = await service.ask("/detach", b"").answer()
    assert await front.sem.locked()
    async with front.sem.adopt(answer.body.decode().strip('"')):
        assert await front.sem.locked()
    await all_free(front.sem)


async def test_an_error_of_the_handler_gives_the_permit_back(front: Front, service: Here) -> None:
    assert (await service.ask("/error").answer()).status == 500
    await all_free(front.sem)


@pytest.mark.parametrize("path", ["/wait", "/stream"])
async def test_a_cancelled_request_leaves_nothing_behind(front: Front, path: str) -> None:
    """A server cancels those that take too long at its end, the waiting ones too."""
    app = front.service().app
    async with Exchange(app, path) as held:
        await until(front.sem.locked)
        async with Exchange(app, "/wait") as in_queue:
            await waiting(front.sem, 1)
            for exchange in (in_queue, held):
                exchange.task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await exchange.done()
    await all_free(front.sem)


async def test_what_redis_refuses_is_an_error(front: Front) -> None:
    """A mistake in the configuration is neither full nor an outage: it belongs in the log."""
    other = Semaphore if isinstance(front.sem, FairSemaphore) else FairSemaphore
    async with front.serve() as service, other(front.backend, "web", 1):
        assert (await service.ask("/wait").answer()).status == 500
    assert service.permits == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"on_outage": "ajar"}, ValueError),
        ({"on_outage": 0}, ValueError),
        ({"on_outage": True}, TypeError),
        ({"status": 200}, ValueError),
        ({"status": 600}, ValueError),
        ({"retry_after": 5}, TypeError),
        ({"retry_after": asyncio.sleep}, TypeError),
    ],
)
async def test_bad_arguments_are_refused_at_once(
    front: Front, options: dict[str, Any], error: type[Exception]
) -> None:
    """When the application is made, and not with the first request."""
    with pytest.raises(error, match=next(iter(options))):
        front.gate(front.sem, **options)
