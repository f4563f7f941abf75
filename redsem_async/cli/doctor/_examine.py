"""Runs all checks, in order."""

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    ResponseError,
)

from redsem_async._integrations import discovery
from redsem_async._redis.sentinels import split_url
from redsem_async.cli._target import REDIS_ERRORS, Target, connected, describe, hello

from . import _server
from ._clocks import replica_clocks
from ._finding import Finding, Verdict, note, ok, problem, unknown
from ._handover import check_handover
from ._masters import two_masters
from ._rights import check_rights
from ._scripts import scripts_and_messages
from ._service import service_of
from ._versions import check_versions

SAMPLES = 50
MAX_SKEW = 1.0  # seconds; a larger difference of clocks is a note
SLOW_MEDIAN, SLOW_MAX = 0.010, 0.100  # seconds: median and longest round trip that are a note
MAX_NAMES = 1000  # semaphores whose clocks are checked

Report = Callable[[Finding], None]


async def examine(target: Target, report: Report) -> None:
    """Run all checks, and *report* each finding. Deletes its temporary keys."""
    try:
        async with connected(target) as client:
            await _check_connection(client)
            report(ok("connection", target.display_url))
            no_push = False
            if target.cluster:
                for node in client.get_primaries():
                    async with connected(target.at(node.host, node.port)) as one:
                        await _examine_server(one, target, _for_node(report, node))
                        no_push = no_push or not await _is_sharded(one)
            else:
                await _examine_server(client, target, report)
            wanted = await _clocks_of_semaphores(client, target, report)
            for finding in await check_versions(client, target.prefix, wanted):
                report(finding)
            async with connected(target) as other:
                for finding in await check_handover(client, other, target.prefix, no_push=no_push):
                    report(finding)
    except REDIS_ERRORS as error:
        report(
            problem("connection", f"{target.display_url}: {describe(error)}", _advice_for(error))
        )


async def _check_connection(client: Any) -> None:
    with suppress(NoPermissionError):  # the server replied; denied commands are reported later
        await client.execute_command("TIME")


def _for_node(report: Report, node: Any) -> Report:
    """A *report* that adds the address of *node*."""
    return lambda found: report(replace(found, about=f"{found.about} of {node.host}:{node.port}"))


async def _examine_server(client: Any, target: Target, report: Report) -> None:
    for finding in await _server_info(client, target):
        report(finding)
    for finding in await check_rights(client, target.prefix, cluster=target.cluster):
        report(finding)
    if not target.cluster:
        for finding in await scripts_and_messages(client, target.prefix):
            report(finding)
    await _if_allowed(_clock, client, "TIME", "clock", report)
    await _if_allowed(_latency, client, "TIME", "latency", report)


async def _if_allowed(
    check: Callable[[Any], Awaitable[Finding]],
    client: Any,
    command: str,
    about: str,
    report: Report,
) -> None:
    try:
        report(await check(client))
    except NoPermissionError:
        report(unknown(about, f"{command} is denied", f"ACL SETUSER ... +{command.lower()}"))


async def _server_info(client: Any, target: Target) -> list[Finding]:
    greeting = await _greeting(client)
    host = split_url(target.url).hostname or ""
    try:
        info: dict[str, Any] = await client.info()
    except ResponseError:
        return [
            _version_by_hello(greeting, service_of(host, {}, greeting)),
            unknown(
                "memory, persistence",
                "INFO is denied: eviction, persistence and replicas cannot be checked",
                "ACL SETUSER ... +info, or run doctor as an administrator",
            ),
        ]
    nearly_full = _server.clients(info)
    return [
        _server.version(info, service_of(host, info, greeting)),
        *_server.role(info, cluster=target.cluster),
        _server.memory(info),
        *([nearly_full] if nearly_full else []),
        *_server.durability(info),
        *await two_masters(client, target, info),
        *await replica_clocks(client, target, info),
    ]


def _version_by_hello(greeting: Mapping[str, str], service: str | None) -> Finding:
    """The version in the reply to HELLO, which every user may call."""
    if not greeting:
        text = "INFO and HELLO are denied" + (f", at {service}" if service else "")
        return unknown("server", text, "ACL SETUSER ... +info")
    name = greeting.get("server", "redis")
    return _server.version({f"{name}_version": greeting.get("version", "?")}, service)


