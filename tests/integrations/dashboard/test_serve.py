"""The command that serves the dashboard by itself."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from redsem_async import FairSemaphore
from redsem_async.cli._serve import LOOPBACK, Guard
from redsem_async.dashboard._access import HEADERS
from redsem_async.testing import EmbeddedRedis
from tests.harness.wait import until
from tests.integrations.cli.commands import program
from tests.integrations.dashboard.site import TOKEN, Site

SERVE = ("-m", "redsem_async", "serve", "--port", "0")
MOUNTED = """
import os, socket
from contextlib import asynccontextmanager
import uvicorn
from fastapi import FastAPI
from redsem_async import from_url
from redsem_async.dashboard import dashboard

redis = from_url(os.environ["REDIS_URL"])

@asynccontextmanager
async def lifespan(app):
    yield
    await redis.aclose()
    print("ended", flush=True)

app = FastAPI(lifespan=lifespan)
app.mount("/ops", dashboard(redis))
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/ops/", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listener])
"""


@dataclass
class Served:
    """The running command."""

    process: "subprocess.Popen[bytes]"
    out: Path
    err: Path

    @property
    def address(self) -> str:
        """The only line that it prints."""
        [line] = self.out.read_text().splitlines()
        return line

    async def interrupted(self, by: int = signal.SIGINT) -> int:
        """Its exit code after Ctrl-C, or another signal."""
        self.process.send_signal(by)
        await until(lambda: self.process.poll() is not None, within=15)
        return self.process.returncode


async def empty(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers with nothing."""
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Any]:
    """Starts the command on a free port; it is ended with the block."""

    @asynccontextmanager
    async def start(
        *options: str, url: str, program: tuple[str, ...] = SERVE
    ) -> AsyncGenerator[Served]:
        out, err = tmp_path / "out", tmp_path / "err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
                [sys.executable, *program, *options],
                stdout=stdout,
                stderr=stderr,
                env=os.environ | {"REDIS_URL": url},
            )
        try:
            served = Served(process, out, err)
            await until(lambda: out.read_text() or process.poll() is not None, within=20)
            assert process.poll() is None, err.read_text()
            yield served
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    return start


async def test_one_command_serves_the_page(
    start: Callable[..., Any], server: EmbeddedRedis, redis: Redis, admin: Redis
) -> None:
    """On this machine only, without a way to change anything; it reads before a page is open."""

    async def reads() -> bool:
        return "cmdstat_scan" in await admin.info("commandstats")

    async with (
        FairSemaphore(redis, "gpu", 2),
        start("--title", "Production", url=server.url) as served,
    ):
        assert served.address.startswith("http://127.0.0.1:")
        assert served.address.endswith("/")
        await until(reads)
        async with httpx.AsyncClient(base_url=served.address, trust_env=False) as http:
            site = Site(served.address, http)

            async def is_shown() -> bool:  # the name is found before it is read
                return (await site.view(name="gpu")).get("held") == 1

            await until(is_shown)
            assert TOKEN.findall(await site.page("gpu")) == [""]
            assert "<title>gpu · Production</title>" in await site.page("gpu")
            async with site.stream() as events:
                await anext(events)
                assert await served.interrupted() == 0  # an open page does not keep it
        assert served.err.read_text() == ""


async def test_an_open_page_does_not_keep_the_server_of_an_application(
    start: Callable[..., Any], server: EmbeddedRedis
) -> None:
    """Its lifespan is not ours, and uvicorn waits for streams before it ends that."""
    async with (
        start(url=server.url, program=("-c", MOUNTED)) as served,
        httpx.AsyncClient(base_url=served.address, trust_env=False, timeout=30) as http,
        Site(served.address, http).stream() as events,
    ):
        await anext(events)
        assert await served.interrupted(signal.SIGTERM) == -signal.SIGTERM
        assert served.out.read_text().splitlines()[-1] == "ended"
        assert served.err.read_text() == ""


