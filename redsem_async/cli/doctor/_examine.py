"""Runs all checks, in order."""

from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    ResponseError,
)

from redsem_async._redis.sentinels import split_url
from redsem_async.cli._target import REDIS_ERRORS, Target, connected, failure, hello

from . import _server
from ._clocks import clock_and_latency, replica_clocks
from ._finding import Finding, ok, problem, unknown
from ._messages import check_handover, scripts_and_messages
from ._rights import check_rights
from ._semaphores import check_semaphores

# By words of the error.
_ADVICE = (
    (("auth",), "check user and password in the URL (percent-encoded), and ACL LIST"),
    (("ssl", "certificate"), "check rediss:// and the certificates"),
    (
        ("refused", "connect call failed"),
        "is the server up, and does it listen there (bind, port)?",
    ),
    (("timeout", "timed out"), "check the host, and firewalls on the way"),
    (("",), "check the URL"),
)


async def examine(target: Target) -> AsyncGenerator[Finding]:
    """Run all checks. Deletes its temporary keys."""
    try:
        async with connected(target) as client:
            with suppress(NoPermissionError):  # the server replied
                await client.execute_command("TIME")
            yield ok("connection", target.display_url)
            no_push = False
            if target.cluster:
                for node in client.get_primaries():
                    async with connected(target.at(node.host, node.port)) as one:
                        async for finding in _examine_server(one, target):
                            about = f"{finding.about} of {node.host}:{node.port}"
                            yield replace(finding, about=about)
                        no_push = no_push or not await _is_sharded(one)
            else:
                async for finding in _examine_server(client, target):
                    yield finding
            async for finding in check_semaphores(client, target.prefix):
                yield finding
            async with connected(target) as other:
                async for finding in check_handover(client, other, target.prefix, no_push=no_push):
                    yield finding
    except REDIS_ERRORS as error:
        yield problem("connection", failure(target, error), _advice_for(error))


async def _examine_server(client: Any, target: Target) -> AsyncGenerator[Finding]:
    for check in (_info, check_rights, scripts_and_messages, clock_and_latency):
        for finding in await check(client, target):
            yield finding


async def _info(client: Any, target: Target) -> list[Finding]:
    greeting = await hello(client)
    try:
        info: dict[str, Any] = await client.info()
    except ResponseError:
        info = {}
    service = _server.service_of(split_url(target.url).hostname or "", info, greeting)
    version = _server.version(info or _server.info_of_hello(greeting), service)
    if not info:
        text = "INFO is denied: eviction, persistence and replicas cannot be checked"
        advice = "ACL SETUSER ... +info, or run doctor as an administrator"
        return [version, unknown("memory, persistence", text, advice)]
    return [
        version,
        *_server.resources(info, cluster=target.cluster),
        *await _server.two_masters(client, target, info),
        *await replica_clocks(client, target, info),
    ]


async def _is_sharded(node: Any) -> bool:
    """Whether a cluster's server has sharded pub/sub, which Redis has since 7.0."""
    return int((await hello(node)).get("version", "0").partition(".")[0]) >= 7


def _advice_for(error: BaseException) -> str:
    text = str(error).lower()
    if isinstance(error, AuthenticationError | AuthorizationError):
        text = "auth"
    return next(advice for words, advice in _ADVICE if any(word in text for word in words))
