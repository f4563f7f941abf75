"""The Redis that a command works on, how it connects, and how errors become exit codes."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar, cast

import click
from redis.asyncio import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AskError, NoPermissionError, ResponseError

from redsem_async import AnySemaphore, Semaphore, SemaphoreError, aclose, from_url
from redsem_async._core.errors import unreachable
from redsem_async._core.keys import Address, Mode
from redsem_async._redis.sentinels import split_url, without_login
from redsem_async._tools.stored import READ_ERRORS, as_text

FAILED = 1  # Redis is unreachable or returned an error, or `doctor` found a problem
USAGE_ERROR = 2
NOT_FOUND = 3  # no semaphore of that name
NOT_HELD = 4  # the id to revoke holds no permit
INTERRUPTED = 130  # as shells report a program ended by Ctrl-C

CONNECT_TIMEOUT = 5.0  # seconds
REPLY_TIMEOUT = 10.0  # seconds

REDIS_ERRORS = (SemaphoreError, *READ_ERRORS)
"""Errors of Redis and of the connection to it."""

CLUSTER_NODE = "this server is a node of a cluster: use --cluster"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Target:
    """The server, or cluster, and the key prefix that a command works on.

    Attributes:
        url: URL of the server, of sentinels, or of any node of the cluster.
        prefix: prefix of the keys.
        cluster: whether the URL is a node of a cluster.
    """

    url: str
    prefix: str
    cluster: bool = False

    @property
    def display_url(self) -> str:
        """The URL without user, password and options."""
        parts = split_url(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()

    def at(self, host: str, port: int) -> "Target":
        """The target for one server, with the scheme, user, password and options of this URL."""
        parts = split_url(self.url)
        user, at, _ = parts.netloc.rpartition("@")
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        parts = parts._replace(netloc=f"{user}{at}{address}")
        if parts.scheme == "unix":
            parts = parts._replace(scheme="redis", path="")
        elif parts.scheme.endswith("+sentinel"):
            _, _, database = parts.path.removeprefix("/").partition("/")
            query = "&".join(o for o in parts.query.split("&") if not o.startswith("sentinel_"))
            scheme = parts.scheme.removesuffix("+sentinel")
            parts = parts._replace(scheme=scheme, path=database, query=query)
        return replace(self, url=parts.geturl(), cluster=False)


def before_the_command(ctx: click.Context, param: click.Parameter, value: T) -> T:
    """The *value* of a command's option, or what was given for it before the command."""
    source = ctx.get_parameter_source(name := param.name or "")
    given = ctx.find_root().params.get(name)
    if given is None or (source is not None and source.name == "COMMANDLINE"):
        return value
    return cast("T", given)


def valid_url(ctx: click.Context, param: click.Parameter, url: str | None) -> str | None:
    """Return *url*. An invalid one is a usage error, which quotes it without its login."""
    url = before_the_command(ctx, param, url)
    if url is None:
        return None
    try:
        pool: Any = from_url(url).connection_pool
        pool.make_connection()  # does not connect
        parts = split_url(url)
    except ValueError as error:
        why = str(error)
        if why.startswith("Redis URL must specify"):
            why = "begin it with redis://, rediss://, unix:// or redis+sentinel://"
        usage_error(ctx, f"the URL {without_login(url)!r}: {why}" if "://" in url else why)
    except TypeError as error:
        usage_error(ctx, f"the URL {without_login(url)!r} has an invalid option: {error}")
    if parts.scheme != "unix" and "@" in f"{parts.path}?{parts.query}#{parts.fragment}":
        # In a password with a slash, the first half would be read as host or port.
        usage_error(ctx, "the password in the URL must be percent-encoded")
    return url


@contextlib.asynccontextmanager
async def connected(
    target: Target, *, connect_timeout: float = CONNECT_TIMEOUT
) -> AsyncGenerator[Any]:
    """A client for *target* with short timeouts and no retries, closed with the block."""
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


