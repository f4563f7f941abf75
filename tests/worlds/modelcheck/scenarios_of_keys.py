"""What is explored of requests with keys: each scenario is small, and about one thing."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from redsem_async import AcquireTimeout, PermitLost

from .process import AT_END, Job
from .scenario import Budget, Party, Scenario, Script, opened
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
    await job.set_key_limit("a", 2)
    await job.pause("to lower it")
    await job.set_key_limit("a", 1)


async def pauses_a(job: Job) -> None:
    await job.set_key_limit("a", 0)
    await job.pause("to resume")
    await job.set_key_limit("a", None)


async def deletes(job: Job) -> None:
    await job.delete()
    await with_key("a")(job)


def _scenarios() -> Iterator[Scenario]:
    more = int(LONG)

    a, b = with_key("a"), with_key("b")
    still = Party((a,), 2, key_limit=1, cancels=(), breaks=False, dies=False)
    other = replace(still, scripts=(b,))
    loose = replace(still, cancels=(0, 1, 2))

    yield Scenario(
        "a key that is full",
        (still, replace(loose, scripts=(a, b) if LONG else (a,)), other),
        Budget(cancels=1),
        opened((0, 0), (1, 0)),
    )
    heavy = replace(still, limit=3, key_limit=2)
    yield Scenario(
        "a heavy head of its key",
        (heavy, replace(heavy, scripts=(with_key("a", 2),), cancels=(0,)), heavy),
        Budget(cancels=1),
        opened((0, 0), (1, 0)),
    )
    yield Scenario(
        "the overall limit, and keys",
        (
            replace(heavy, limit=2, scripts=(a, b) if LONG else (a,)),
            replace(heavy, limit=2, scripts=(with_key("b", 2),), cancels=(0,)),
            replace(heavy, limit=2, scripts=(with_key(None),)),
        ),
        Budget(cancels=1),
        opened((0, 0), (1, 0)),
    )
    yield Scenario(
        "limits of a key",
        (replace(still, scripts=(raises_a,)), replace(loose, scripts=(a, a))),
        Budget(cancels=more),
        opened((1, 0), (1, 1)),
    )
    yield Scenario(
        "limits of a key, and a lost link",
        (replace(still, scripts=(raises_a,), breaks=True), replace(still, scripts=(a, a))),
        Budget(cuts=1, lates=1 + more),
        opened((1, 0), (1, 1)),
        release=True,
    )
    yield Scenario(
        "a key is paused",
        (replace(still, scripts=(pauses_a,)), replace(loose, scripts=(a, b))),
        Budget(cancels=1),
        opened((1, 0)),
    )
    yield Scenario(
        "all is paused, and keys",
        (
            replace(still, scripts=(suspends,)),
            replace(loose, scripts=(a, b)),
            *[still] * more,
        ),
        Budget(cancels=more),
        opened((1, 0)),
    )
    yield Scenario(
        "a revoked permit, and a key",
        (replace(still, scripts=(shows_a,)), replace(still, scripts=(revokes,)), loose),
        Budget(cancels=more),
        opened((0, 0), (2, 0)),
    )
    yield Scenario(
        "a permit with a key expires",
        (replace(still, scripts=(detaches_a,)), loose, *[other] * more),
        Budget(ticks=2, cancels=1),
        opened((0, 0), (1, 0)),
        grain=0.3,
    )
    yield Scenario(
        "an adoption, and a key",
        (replace(still, scripts=(sends_a,)), replace(loose, scripts=(adopts,)), still),
        Budget(cancels=1),
        opened((0, 0), (2, 0)),
    )
    yield Scenario(
        "a deletion, and keys",
        (replace(still, scripts=(deletes,)), replace(still, scripts=(a, a))),
        Budget(cuts=more),
        opened((1, 0), (1, 1)),
    )
    yield Scenario(
        "a link with keys is lost",
        (still, replace(loose, scripts=(a, b) if LONG else (a,), breaks=True)),
        Budget(cuts=1, unnoticed=1, lates=1 + more),
        opened((0, 0), (1, 0)),
    )
    short = replace(still, lease=3.0)
    yield Scenario(
        "a process with a key dies",
        (replace(short, dies=True), replace(short, scripts=(a, b)), *[short] * more),
        Budget(kills=1, unnoticed=1, ticks=more),
        opened((0, 0), (1, 0)),
    )
    yield Scenario(
        "a waiter with a key dies",
        (short, replace(short, dies=True), replace(short, scripts=(a,))),
        Budget(kills=1, unnoticed=1, ticks=more),
        opened((0, 0), (1, 0), (2, 0)),
    )
    yield Scenario(
        "a process with a key stands still",
        (replace(short, dies=True), replace(short, scripts=(with_key("a", until=AT_END), b))),
        Budget(stops=1, ticks=1 + more),
        opened((0, 0), (1, 0)),
        grain=1.6,
        release=True,
    )
    one = replace(still, limit=1, key_limit=None)
    yield Scenario(
        "a deadline, and a key",
        (still, replace(still, scripts=(with_key("a", timeout=0.3), a))),
        Budget(ticks=1 + more, cancels=more),
        opened((0, 0), (1, 0), (1, 1)),
        grain=0.2,
    )
    yield Scenario(
        "a head start",
        (
            replace(one, limit=2, key_limit=2, scripts=(a,)),
            replace(one, limit=2, key_limit=2, scripts=(with_key("b", 2),)),
            replace(one, limit=2, key_limit=2, scripts=(with_key("c", ahead=20.0),), cancels=(0,)),
        ),
        Budget(cancels=1),
        opened((0, 0), (1, 0)),
    )
    yield Scenario(
        "a blocked key, and a head start",
        (still, still, replace(loose, scripts=(with_key("a", ahead=5.0),))),
        Budget(cancels=more),
        opened((0, 0), (1, 0)),
    )
    share = replace(still, key_limit=None, patience=3600.0)
    yield Scenario(
        "shares",
        (
            replace(share, scripts=(a, a)),
            replace(share, scripts=(a,), cancels=(0,)),
            replace(share, scripts=(b,)),
        ),
        Budget(cancels=more),
        opened((0, 0), (0, 1), (1, 0)),
        mode="fair+share",
        release=True,
    )
    yield Scenario(
        "shares, and the limit of a key",
        (
            replace(share, key_limit=1, weights=(("b", 2.0),)),
            replace(share, scripts=(a, b), key_limit=1, cancels=(0, 1)),
        ),
        Budget(cancels=1),
        opened((0, 0), (1, 0)),
        mode="fair+share",
        release=True,
    )
    yield Scenario(
        "shares, and a process dies",
        (
            replace(share, limit=1, lease=3.0, dies=True),
            replace(share, limit=1, lease=3.0, scripts=(a, b)),
        ),
        Budget(kills=1),
        opened((0, 0), (1, 0)),
        mode="fair+share",
    )
    yield Scenario(
        "shares, and patience",
        (
            replace(share, limit=1, scripts=(a,)),
            replace(share, limit=1, scripts=(a, b), patience=0.2),
        ),
        Budget(ticks=1),
        opened((0, 0), (1, 0)),
        mode="fair+share",
        grain=0.4,
        release=True,
    )


SCENARIOS_OF_KEYS = [
    replace(scenario, mode="fair+keys") if scenario.mode == "fair" else scenario
    for scenario in _scenarios()
]
