"""Where the user's Redis is, and how a command talks to it: once, briefly, and saying so."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import typer
from redis.asyncio import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AskError, NoPermissionError, RedisClusterException, RedisError

from redsem_async import SemaphoreError, aclose, from_url

FAILED = 1  # Redis could not be asked or refused, or `doctor` found a problem
USAGE_ERROR = 2
NOT_FOUND = 3  # Redis knows nothing of that name
NOT_HELD = 4  # the id that was to be kicked holds nothing
INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended

CONNECT_TIMEOUT = 5.0  # seconds to connect
REPLY_TIMEOUT = 10.0  # seconds for an answer

REDIS_ERRORS = (SemaphoreError, RedisError, RedisClusterException, OSError)
"""What Redis, or the way there, may bring about."""

CLUSTER_NODE = "it is a node of a cluster: use --cluster"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Target:
    """Whose semaphores a command is about.

    Attributes:
        url: of the server, or of any node of the cluster.
        prefix: of the keys.
        cluster: whether it is a cluster.
    """

    url: str
    prefix: str
    cluster: bool = False

    @property
    def display_url(self) -> str:
        """What to call it: without user, password and options."""
        return display_url(self.url)

    def at(self, host: str, port: int) -> "Target":
        """One server, with the scheme, user, password and options of this URL."""
        parts = urlsplit(self.url)
        user, at, _ = parts.netloc.rpartition("@")
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        parts = parts._replace(netloc=f"{user}{at}{address}")
        if parts.scheme == "unix":
            parts = parts._replace(scheme="redis", path="")
        return replace(self, url=parts.geturl(), cluster=False)


def display_url(url: str) -> str:
    """What to call *url*: without user, password and options."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def valid_url(ctx: typer.Context, url: str | None) -> str | None:
    """Return *url*, or refuse one that cannot be read. It is never quoted."""
    if url is None:
        return None
    try:
        pool: Any = from_url(url).connection_pool
        pool.make_connection()  # does not connect
        parts = urlsplit(url)
    except ValueError as error:
        usage_error(ctx, str(error))
    except TypeError as error:
        usage_error(ctx, f"the URL has an option that does not fit: {error}")
    if parts.scheme != "unix" and "@" in f"{parts.path}?{parts.query}#{parts.fragment}":
        # A password with a slash: what looks like a host, or a port, would be half of it.
        usage_error(ctx, "a password in the URL has to be percent-encoded")
    return url


@contextlib.asynccontextmanager
async def connected(
    target: Target, *, connect_timeout: float = CONNECT_TIMEOUT
) -> AsyncGenerator[Any]:
    """A client for *place*, that gives up soon and says why; closed with the block."""
    options: dict[str, Any] = {
        "socket_connect_timeout": connect_timeout,
        "socket_timeout": max(connect_timeout, REPLY_TIMEOUT),
    }
    client: Any
    if target.cluster:
        client = RedisCluster.from_url(target.url, retry=Retry(NoBackoff(), 0), **options)
    else:
        client = from_url(target.url, **options)
    try:
        if target.cluster:
            await client.initialize()
        yield client
    finally:
        await aclose(client)
        await client.aclose()


async def hello(client: Any) -> dict[str, str]:
    """What the server says of itself to whoever says HELLO, which nobody is denied.

    Raises:
        ResponseError: it does not know the word.
    """
    said: Any = await client.execute_command("HELLO")
    if hasattr(said, "items"):
        said = [part for pair in said.items() for part in pair]  # flat, as in RESP2
    data = zip(said[::2], said[1::2], strict=True)
    return {as_text(key): as_text(value) for key, value in data if isinstance(value, bytes | str)}


def run(work: Coroutine[Any, Any, T], target: Target) -> T:
    """Run *work* to its end; what goes wrong is one line and an exit code."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except REDIS_ERRORS as error:
        fail(f"{target.display_url}: {describe(error)}", FAILED)
    except ValueError as error:  # a name that cannot be one
        fail(str(error), USAGE_ERROR)


def fail(text: str, code: int) -> NoReturn:
    """Say why in one line on stderr, and exit."""
    typer.echo(printable(" ".join(text.split())), err=True)
    raise typer.Exit(code)


def usage_error(ctx: typer.Context, text: str) -> NoReturn:
    """Wrong use: say why in one line, and exit; in silence where a shell completes."""
    if ctx.resilient_parsing:
        raise typer.Exit(USAGE_ERROR)
    fail(text, USAGE_ERROR)


def describe(error: BaseException) -> str:
    """What an error says, in one line, and what may help."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, AskError) or "MOVED" in text:  # a MovedError is one
        return CLUSTER_NODE
    if isinstance(error, NoPermissionError):
        return f"{text} (docs/operating.md lists what this command needs)"
    return text


def printable(text: str) -> str:
    """*text* with nothing in it that a terminal would act on."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def as_text(value: bytes | str) -> str:
    """What a server answered, as text, however the client was told to decode it."""
    return value if isinstance(value, str) else value.decode(errors="replace")
