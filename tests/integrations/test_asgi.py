"""ConcurrencyLimitMiddleware around applications of every kind, with no server in between."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from redsem_async import (
    AnySemaphore,
    FairSemaphore,
    ModeMismatch,
    Permit,
    PermitLost,
    Semaphore,
    SemaphoreGroup,
    aclose,
)
from redsem_async.asgi import ConcurrencyLimitMiddleware, header
from redsem_async.testing import MemoryBackend
from tests.harness.wait import all_free, until, waiting
from tests.integrations.exchange import Exchange, Message

pytestmark = pytest.mark.one_mode

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

START: Message = {"type": "http.response.start", "status": 200, "headers": []}


class App:
    """Answers when it is told to, and remembers what happened in it."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.inside = 0
        self.entered = 0
        self.scopes: list[Any] = []
        self.failed: list[BaseException] = []

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        self.inside += 1
        self.entered += 1
        self.scopes.append(scope)
        try:
            await getattr(self, scope["path"].strip("/") or "plain")(receive, send)
        except BaseException as error:
            self.failed.append(error)
            raise
        finally:
            self.inside -= 1

    async def plain(self, receive: Receive, send: Send) -> None:
        await self.go.wait()
        await send(START)
        await send({"type": "http.response.body", "body": b"done"})

    async def echo(self, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        await send(START)
        await send({"type": "http.response.body", "body": body})

    async def stream(self, receive: Receive, send: Send) -> None:
        await send(START)
        while not self.go.is_set():
            await send({"type": "http.response.body", "body": b".", "more_body": True})
            await asyncio.sleep(0.001)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def trailers(self, receive: Receive, send: Send) -> None:
        await send({**START, "trailers": True})
        await send({"type": "http.response.body", "body": b"."})
        await self.go.wait()
        await send({"type": "http.response.trailers", "headers": [], "more_trailers": False})

    async def afterwards(self, receive: Receive, send: Send) -> None:
        await send(START)
        await send({"type": "http.response.body", "body": b"."})
        await self.go.wait()

    async def idle(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await self.go.wait()

    async def ws(self, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] != "websocket.disconnect":
            await send({"type": "websocket.send", "text": message["text"]})


@pytest.fixture
def backend() -> MemoryBackend:
    """Keeps the semaphores of a test."""
    return MemoryBackend()


@pytest.fixture(params=[Semaphore, FairSemaphore], ids=["zset", "fair"])
def sem(request: pytest.FixtureRequest, backend: MemoryBackend) -> AnySemaphore:
    """A semaphore with one place."""
    made: AnySemaphore = request.param(backend, "web", 1)
    return made


async def entered(app: App, count: int = 1) -> None:
    await until(lambda: app.entered == count)


async def test_a_request_holds_a_permit_until_its_body_is_out(sem: AnySemaphore) -> None:
    """The limit counts requests that are being answered, streamed bodies included."""
    app = App()
    async with Exchange(ConcurrencyLimitMiddleware(app, sem), "/stream") as stream:
        await stream.heard("http.response.body", 3)
        assert await sem.available() == 0
        app.go.set()
        await stream.done()
    await all_free(sem)
    assert stream.body.startswith(b"...")


async def test_the_limit_holds_and_who_waits_is_served_in_turn(sem: AnySemaphore) -> None:
    """Never two at once behind a limit of one, and nobody is forgotten."""
    app = App()
    limited = ConcurrencyLimitMiddleware(app, sem)
    first, second = Exchange(limited), Exchange(limited)
    await entered(app)
    await waiting(sem, 1)
    assert app.entered == 1
    app.go.set()
    assert (await first.done()).status == (await second.done()).status == 200
    await all_free(sem)


@pytest.mark.parametrize("status", [503, 429])
async def test_full_is_answered_with_retry_after(sem: AnySemaphore, status: int) -> None:
    """A client, or the balancer before it, learns when to come back; no header came before."""
    app = App()
    limited = ConcurrencyLimitMiddleware(app, sem, timeout=0.05, status=status)
    async with Exchange(limited):
        await entered(app)
        async with Exchange(limited) as refused:
            await refused.done()
    assert refused.status == status
    assert refused.body == b'{"detail": "all places are taken"}'
    retry_after = refused.header(b"retry-after")
    assert retry_after is not None
    assert retry_after.isdigit()
    assert 1 <= int(retry_after) <= 60
    assert app.entered == 1


async def test_a_full_line_is_answered_at_once(backend: MemoryBackend) -> None:
    """`max_waiters` bounds how many requests a process keeps open for nothing."""
    app = App()
    sem = FairSemaphore(backend, "web", 1, max_waiters=1)
    limited = ConcurrencyLimitMiddleware(app, sem)
    async with Exchange(limited), Exchange(limited):
        await waiting(sem, 1)
        async with Exchange(limited) as refused:
            await refused.done()
        assert refused.status == 503
        assert int(refused.header(b"retry-after") or b"") >= 1


async def test_a_client_that_hangs_up_in_line_gives_its_place_up(sem: AnySemaphore) -> None:
    """Nobody should hold a place in line, or be answered, who is not there any more."""
    app = App()
    limited = ConcurrencyLimitMiddleware(app, sem)
    async with Exchange(limited):
        await entered(app)
        async with Exchange(limited, "/echo", method="POST", body=b"x" * 1000) as leaver:
            await waiting(sem, 1)
            leaver.hang_up()
            await leaver.done()
        assert leaver.sent == []
        await waiting(sem, 0)
    assert app.entered == 1
    await all_free(sem)


async def test_what_was_read_in_line_reaches_the_application(sem: AnySemaphore) -> None:
    """Listening for a hang-up takes nothing away from whom the body is for."""
    app = App()
    limited = ConcurrencyLimitMiddleware(app, sem)
    async with Exchange(limited), Exchange(limited, "/echo", body=None) as upload:
        await waiting(sem, 1)
        for part in (b"a" * 40_000, b"b" * 40_000, b"c" * 40_000):
            upload.say({"type": "http.request", "body": part, "more_body": True})
        upload.say({"type": "http.request", "body": b"d", "more_body": False})
        app.go.set()
        await upload.done()
    assert upload.body == b"a" * 40_000 + b"b" * 40_000 + b"c" * 40_000 + b"d"


async def test_little_of_a_body_is_read_in_line() -> None:
    """Whoever waits in a long line with an upload must not fill our memory meanwhile."""
    sem = FairSemaphore(MemoryBackend(), "web", 1)
    app = App()
    limited = ConcurrencyLimitMiddleware(app, sem)
    async with Exchange(limited), Exchange(limited, "/echo", body=None) as upload:
        await waiting(sem, 1)
        for _ in range(100):
            upload.say({"type": "http.request", "body": b"x" * 16_384, "more_body": True})
        await until(lambda: upload._incoming.qsize() <= 96)
        await sem.status()
        assert upload._incoming.qsize() == 96


async def test_few_empty_messages_are_read_ahead(sem: AnySemaphore) -> None:
    """They carry nothing, and take memory all the same: who floods a WebSocket is held up."""
    app = App()
    limited = ConcurrencyLimitMiddleware(app, sem)
    async with Exchange(limited, "/idle", kind="websocket") as flood:
        for _ in range(2000):
            flood.say({"type": "websocket.receive", "text": ""})
        await flood.heard("websocket.accept")
        await sem.status()
        await asyncio.sleep(0.05)
        assert flood._incoming.qsize() > 1000
        app.go.set()
        await flood.done()


async def test_a_stream_whose_client_left_is_ended(sem: AnySemaphore) -> None:
    """Not every application listens for a hang-up: the next chunk tells it."""
    app = App()
    async with Exchange(ConcurrencyLimitMiddleware(app, sem), "/stream") as stream:
        await stream.heard("http.response.body", 3)
        stream.hang_up()
        await stream.done()
    assert isinstance(app.failed[0], OSError)
    await all_free(sem)


async def test_what_an_application_does_afterwards_is_not_counted(sem: AnySemaphore) -> None:
    """Background tasks have no client: a place in a limit on requests is not for them."""
    app = App()
    async with Exchange(ConcurrencyLimitMiddleware(app, sem), "/afterwards"):
        await entered(app)
        await all_free(sem)
        assert app.inside == 1


async def test_trailers_belong_to_the_response(sem: AnySemaphore) -> None:
    """The last byte of the body is not the last of such a response."""
    app = App()
    async with Exchange(ConcurrencyLimitMiddleware(app, sem), "/trailers") as exchange:
        await exchange.heard("http.response.body")
        assert await sem.available() == 0
        app.go.set()
        await exchange.done()
    await all_free(sem)


async def test_a_permit_lost_before_the_headers_gives_503(
    sem: AnySemaphore, backend: MemoryBackend
) -> None:
    """The client can try again; a 500, or half an answer, would say something else."""
    app = App()
    async with Exchange(ConcurrencyLimitMiddleware(app, sem)) as exchange:
        await entered(app)
        backend.lose(app.scopes[0]["redsem_async.permit"])
        await exchange.done()
    assert exchange.status == 503
    assert exchange.header(b"retry-after") == b"1"
    assert isinstance(app.failed[0], asyncio.CancelledError)
    await all_free(sem)


async def test_a_permit_lost_after_the_headers_ends_the_connection(
    sem: AnySemaphore, backend: MemoryBackend
) -> None:
    """An exception is how an application has its server cut a response off."""
    app = App()
    async with Exchange(ConcurrencyLimitMiddleware(app, sem), "/stream") as exchange:
        await exchange.heard("http.response.body")
        backend.lose(app.scopes[0]["redsem_async.permit"])
        with pytest.raises(PermitLost):
            await exchange.done()
    assert exchange.sent[-1]["more_body"]
    await all_free(sem)


async def test_without_cancel_on_loss_a_request_is_finished(backend: MemoryBackend) -> None:
    """Where the limit caps load, half an answer would help nobody."""
    app = App()
    sem = Semaphore(backend, "web", 1, cancel_on_loss=False)
    async with Exchange(ConcurrencyLimitMiddleware(app, sem)) as exchange:
        await entered(app)
        permit = app.scopes[0]["redsem_async.permit"]
        backend.lose(permit)
        await until(lambda: permit.lost)
        app.go.set()
        await exchange.done()
    assert exchange.status == 200


async def test_an_applications_own_loss_stays_its_own(sem: AnySemaphore) -> None:
    """It may use other semaphores: their errors are for its own handlers."""
    error = PermitLost("another", "id", "for a test")

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        raise error

    async with Exchange(ConcurrencyLimitMiddleware(app, sem)) as exchange:
        with pytest.raises(PermitLost) as raised:
            await exchange.done()
    assert raised.value is error
    assert exchange.sent == []
    await all_free(sem)


async def test_a_websocket_holds_a_permit_until_it_is_closed(sem: AnySemaphore) -> None:
    """However long it lasts, and with its messages untouched."""
    app = App()
    async with Exchange(ConcurrencyLimitMiddleware(app, sem), "/ws", kind="websocket") as socket:
        await socket.heard("websocket.accept")
        for word in ("one", "two"):
            socket.say({"type": "websocket.receive", "text": word})
        await socket.heard("websocket.send", 2)
        assert [m.get("text") for m in socket.sent[1:]] == ["one", "two"]
        assert await sem.available() == 0
        socket.hang_up()
        await socket.done()
    await all_free(sem)


@pytest.mark.parametrize("denial", [True, False])
async def test_a_websocket_that_finds_no_place_is_denied(sem: AnySemaphore, denial: bool) -> None:
    """With a whole response where the server can send one, and with a close code elsewhere."""
    app = App()
    limited = ConcurrencyLimitMiddleware(app, sem, timeout=0.05)
    async with Exchange(limited, "/ws", kind="websocket") as first:
        await first.heard("websocket.accept")
        async with Exchange(limited, "/ws", kind="websocket", denial=denial) as refused:
            await refused.done()
    if denial:
        assert refused.kinds == ["websocket.http.response.start", "websocket.http.response.body"]
        assert refused.status == 503
        assert int(refused.header(b"retry-after") or b"") >= 1
    else:
        reason = "all places are taken"
        assert refused.sent == [{"type": "websocket.close", "code": 1013, "reason": reason}]


async def test_a_websocket_that_hangs_up_in_line_gives_its_place_up(sem: AnySemaphore) -> None:
    """The same as for a request."""
    app = App()
    limited = ConcurrencyLimitMiddleware(app, sem)
    async with Exchange(limited):
        await entered(app)
        async with Exchange(limited, "/ws", kind="websocket") as leaver:
            await waiting(sem, 1)
            leaver.hang_up()
            await leaver.done()
        assert leaver.sent == []
        await waiting(sem, 0)


async def test_a_websocket_whose_permit_is_lost_is_closed(
    sem: AnySemaphore, backend: MemoryBackend
) -> None:
    """With the code that says to come back later."""
    app = App()
    async with Exchange(ConcurrencyLimitMiddleware(app, sem), "/ws", kind="websocket") as socket:
        await socket.heard("websocket.accept")
        backend.lose(app.scopes[0]["redsem_async.permit"])
        await socket.done()
    assert socket.sent[-1]["type"] == "websocket.close"
    assert socket.sent[-1]["code"] == 1013
    await all_free(sem)


async def test_lifespan_and_what_is_exempt_need_no_permit(sem: AnySemaphore) -> None:
    """A health check that waits in line would have the process killed for being busy."""
    seen: list[str] = []

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])
        assert "redsem_async.permit" not in scope

    limited = ConcurrencyLimitMiddleware(app, sem, exempt=lambda scope: scope["path"] == "/alive")
    async with sem:
        await Exchange(limited, kind="lifespan").done()
        await Exchange(limited, "/alive").done()
    assert seen == ["lifespan", "http"]


