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

TROUBLE = 1  # Redis could not be asked or refused, or `doctor` found a problem
WRONG_USE = 2
UNKNOWN = 3  # Redis knows nothing of that name
NOT_HELD = 4  # the id that was to be kicked holds nothing
INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended

CONNECT_TIME = 5.0  # seconds to connect
ANSWER_TIME = 10.0  # seconds for an answer

FAILURES = (SemaphoreError, RedisError, RedisClusterException, OSError)
"""What Redis, or the way there, may bring about."""

ONE_OF_A_CLUSTER = "it is a node of a cluster: use --cluster"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
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
    def shown(self) -> str:
        """What to call it: without user, password and options."""
        return shown(self.url)

    def at(self, host: str, port: int) -> "Place":
        """One server, with the scheme, user, password and options of this URL."""
        parts = urlsplit(self.url)
        user, at, _ = parts.netloc.rpartition("@")
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        parts = parts._replace(netloc=f"{user}{at}{address}")
        if parts.scheme == "unix":
            parts = parts._replace(scheme="redis", path="")
        return replace(self, url=parts.geturl(), cluster=False)


def shown(url: str) -> str:
    """What to call *url*: without user, password and options."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def usable(ctx: typer.Context, url: str | None) -> str | None:
    """Return *url*, or refuse one that cannot be read. It is never quoted."""
    if url is None:
        return None
    try:
        pool: Any = from_url(url).connection_pool
        pool.make_connection()  # does not connect
        parts = urlsplit(url)
    except ValueError as error:
        refuse(ctx, str(error))
    except TypeError as error:
        refuse(ctx, f"the URL has an option that does not fit: {error}")
    if parts.scheme != "unix" and "@" in f"{parts.path}?{parts.query}#{parts.fragment}":
        # A password with a slash: what looks like a host, or a port, would be half of it.
        refuse(ctx, "a password in the URL has to be percent-encoded")
    return url


@contextlib.asynccontextmanager
async def connected(place: Place, *, patience: float = CONNECT_TIME) -> AsyncGenerator[Any]:
    """A client for *place*, that gives up soon and says why; closed with the block."""
    options: dict[str, Any] = {
        "socket_connect_timeout": patience,
        "socket_timeout": max(patience, ANSWER_TIME),
    }
    client: Any
    if place.cluster:
        client = RedisCluster.from_url(place.url, retry=Retry(NoBackoff(), 0), **options)
    else:
        client = from_url(place.url, **options)
    try:
        if place.cluster:
            await client.initialize()
        yield client
    finally:
        await aclose(client)
        await client.aclose()


async def greeting(client: Any) -> dict[str, str]:
    """What the server says of itself to whoever says HELLO, which nobody is denied.

    Raises:
        ResponseError: it does not know the word.
    """
    said: Any = await client.execute_command("HELLO")
    if hasattr(said, "items"):
        said = [part for pair in said.items() for part in pair]  # flat, as in RESP2
    told = zip(said[::2], said[1::2], strict=True)
    return {plain(key): plain(value) for key, value in told if isinstance(value, bytes | str)}


def run(work: Coroutine[Any, Any, T], place: Place) -> T:
    """Run *work* to its end; what goes wrong is one line and an exit code."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except FAILURES as error:
        fail(f"{place.shown}: {sentence(error)}", TROUBLE)
    except ValueError as error:  # a name that cannot be one
        fail(str(error), WRONG_USE)


def fail(text: str, code: int) -> NoReturn:
    """Say why in one line on stderr, and exit."""
    typer.echo(printable(" ".join(text.split())), err=True)
    raise typer.Exit(code)


def refuse(ctx: typer.Context, text: str) -> NoReturn:
    """Wrong use: say why in one line, and exit; in silence where a shell completes."""
    if ctx.resilient_parsing:
        raise typer.Exit(WRONG_USE)
    fail(text, WRONG_USE)


def sentence(error: BaseException) -> str:
    """What an error says, in one line, and what may help."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, AskError) or "MOVED" in text:  # a MovedError is one
        return ONE_OF_A_CLUSTER
    if isinstance(error, NoPermissionError):
        return f"{text} (docs/operating.md lists what this command needs)"
    return text


def printable(text: str) -> str:
    """*text* with nothing in it that a terminal would act on."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def plain(value: bytes | str) -> str:
    """What a server answered, as text, however the client was told to decode it."""
    return value if isinstance(value, str) else value.decode(errors="replace")
