"""What is explored of requests with keys: each scenario is small, and about one thing."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from redsem_async import AcquireTimeout, PermitLost
from redsem_async._core.keys import Mode

from .process import AT_END, Job
from .scenario import Budget, Party, Scenario, Script, scenario
from .scenarios import LONG, adopts, keep, suspends


def with_key(key: str | None, permits: int = 1, until: str = "to release", **more: Any) -> Script:
    """Acquire with a key, and release."""

    async def holds(job: Job) -> None:
        asked: dict[str, Any] = {"key": key, "permits": permits, **more}
        with suppress(AcquireTimeout, PermitLost):
            await keep(job, await job.acquire(**asked), until)

    holds.__name__ = f"holds_{permits}_of_{key}"
    return holds


async def detaches_a(job: Job) -> None:
    """Nobody adopts it: it expires."""
    permit = await job.acquire(key="a")
    with suppress(PermitLost):
        await job.detach(permit, 0.5)


async def sends_a(job: Job) -> None:
    job.world.ids.append(await job.detach(await job.acquire(key="a"), 20.0))


async def shows_a(job: Job) -> None:
    """Acquire, and tell the id to who revokes it."""
    permit = await job.acquire(key="a")
    job.world.ids.append(permit.id)
    await keep(job, permit)


async def revokes(job: Job) -> None:
    await job.revoke(await job.receive_id())


async def raises_a(job: Job) -> None:
    await job.set_limit(2, "a")
    await job.pause("to lower it")
    await job.set_limit(1, "a")


async def pauses_a(job: Job) -> None:
    await job.set_limit(0, "a")
    await job.pause("to resume")
    await job.set_limit(None, "a")


async def deletes(job: Job) -> None:
    await job.delete()
    await with_key("a")(job)


more = int(LONG)
a, b = with_key("a"), with_key("b")
both = (a, b) if LONG else (a,)
still = Party((a,), 2, key_limit=1, cancels=(), breaks=False, dies=False)
other, loose, short = still.but(b), still.but(cancels=(0, 1, 2)), still.but(lease=3.0)
one, heavy = still.but(limit=1, key_limit=None), still.but(limit=3, key_limit=2)
mortal = short.but(dies=True)
opening = "00. 10."


def _of_limits() -> Iterator[Scenario]:
    parties: tuple[Party, ...]
    name, parties = "a key that is full", (still, loose.but(*both), other)
    yield scenario(name, *parties, opening=opening, cancels=1)
    name, parties = "a heavy head of its key", (heavy, heavy.but(with_key("a", 2), cancels=(0,)))
    yield scenario(name, *parties, heavy, opening=opening, cancels=1)
    two = heavy.but(limit=2)
    parties = two.but(*both), two.but(with_key("b", 2), cancels=(0,)), two.but(with_key(None))
    yield scenario("the overall limit, and keys", *parties, opening=opening, cancels=1)
    parties = still.but(raises_a), loose.but(a, a)
    yield scenario("limits of a key", *parties, opening="10. 11.", cancels=more)
    parties = still.but(raises_a, breaks=True), still.but(a, a)
    name, many = "limits of a key, and a lost link", Budget(cuts=1, lates=1 + more)
    yield scenario(name, *parties, opening="10. 11.", release=True, budget=many)
    parties = still.but(pauses_a), loose.but(a, b)
    yield scenario("a key is paused", *parties, opening="10.", cancels=1)
    parties = still.but(suspends), loose.but(a, b), *[still] * more
    yield scenario("all is paused, and keys", *parties, opening="10.", cancels=more)
    parties = still.but(shows_a), still.but(revokes), loose
    yield scenario("a revoked permit, and a key", *parties, opening="00. 20.", cancels=more)
    parties, many = (still.but(detaches_a), loose, *[other] * more), Budget(ticks=2, cancels=1)
    yield scenario(
        "a permit with a key expires", *parties, opening=opening, grain=0.3, budget=many
    )
    parties = still.but(sends_a), loose.but(adopts), still
    yield scenario("an adoption, and a key", *parties, opening="00. 20.", cancels=1)
    parties = still.but(deletes), still.but(a, a)
    yield scenario("a deletion, and keys", *parties, opening="10. 11.", cuts=more)


def _of_losses() -> Iterator[Scenario]:
    parties: tuple[Party, ...]
    name, many = "a link with keys is lost", Budget(cuts=1, unnoticed=1, lates=1 + more)
    yield scenario(name, still, loose.but(*both, breaks=True), opening=opening, budget=many)
    many = Budget(kills=1, unnoticed=1, ticks=more)
    parties = mortal, short.but(a, b), *[short] * more
    yield scenario("a process with a key dies", *parties, opening=opening, budget=many)
    name = "a waiter with a key dies"
    yield scenario(name, short, mortal, short, opening="00. 10. 20.", budget=many)
    parties, many = (mortal, short.but(with_key("a", until=AT_END), b)), Budget(ticks=1 + more)
    name = "a process with a key stands still"
    yield scenario(
        name, *parties, opening=opening, grain=1.6, release=True, budget=many._replace(stops=1)
    )
    parties, many = (still, still.but(with_key("a", timeout=0.3), a)), Budget(ticks=1 + more)
    name, grain = "a deadline, and a key", 0.2
    yield scenario(
        name, *parties, opening="00. 10. 11.", grain=grain, budget=many._replace(cancels=more)
    )
    party = one.but(limit=2, key_limit=2)
    parties = (
        party,
        party.but(with_key("b", 2)),
        party.but(with_key("c", ahead=20.0), cancels=(0,)),
    )
    yield scenario("a head start", *parties, opening=opening, cancels=1)
    name, ahead = "a blocked key, and a head start", loose.but(with_key("a", ahead=5.0))
    yield scenario(name, still, still, ahead, opening=opening, cancels=more)


def _of_shares() -> Iterator[Scenario]:
    mode: Mode = "fair+share"
    parties: tuple[Party, ...]
    share = still.but(key_limit=None, patience=3600.0)
    parties, opened = (share.but(a, a), share.but(a, cancels=(0,)), share.but(b)), "00. 01. 10."
    yield scenario("shares", *parties, opening=opened, mode=mode, release=True, cancels=more)
    name, weights = "shares, and the limit of a key", (("b", 2.0),)
    limited = share.but(key_limit=1)
    parties = limited.but(weights=weights), limited.but(a, b, cancels=(0, 1))
    yield scenario(name, *parties, opening=opening, mode=mode, release=True, cancels=1)
    single = share.but(limit=1)
    parties = single.but(lease=3.0, dies=True), single.but(a, b, lease=3.0)
    yield scenario("shares, and a process dies", *parties, opening=opening, mode=mode, kills=1)
    name, parties = "shares, and patience", (single, single.but(a, b, patience=0.2))
    many, grain = Budget(ticks=1), 0.4
    yield scenario(
        name, *parties, opening=opening, mode=mode, grain=grain, release=True, budget=many
    )


_ALL = (*_of_limits(), *_of_losses(), *_of_shares())
SCENARIOS_OF_KEYS = [
    replace(found, mode="fair+keys") if found.mode == "fair" else found for found in _ALL
]