async def test_changes_need_the_token_of_the_address(
    start: Callable[..., Any], server: EmbeddedRedis, redis: Redis
) -> None:
    """Other users of the machine reach the port, too."""
    sem = FairSemaphore(redis, "gpu", 2)
    async with sem, start("--writable", url=server.url) as served:
        base, _, query = served.address.partition("?")
        assert query.startswith("token=")
        async with httpx.AsyncClient(
            base_url=base, trust_env=False, follow_redirects=True
        ) as http:
            for path in ("", "events", "metrics", "static/style.css", "?token=wrong"):
                assert (await http.get(path)).status_code == 401
            first = await http.get(served.address)
            assert first.status_code == 200
            assert str(first.url) == base  # the token is not in the address any more
            site = Site(base, http)
            assert (await site.post("pause", "gpu")).json()["ok"]
            assert (await sem.status()).set_limit == 0
        token = query.removeprefix("token=")
        bearer = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=base, trust_env=False, headers=bearer) as http:
            assert (await http.get("metrics")).status_code == 200
        assert await served.interrupted() == 0
        [line] = served.err.read_text().splitlines()
        assert "'gpu': pause by 'the holder of the token at 127.0.0.1'" in line
        assert token not in served.err.read_text()


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
        ("ops.example", 204),
        ("OPS.example:8642", 204),
        ("localhost:1", 204),
        ("[::1]:8642", 204),
        ("[::1]", 204),
        ("10.0.0.5:8642", 204),
        ("[fd00::5]:8642", 204),
        ("10.0.0.5.evil.example", 421),
    ],
)
async def test_other_names_of_the_host_are_refused(host: str, code: int) -> None:
    """A site may let its own name lead to this machine: its scripts would then read the page."""
    guard = Guard(empty, None, [*LOOPBACK, "ops.example"])
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(guard), base_url="http://x"
    ) as http:
        assert (await http.get("", headers={"Host": host})).status_code == code


@pytest.mark.release
async def test_without_redis_the_page_says_so(
    start: Callable[..., Any], server: EmbeddedRedis
) -> None:
    """An operator opens it when something is wrong."""
    server.kill()
    async with (
        start(url=server.url) as served,
        httpx.AsyncClient(base_url=served.address, trust_env=False) as http,
    ):
        view = await Site(served.address, http).view(lambda view: view["outage"])
    assert view["outage"]["text"] == "connection refused"
    assert view["outage"]["read_at"] is None


async def test_other_machines_need_the_token(server: EmbeddedRedis) -> None:
    """Whatever the host, a page that others reach is not open to all.

    A login leads to no other site, although a path that begins with two slashes would name one.
    """
    guard = Guard(empty, "s3cret", ["10.0.0.5"])
    transport = httpx.ASGITransport(guard)
    async with httpx.AsyncClient(transport=transport, base_url="http://10.0.0.5") as http:
        refused = await http.get("/")
        assert refused.status_code == 401
        evil = await http.get("http://10.0.0.5//evil.example/?token=s3cret")
        assert evil.headers["location"] == "/evil.example/"
        http.cookies.clear()
        response = await http.get("/semaphore?name=a%26b&token=s3cret")
        assert response.headers["location"] == "?name=a%26b"
        for answer in (refused, response):
            assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
            assert answer.headers["Cache-Control"] == "no-store"
        assert (await http.get("/semaphore")).status_code == 204


@pytest.mark.release
async def test_a_port_that_cannot_be_used_is_an_error(
    start: Callable[..., Any], server: EmbeddedRedis
) -> None:
    async with start(url=server.url) as served:
        port = served.address.rstrip("/").rpartition(":")[2]
        for wrong, code, says in ((port, 1, "in use"), ("70000", 2, "--port")):
            result = await program("serve", "--port", wrong, REDIS_URL=server.url)
            assert (result.code, says in result.err) == (code, True)
            assert "Traceback" not in result.err