async def _greeting(client: Any) -> dict[str, str]:
    """The reply to HELLO; empty where the server has none."""
    try:
        return await hello(client)
    except ResponseError:
        return {}


async def _is_sharded(node: Any) -> bool:
    """Whether a cluster's server has sharded pub/sub, which Redis has since 7.0."""
    return int((await _greeting(node)).get("version", "0").partition(".")[0]) >= 7


async def _clock(client: Any) -> Finding:
    offsets: list[tuple[float, float]] = []
    back = 0.0
    last: tuple[float, float] | None = None
    for _ in range(SAMPLES):
        asked, began = time.time(), time.perf_counter()
        seconds, micros = await client.time()
        trip, server = time.perf_counter() - began, seconds + micros / 1e6
        offsets.append((trip, server - asked - trip / 2))
        if last is not None:
            back = max(back, last[1] - server)
        last = (began, server)
    trip, offset = min(offsets)
    if back > 0:
        text = f"the server's clock went back by {back:.3f} s during the check"
        return problem("clock", text, "configure NTP to slew the clock, never to step it")
    away = f"{abs(offset):.3f} s {'ahead of' if offset > 0 else 'behind'} this machine's"
    if abs(offset) > MAX_SKEW + trip:
        return note(
            "clock",
            f"the server's clock is {away}: harmless with clock='server', the default",
            "use NTP on both before you use clock='local'",
        )
    return ok("clock", f"the server's clock is {away}")


async def _latency(client: Any) -> Finding:
    trips: list[float] = []
    for _ in range(SAMPLES):
        began = time.perf_counter()
        await client.time()
        trips.append(time.perf_counter() - began)
    trips.sort()
    usual, longest = trips[len(trips) // 2], trips[-1]
    text = (
        f"round trip: median {usual * 1000:.2f} ms, longest of {SAMPLES} {longest * 1000:.1f} ms"
    )
    if usual > SLOW_MEDIAN or longest > SLOW_MAX:
        return note(
            "latency",
            text,
            f"use leases of at least {max(1.0, 20 * longest):.0f} s, or a server nearby",
        )
    return ok("latency", text)


async def _clocks_of_semaphores(client: Any, target: Target, report: Report) -> list[str]:
    """Whether the server's clock went back while semaphores were in use: they record it.

    Returns the names that were looked at.
    """
    try:
        wanted = await discovery.names(client, target.prefix)
    except NoPermissionError:
        advice = "ACL SETUSER ... +scan, which ls needs too"
        report(unknown("semaphores", "SCAN is denied: semaphores in use are unknown", advice))
        return []
    furthest = 0.0
    for name in wanted[:MAX_NAMES]:
        try:
            denial = await client.hget(f"{target.prefix}:{{{name}}}:meta", "ahead")
            furthest = max(furthest, float(denial or 0) / 1e6)
        except NoPermissionError:  # already reported with the rights
            break
        except (ResponseError, ValueError):
            report(
                problem(
                    "semaphores",
                    f"{name!r} has keys that do not hold a semaphore",
                    "delete the foreign keys, or use a prefix of your own",
                )
            )
    text = f"{len(wanted):,} with prefix {target.prefix!r}"
    if furthest > 0:
        report(
            note(
                "semaphores",
                f"{text}; the server's clock was set back by {furthest:.3g} s while they were in"
                " use, and since then they use a clock of their own that does not go back",
                "configure NTP to slew the clock, never to step it",
            )
        )
    else:
        report(ok("semaphores", text))
    return wanted[:MAX_NAMES]


def _advice_for(error: BaseException) -> str:
    text = str(error).lower()
    if isinstance(error, AuthenticationError | AuthorizationError) or "auth" in text:
        return "check user and password in the URL (percent-encoded), and ACL LIST"
    if "ssl" in text or "certificate" in text:
        return "check rediss:// and the certificates"
    if "refused" in text or "connect call failed" in text:
        return "is the server up, and does it listen there (bind, port)?"
    if "timeout" in text or "timed out" in text:
        return "check the host, and firewalls on the way"
    return "check the URL"


__all__ = ["Finding", "Verdict", "examine"]