async def test_each_tenant_has_a_limit_of_its_own(backend: MemoryBackend) -> None:
    """One that is at its limit does not stop another, whatever stands in the header."""
    app = App()
    group = SemaphoreGroup(backend, "tenants", 1)
    limited = ConcurrencyLimitMiddleware(app, group, key=header("X-Tenant"), timeout=0.05)
    names = [b"acme", b"{odd}\xff\x00\r\n", "naïve ☃".encode(), b"", b"x" * 4000]
    taken = [Exchange(limited, headers=((b"x-tenant", name),)) for name in names]
    await entered(app, len(names))
    for name in names:
        async with Exchange(limited, headers=((b"x-tenant", name),)) as refused:
            await refused.done()
        assert refused.status == 503
    app.go.set()
    for exchange in taken:
        assert (await exchange.done()).status == 200


async def test_closed_in_an_outage_means_503(
    sem: AnySemaphore, backend: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """Fail closed: whom no permit can be had for is not let in. And then all is well again."""
    app = App()
    app.go.set()
    limited = ConcurrencyLimitMiddleware(app, sem, timeout=0.05, status=429)
    backend.down()
    for _ in range(3):
        refused = await Exchange(limited).done()
        assert refused.status == 503, "that all places are taken is not known"
        assert refused.header(b"retry-after") == b"1"
    backend.up()
    assert (await Exchange(limited).done()).status == 200
    said = [record.message for record in caplog.records if "Redis is" in record.message]
    assert said == [
        "Redis is unavailable: rejecting requests (on_outage='closed')",
        "Redis is available again: requests need a permit",
    ]


async def test_open_in_an_outage_lets_everybody_through(
    sem: AnySemaphore, backend: MemoryBackend
) -> None:
    """Fail open: the limit is worth less than the service."""
    app = App()
    limited = ConcurrencyLimitMiddleware(app, sem, timeout=0.05, on_outage="open")
    backend.down()
    exchanges = [Exchange(limited) for _ in range(5)]
    await entered(app, 5)
    assert [scope["redsem_async.permit"] for scope in app.scopes] == [None] * 5
    app.go.set()
    assert [(await exchange.done()).status for exchange in exchanges] == [200] * 5


async def test_a_local_limit_rules_in_an_outage(sem: AnySemaphore, backend: MemoryBackend) -> None:
    """As many at a time as this process can bear; back to the shared limit afterwards."""
    app = App()
    limited = ConcurrencyLimitMiddleware(app, sem, timeout=0.05, on_outage=2)
    backend.down()
    exchanges = [Exchange(limited) for _ in range(5)]
    await entered(app, 2)
    await until(lambda: sum(exchange.task.done() for exchange in exchanges) == 3)
    app.go.set()
    statuses = sorted([(await exchange.done()).status for exchange in exchanges])
    assert statuses == [200, 200, 503, 503, 503]
    assert (await Exchange(limited).done()).status == 200, "places are given back"
    backend.up()
    async with sem:
        assert (await Exchange(limited).done()).status == 503


@pytest.mark.release
async def test_nobody_waits_for_long_who_comes_into_an_outage(
    sem: AnySemaphore, backend: MemoryBackend
) -> None:
    """The first may ride it out for its whole timeout; a thousand after it must not."""
    app = App()
    app.go.set()
    limited = ConcurrencyLimitMiddleware(app, sem, timeout=0.5, on_outage="open")
    backend.down()
    await Exchange(limited).done()
    started = asyncio.get_running_loop().time()
    await asyncio.gather(*(Exchange(limited).done() for _ in range(100)))
    assert asyncio.get_running_loop().time() - started < 0.5


async def test_one_at_a_time_asks_whether_an_outage_is_over(
    sem: AnySemaphore, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Redis is silent an answer is missed after seconds: not everybody may wait for it."""
    app = App()
    app.go.set()
    limited = ConcurrencyLimitMiddleware(app, sem, timeout=0.05, on_outage="open")
    backend.down()
    await Exchange(limited).done()
    acquire, asked, silence = sem.acquire, asyncio.Event(), asyncio.Event()

    async def asks(**options: Any) -> Permit:
        asked.set()
        await silence.wait()
        return await acquire(**options)

    monkeypatch.setattr(sem, "acquire", asks)
    async with Exchange(limited) as first:
        await asked.wait()
        await asyncio.wait_for(asyncio.gather(*(Exchange(limited).done() for _ in range(9))), 2)
        assert not first.task.done()
        backend.up()
        silence.set()
        await first.done()
    async with asyncio.timeout(2), Exchange(limited) as next_one:
        await next_one.done()
    permits = [scope["redsem_async.permit"] for scope in app.scopes]
    assert [permit is None for permit in permits] == [True] * 10 + [False] * 2


async def test_aclose_turns_those_in_line_away(sem: AnySemaphore, backend: MemoryBackend) -> None:
    """At the end of a process they learn at once that they had better go elsewhere."""
    app = App()
    limited = ConcurrencyLimitMiddleware(app, sem)
    async with Exchange(limited), Exchange(limited) as in_line:
        await entered(app)
        await waiting(sem, 1)
        closing = asyncio.create_task(aclose(backend, drain=1.0))
        assert (await in_line.done()).status == 503
        app.go.set()
        await closing


async def test_a_permit_that_is_handed_on_outlives_the_request(sem: AnySemaphore) -> None:
    """To a worker, which takes it over by the id that the application put into its job."""

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        permit: Permit = scope["redsem_async.permit"]
        await send(START)
        await send({"type": "http.response.body", "body": (await permit.detach(60)).encode()})

    answer = await Exchange(ConcurrencyLimitMiddleware(app, sem)).done()
    assert await sem.available() == 0
    async with sem.adopt(answer.body.decode()):
        assert await sem.available() == 0
    await all_free(sem)


async def test_an_error_of_the_application_is_the_servers(sem: AnySemaphore) -> None:
    """It passes through, and the permit is given back."""

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    async with Exchange(ConcurrencyLimitMiddleware(app, sem)) as exchange:
        with pytest.raises(ZeroDivisionError):
            await exchange.done()
    await all_free(sem)


async def test_a_servers_error_reaches_the_application(sem: AnySemaphore) -> None:
    """Reading ahead must not hide it."""

    async def receive() -> Message:
        raise ZeroDivisionError

    app, sent = App(), list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    with pytest.raises(ZeroDivisionError):
        scope: Message = {"type": "http", "path": "/echo", "headers": []}
        await ConcurrencyLimitMiddleware(app, sem)(scope, receive, send)
    await all_free(sem)


@pytest.mark.parametrize("in_line", [True, False])
async def test_cancelled_it_leaves_nothing_behind(sem: AnySemaphore, in_line: bool) -> None:
    """As a server does that has waited long enough for its requests."""
    app = App()
    limited = ConcurrencyLimitMiddleware(app, sem)
    async with Exchange(limited) as first:
        await entered(app)
        async with Exchange(limited) as second:
            await waiting(sem, 1)
            cancelled = second if in_line else first
            cancelled.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled.done()
            assert (await sem.status()).waiting == 0
    await all_free(sem)


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
        ({"key": header("x-tenant")}, TypeError),
    ],
)
async def test_what_cannot_be_meant_is_told_at_once(
    sem: AnySemaphore, options: dict[str, Any], error: type[Exception]
) -> None:
    """When the application is made, and not with the first request."""
    with pytest.raises(error):
        ConcurrencyLimitMiddleware(App(), sem, **options)


async def test_a_group_needs_a_key(backend: MemoryBackend) -> None:
    """There is no semaphore of no key."""
    with pytest.raises(TypeError, match="key="):
        ConcurrencyLimitMiddleware(App(), SemaphoreGroup(backend, "tenants", 1))
    with pytest.raises(TypeError, match="semaphore"):
        ConcurrencyLimitMiddleware(App(), backend)  # type: ignore[arg-type]


async def test_what_redis_refuses_is_an_error(sem: AnySemaphore, backend: MemoryBackend) -> None:
    """A mistake in the configuration is neither full nor an outage: it belongs in the log."""
    app = App()
    other = Semaphore if isinstance(sem, FairSemaphore) else FairSemaphore
    async with (
        sem,
        Exchange(ConcurrencyLimitMiddleware(app, other(backend, "web", 1))) as exchange,
    ):
        with pytest.raises(ModeMismatch):
            await exchange.done()
    assert exchange.sent == []
