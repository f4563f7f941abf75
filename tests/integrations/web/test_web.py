"""What every front promises: the middleware and the dependency."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock, patch

import pytest

from redsem_async import Semaphore, SemaphoreFull, aclose
from redsem_async.testing import MemoryBackend
from tests.harness.wait import all_free, in_background, until, waiting
from tests.integrations.web.fronts import Front, Here

JSON = {"content-type": "application/json"}


@pytest.fixture
async def service(front: Front) -> AsyncIterator[Here]:
    """A service with one permit."""
    async with front.serve() as served:
        yield served


@pytest.mark.parametrize("path", ["/wait", "/sync", "/stream", "/sync-stream"])
async def test_a_request_holds_a_permit_to_its_end(front: Front, service: Here, path: str) -> None:
    """A coroutine, a thread, and bodies that stream. Its token is for what the handler writes."""
    first = await service.ask(path)
    await until(lambda: service.permits)
    [permit], [holder] = service.permits, (await front.sem.status()).holders
    assert permit is not None
    assert (permit.id, permit.fencing_token) == (holder.id, holder.fencing_token)
    second = await service.ask("/wait")
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
        *(({"timeout": 0.1}, 503, why) for why in (b"paused", b"backing off")),
    ],
    ids=["timeout", "status", "max_waiters", "paused", "back_off"],
)
async def test_full_is_answered_with_retry_after(
    front: Front, options: dict[str, Any], status: int, reason: bytes
) -> None:
    """A client, or the balancer before it, learns when to come back; WebSockets too."""
    async with front.serve(**options) as service, front.sem:
        if reason == b"paused":
            await front.sem.pause()
        elif reason == b"backing off":
            await front.sem.back_off(30)
        refused = await service.answer("/wait")
        assert refused.status == status
        assert refused.body.replace(b": ", b":") == b'{"detail":"%s"}' % reason
        assert (25 if reason == b"backing off" else 1) <= refused.retry_after <= 60
        denied = await service.answer("/ws", kind="websocket")
        assert (denied.status, denied.retry_after >= 1) == (status, True)
        closed = await service.answer("/ws", kind="websocket", denial=False)
        assert closed.sent == [
            {"type": "websocket.close", "code": 1013, "reason": reason.decode()}
        ]
        assert not service.permits


@pytest.mark.parametrize("pause", [0, 30], ids=["full", "back_off"])
async def test_those_who_are_rejected_together_do_not_come_back_together(
    front: Front, pause: int
) -> None:
    """From the estimate to twice as much, in whole seconds, by chance."""
    async with front.serve(timeout=0) as service, front.sem:
        await front.sem.back_off(pause)
        found = {(await service.answer("/wait")).retry_after for _ in range(40)}
    least = max(1, pause)
    assert least - 5 * (pause > 0) <= min(found) < max(found) <= 2 * least


@pytest.mark.parametrize("said", [7.2, math.nan, -math.inf, None, "8", 1e300, -5.0])
async def test_retry_after_is_what_the_function_says_in_whole_seconds(
    front: Front, said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it says no number, the error's own estimate is sent, and a warning logged."""

    def later(full: SemaphoreFull) -> Any:
        assert full.name == front.sem.name
        return said

    async with front.serve(timeout=0, retry_after=later) as service, front.sem:
        answer = await service.answer("/wait")
    assert answer.status == 503
    assert answer.retry_after == 8 if said == 7.2 else 1 <= answer.retry_after <= 1e9
    warned = [
        record for record in caplog.records if getattr(record, "redsem_event", "") == "retry_after"
    ]
    assert len(warned) == (said not in (7.2, 1e300, -5.0))


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        *(("/wait", None, "http"), ("/echo", b"1234", "http"), ("/echo", b"", "http")),
        *(("/json", b'{"a":1}', "http"), ("/ws", None, "websocket")),
    ],
)
async def test_a_client_that_hangs_up_in_the_queue_leaves_it(
    front: Front, service: Here, path: str, body: bytes | None, kind: str
) -> None:
    """Its body is no reason to believe that it is still there."""
    async with front.sem:
        leaver = await service.ask(path, body, headers=JSON, kind=kind)
        await waiting(front.sem, 1)
        leaver.hang_up()
        await waiting(front.sem, 0)
    await all_free(front.sem)
    assert not service.permits


