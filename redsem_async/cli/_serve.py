"""``redsem-async serve``, the dashboard by itself."""

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import logging
import secrets
import socket
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl, urlencode

import click

from ._options import Number, flag, on_target, option
from ._stdout import StdoutFailed
from ._target import FAILED, REDIS_ERRORS, Target, connected, describe, fail, printable

LOOPBACK = ("127.0.0.1", "::1", "localhost")
EVERY_ADDRESS = ("", "0.0.0.0", "::")
GRACEFUL = 1  # seconds for open pages when it ends
NEEDED = ("jinja2", "prometheus_client", "starlette", "uvicorn")


@click.command
@option("--host", "Address to listen on. 0.0.0.0 listens on all.", default="127.0.0.1")
@option("--port", "0 chooses a free port.", Number("n", 0, 65535), 8642)
@flag("--writable", help="Add buttons to set limits, pause, back off, revoke and delete.")
@option("--allow-host", "Another host name of the dashboard. Repeatable.", multiple=True)
@option("--interval", "Time between two reads of an open page.", Number("seconds", 0.1, 60), 0.5)
@option("--title", "Title of the pages, such as the environment's name.", default="Semaphores")
@on_target
def serve(
    target: Target,
    host: str,
    port: int,
    allow_host: tuple[str, ...],
    interval: float,
    title: str,
    *,
    writable: bool,
) -> None:
    """Serve the dashboard, which shows holders and waiters in a browser.

    Prints the address to open. With --writable, or with a --host that other machines can reach,
    the address has a secret token, which the browser keeps. Anyone who has the token can do
    everything the page can. Changes are logged to stderr.
    """
    for module in NEEDED:
        if find_spec(module) is None:
            raise ModuleNotFoundError(name=module)
    from redsem_async.dashboard import dashboard

    token = secrets.token_urlsafe(24) if writable or host not in LOOPBACK else None
    name = socket.gethostname() if host in EVERY_ADDRESS else host
    hosts = [*LOOPBACK, name, *allow_host]

    async def run() -> None:
        async with connected(target) as client:
            app: Any = dashboard(
                client,
                prefix=target.prefix,
                writable=writable,
                authorize=_token_holder if writable else None,
                interval=interval,
                title=title,
            )
            await _serve(Guard(app, token, hosts), host, port, name, token)

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            asyncio.run(run())
        except REDIS_ERRORS as error:  # of a cluster
            fail(f"{target.display_url}: {describe(error)}", FAILED)


def _token_holder(request: Any, action: str, name: str | None) -> str:
    """Anyone whom `Guard` admits may do everything."""
    del action, name
    return f"the holder of the token at {request.client.host if request.client else 'unknown'}"


class Guard:
    """Lets in requests to a known host, and with the token if there is one.

    The name of the host matters, because a page of another site can let its own name lead to this
    machine (DNS rebinding), and its scripts then count as ours. An address is no such name.
    """

    def __init__(self, app: Any, token: str | None, hosts: list[str]) -> None:
        self._app = app
        self._token = token
        # Cookies do not tell ports apart, so each server has a name of its own.
        self._cookie = f"redsem_{hashlib.sha256((token or '').encode()).hexdigest()[:12]}"
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        answer = self._answer(scope) if scope["type"] == "http" else None
        await (answer or self._app)(scope, receive, send)

    def _answer(self, scope: Any) -> Any:
        """The response to a request that is not let in. None for one that is."""
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse, RedirectResponse

        from redsem_async.dashboard._access import HEADERS

        request = Request(scope)
        own = {**HEADERS, "Cache-Control": "no-store"}
        if not self._is_known(request.headers.get("host", "")):
            text = "Unknown host name. Allow it with redsem-async serve --allow-host NAME.\n"
            return PlainTextResponse(text, 421, own)
        header = request.headers.get("authorization", "")
        tokens = (request.cookies.get(self._cookie, ""), header.removeprefix("Bearer "))
        if self._token is None or any(map(self._matches, tokens)):
            return None
        if self._matches(request.query_params.get("token", "")):
            rest = [(k, v) for k, v in parse_qsl(request.url.query) if k != "token"]
            # Out of the address, where histories and screenshots would keep it.
            # A path with two slashes in front would be another host.
            place = f"?{urlencode(rest)}" if rest else f"/{request.url.path.lstrip('/')}"
            response = RedirectResponse(place, 303, own)
            response.set_cookie(self._cookie, self._token, httponly=True, samesite="lax")
            return response
        text = "Open the address that redsem-async serve printed. It contains the token.\n"
        return PlainTextResponse(text, 401, own)

    def _is_known(self, host: str) -> bool:
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        name = name.strip("[]").lower()
        return name in self._hosts or _is_address(name)

    def _matches(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(
            given.encode(), self._token.encode()
        )


def _is_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


async def _serve(guard: Guard, host: str, port: int, name: str, token: str | None) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        failed: StdoutFailed | None = None

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                bound = self.servers[0].sockets[0].getsockname()[1]
                shown = f"[{name}]" if ":" in name else name
                secret = f"?{urlencode({'token': token})}" if token else ""
                try:
                    click.echo(printable(f"http://{shown}:{bound}/{secret}"))
                except StdoutFailed as failed:  # raised later, so that it ends in good order
                    self.failed, self.should_exit = failed, True

    config = uvicorn.Config(
        guard,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL,
    )
    try:
        server = Server(config)
        await server.serve()
    except SystemExit:  # it could not listen, and has said so
        fail("could not listen: use --port for another port, --host for another address", FAILED)
    if server.failed is not None:
        raise server.failed
