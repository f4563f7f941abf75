"""Semaphores in use, with foreign keys, a clock that was set back, and library versions."""

from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from redsem_async import LayoutMismatch, RateStatus, SemaphoreStatus
from redsem_async._tools import discovery
from redsem_async._tools.states import amount, duration
from redsem_async.cli._render import versions_text

from ._finding import Finding, note, ok, problem, unknown

MAX_NAMES = 1000  # semaphores that are looked at
LONG_DEBT = 60.0  # seconds until a rate has something again


async def check_semaphores(client: Any, prefix: str) -> AsyncGenerator[Finding]:
    """What the semaphores in use recorded."""
    try:
        names = await discovery.names(client, prefix)
    except NoPermissionError:
        advice = "ACL SETUSER ... +scan, which ls needs too"
        yield unknown("semaphores", "SCAN is denied: semaphores in use are unknown", advice)
        return
    looked_at = names[:MAX_NAMES]
    set_back = 0.0  # seconds by which semaphores recorded that the server's clock went back
    for name in looked_at:
        try:
            lead = await client.hget(f"{prefix}:{{{name}}}:meta", "lead")
            set_back = max(set_back, float(lead or 0) / 1e6)
        except NoPermissionError:  # already reported with the rights
            break
        except (ResponseError, ValueError):
            text = f"{name!r} has keys that do not hold a semaphore"
            advice = "delete the foreign keys, or use a prefix of your own"
            yield problem("semaphores", text, advice)
    text = f"{len(names):,} with prefix {prefix!r}"
    if set_back:
        text += f"; the server's clock was set back by {set_back:.3g} s while they were in use,"
        text += " and since then they use a clock of their own that does not go back"
        yield note("semaphores", text, "configure NTP to slew the clock, never to step it")
    else:
        yield ok("semaphores", text)
    try:
        entries = await discovery.list_entries(client, prefix, looked_at)
    except NoPermissionError:  # already reported with the rights
        return
    for finding in (*_versions(entries), *_rates(entries)):
        yield finding


def _rates(entries: Sequence[discovery.ListEntry]) -> Generator[Finding]:
    """Rates that processes declare differently, or with a long debt."""
    for entry in entries:
        for name in entry.info.rates:
            about = f"rate {name!r} of {entry.info.name!r}"
            declared = {repr(rate) for rate in discovery.declared(entry.info.clients, name)}
            if len(declared) > 1:
                text = f"{about}: its processes declare {' and '.join(sorted(declared))}"
                yield note("rates", text, "finish the deployment, or declare the same in all")
            if isinstance(entry.status, SemaphoreStatus) and declared:
                yield from _debt(about, entry.status.rates[name])


def _debt(about: str, rate: RateStatus) -> Generator[Finding]:
    lasts = -rate.available * rate.per / rate.amount
    if lasts > LONG_DEBT:
        text = f"{about}: {amount(-rate.available)} in debt, for {duration(lasts)}"
        yield note("rates", text, "a request cost more than the burst, or more than its estimate")


def _versions(entries: Sequence[discovery.ListEntry]) -> Generator[Finding]:
    """The versions that use semaphores now, or used them last."""
    page = "docs/upgrading.md describes an upgrade"
    versions = discovery.versions_of(c for entry in entries for c in entry.info.clients)
    if versions:
        text = versions_text(versions)
        yield ok("versions", text) if len(versions) == 1 else note("versions", text, page)
    others = [e.status for e in entries if isinstance(e.status, LayoutMismatch)]
    if others:
        text = f"names in use with another layout: {len(others):,}; {others[0]}"
        yield note("versions", text, page)