@pytest.mark.parametrize("length", [0, 4, 70_000, 300_000])
async def test_a_body_is_not_lost_in_the_queue(front: Front, service: Here, length: int) -> None:
    """Shorter and longer than what is read ahead."""
    async with front.sem:
        upload = await service.ask("/echo", b"x" * length)
        await waiting(front.sem, 1)
    assert (await upload.answer()).body == str(length).encode()
    assert (await service.answer("/json", b'{"a":1}', headers=JSON)).body == b'{"a":1}'
    await all_free(front.sem)


async def test_who_hangs_up_in_a_stream_gives_its_permit_back(front: Front, service: Here) -> None:
    """Cancelled streams that keep permits are what users complain of most."""
    leaver = await service.ask("/stream")
    await leaver.heard("http.response.body")
    assert await front.sem.locked()
    leaver.hang_up()
    await all_free(front.sem)


@pytest.mark.parametrize("path", ["/wait", "/sync"])
async def test_a_permit_lost_before_headers_is_503(front: Front, service: Here, path: str) -> None:
    """The client can try again; a 500 would blame the handler."""
    request = await service.ask(path)
    await until(front.sem.locked)
    await front.sem.delete()
    await request.heard("http.response.start")
    service.go()
    await request.answer()
    assert (request.status, request.retry_after in (1, 2)) == (503, True)
    assert b"the permit of this request was lost" in request.body
    await all_free(front.sem)


async def test_a_permit_lost_after_headers_cuts_it_off(front: Front, service: Here) -> None:
    """Otherwise a client would take a part for the whole. A WebSocket is told to come back."""
    request = await service.ask("/stream")
    await request.heard("http.response.body")
    await front.sem.delete()
    await request.answer()
    assert all(message.get("more_body", True) for message in request.sent)
    socket = await service.ask("/ws", kind="websocket")
    await until(front.sem.locked)
    await front.sem.delete()
    assert (await socket.answer()).sent[-1]["code"] == 1013
    await all_free(front.sem)


@pytest.mark.parametrize(
    "options", [{"semaphore": {"cancel_on_loss": False}}, {"cancel_on_loss": False}]
)
async def test_without_cancel_on_loss_it_is_finished(
    front: Front, options: dict[str, Any]
) -> None:
    """Where the limit caps load, half an answer would help nobody."""
    async with front.serve(**options) as service:
        request = await service.ask("/wait")
        await until(lambda: service.permits)
        [permit] = service.permits
        assert permit is not None
        await front.sem.delete()
        await until(lambda: permit.lost)
        service.go()
        assert (await request.answer()).status == 200


async def test_a_websocket_holds_a_permit_until_it_is_closed(front: Front, service: Here) -> None:
    """With its messages untouched."""
    socket = await service.ask("/ws", kind="websocket")
    await socket.heard("websocket.accept")
    for number, text in enumerate(("one", "two"), 1):
        socket.say({"type": "websocket.receive", "text": text})
        await socket.heard("websocket.send", number)
        assert socket.sent[-1]["text"] == text
    assert await front.sem.locked()
    socket.hang_up()
    await all_free(front.sem)


async def test_each_tenant_has_a_limit_of_its_own(front: Front) -> None:
    """Any value of the header is a key, and no value an error of the server."""
    names = ("acme", "{odd}\xff%7B", "*?[a]:/", "", "x" * 4000)
    tenants = [{"accept": "*/*", "x-tenant": name} for name in names]
    async with front.serve(per_tenant=True, timeout=0.5) as service:
        taken = [await service.ask("/wait", headers=tenant) for tenant in tenants]
        await until(lambda: len(service.permits) == len(tenants))
        more = [await service.ask("/wait", headers=tenant) for tenant in tenants]
        assert [(await request.answer()).status for request in more] == [503] * len(tenants)
        assert len(service.permits) == len(tenants)
        service.go()
        assert [(await request.answer()).status for request in taken] == [200] * len(tenants)