async def erase(client: Any, semaphore: AnySemaphore, prefix: str) -> None:
    """Delete *semaphore*, and the keys that would remain for some time after that.

    Only safe if no other process uses it. Gives up after a second, because during an outage it
    would retry for a whole lease.
    """
    mode: Mode = "zset+slots" if isinstance(semaphore, Semaphore) else "fair+share+slots"
    address = Address(mode, prefix, semaphore.name, "server")
    with contextlib.suppress(SemaphoreError, TimeoutError):
        async with asyncio.timeout(1.0):
            await semaphore.delete()
            await client.unlink(*address.keys)


async def hello(client: Any) -> dict[str, str]:
    """The fields of the reply to HELLO, which every user may call. Empty where it is unknown."""
    try:
        reply: Any = await client.execute_command("HELLO")
    except ResponseError:
        return {}
    if hasattr(reply, "items"):
        reply = [part for pair in reply.items() for part in pair]  # flat, as in RESP2
    pairs = zip(reply[::2], reply[1::2], strict=True)
    return {as_text(key): as_text(value) for key, value in pairs if isinstance(value, bytes | str)}


def run(work: Coroutine[Any, Any, T], target: Target) -> T:
    """Run *work*. An error is printed on one line and sets the exit code."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        interrupted()
    except REDIS_ERRORS as error:
        fail(failure(target, error), FAILED)
    except ValueError as error:  # an invalid name
        fail(str(error), USAGE_ERROR)


def fail(text: str, code: int) -> NoReturn:
    """Print *text* on one line to stderr, and exit."""
    say(" ".join(text.split()))
    raise click.exceptions.Exit(code)


def say(text: str) -> None:
    """Print *text* to stderr, with its author, because cron's mail has many."""
    with contextlib.suppress(OSError):  # no process reads it
        click.echo(printable(f"redsem-async: {text}"), err=True)


def interrupted() -> NoReturn:
    """Say that Ctrl-C has ended the command, and exit."""
    fail("interrupted", INTERRUPTED)


def usage_error(ctx: click.Context, text: str) -> NoReturn:
    """Print *text* and exit with `USAGE_ERROR`. Print nothing during shell completion."""
    if ctx.resilient_parsing:
        raise click.exceptions.Exit(USAGE_ERROR)
    fail(text, USAGE_ERROR)


def describe(error: BaseException) -> str:
    """The message of *error* on one line, with a hint where there is one."""
    silent = "no reply" if isinstance(error, TimeoutError) else type(error).__name__
    text = " ".join(str(error).split()) or silent
    if isinstance(error, AskError) or "MOVED" in text:  # a MovedError is one
        return CLUSTER_NODE
    if "HELLO must be called" in text or text.startswith("NOAUTH"):
        return "Redis needs a password: put it into REDIS_URL, as in redis://:PASSWORD@HOST:PORT"
    if isinstance(error, NoPermissionError):
        return f"{text} (docs/cli.md lists the permissions of each command)"
    return text


def failure(target: Target, error: BaseException) -> str:
    """What went wrong at *target*, on one line."""
    words = unreachable(error) or (error.__cause__ and unreachable(error.__cause__))
    if isinstance(error, TimeoutError) or str(error).startswith("Timeout "):
        words = "no reply"
    if words is None:
        return f"{target.display_url}: {describe(error)}"
    return f"Can't reach Redis at {target.display_url} ({words}). Is --url or REDIS_URL right?"


def no_such_semaphore(name: str, prefix: str, similar: str | None = None) -> str:
    """The message for an unknown *name*. *similar* is a name in use, to suggest."""
    hint = f" Did you mean {similar!r}?" if similar is not None else ""
    return f"No semaphore named {name!r} (prefix {prefix!r}).{hint}"


def printable(text: str) -> str:
    """*text* with control characters escaped, because a terminal would act on them."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