@pytest.mark.parametrize(("on_outage", "let_in"), [("closed", 0), ("open", 4), (2, 2)])
async def test_on_outage_decides_while_redis_is_away(
    front: Front, backend: MemoryBackend, on_outage: str | int, let_in: int
) -> None:
    """Without a permit, the handler sees none. The limit holds again when Redis is back."""
    async with front.serve(timeout=0.3, on_outage=on_outage, status=429) as service:
        backend.down()
        requests = [await service.ask("/wait") for _ in range(4)]
        await until(lambda: sum(r.task.done() for r in requests) == 4 - let_in)
        await until(lambda: len(service.permits) == let_in)
        assert service.permits == [None] * let_in
        service.go()
        refused = [r for r in requests if (await r.answer()).status != 200]
        assert len(refused) == 4 - let_in
        assert {(answer.status, answer.retry_after) for answer in refused} <= {(503, 1), (503, 2)}
        with patch.object(front.sem, "acquire", Mock(wraps=front.sem.acquire)) as asked:
            again = await service.answer("/wait")
        assert asked.call_args.kwargs["timeout"] == 0, "nobody waits for Redis again"
        assert again.status == (200 if let_in else 503), "what was let in has ended"
        backend.up()

        async def is_full() -> bool:
            async with front.sem:
                return (await service.answer("/wait")).status == 429

        await until(is_full, within=10)


async def test_aclose_turns_waiting_requests_away(front: Front, service: Here) -> None:
    """At the end of a process they learn at once that they had better go elsewhere."""
    first = await service.ask("/wait")
    await until(front.sem.locked)
    second = await service.ask("/wait")
    await waiting(front.sem, 1)
    closing = in_background(aclose(front.backend, drain=5.0))
    assert (await second.answer()).status == 503
    service.go()
    assert (await first.answer()).status == 200
    await closing


async def test_a_detached_permit_outlives_its_request(front: Front, service: Here) -> None:
    """A worker adopts it by its id. An error of the handler gives it back."""
    answer = await service.answer("/detach", b"")
    assert await front.sem.locked()
    async with front.sem.adopt(answer.body.decode().strip('"')):
        assert await front.sem.locked()
    await all_free(front.sem)
    assert (await service.answer("/error")).status == 500
    await all_free(front.sem)


@pytest.mark.parametrize("path", ["/wait", "/stream"])
async def test_a_cancelled_request_leaves_nothing(front: Front, service: Here, path: str) -> None:
    """A server cancels those that take too long at its end, the waiting ones too."""
    held = await service.ask(path)
    await until(front.sem.locked)
    in_queue = await service.ask("/wait")
    await waiting(front.sem, 1)
    for exchange in (in_queue, held):
        exchange.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchange.done()
    await all_free(front.sem)


async def test_what_redis_refuses_is_an_error(front: Front, service: Here) -> None:
    """A mistake in the configuration is neither full nor an outage: it belongs in the log."""
    async with Semaphore(front.backend, "web", 1):
        assert (await service.answer("/wait")).status == 500
    assert service.permits == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        *(({"on_outage": rule}, ValueError) for rule in ("ajar", 0)),
        ({"on_outage": True}, TypeError),
        *(({"status": 200}, ValueError), ({"status": 600}, ValueError)),
        *(({"retry_after": 5}, TypeError), ({"retry_after": asyncio.sleep}, TypeError)),
    ],
)
async def test_bad_arguments_are_refused_at_once(
    front: Front, options: dict[str, Any], error: type[Exception]
) -> None:
    """When the application is made, and not with the first request."""
    with pytest.raises(error, match=next(iter(options))):
        front.gate(front.sem, **options)
