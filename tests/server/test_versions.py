"""Several versions of the library on one server: each in a process of its own, from a wheel."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

import pytest
from redis.asyncio import Redis

import redsem_async
from redsem_async import AnySemaphore, FairSemaphore, Semaphore
from redsem_async._redis.scripts import layout
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.children import Worker
from tests.harness.wait import until
from tests.server.wheels import Wheel, wheel_of_checkout, wheel_of_first

pytestmark = [pytest.mark.release, pytest.mark.timeout(180)]  # wheels are built in it

OWN = redsem_async.__version__
LIMIT = 2
SERVED = 30  # uses of each name by each process under load


class Visit(Protocol):
    """Starts a process with the library of a wheel, that goes through *phases*."""

    async def __call__(self, wheel: Wheel, label: str, phases: str, **options: Any) -> Worker: ...


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Wheel]:
    """Builds wheels, each once: of this version, and of others."""

    @cache
    def build(which: str) -> Wheel:
        folder = tmp_path_factory.mktemp("wheel")
        match which:
            case "this":
                return wheel_of_checkout(folder, OWN, layout())
            case "another version":
                return wheel_of_checkout(folder, "98.0", layout())
            case "another layout":
                return wheel_of_checkout(folder, "99.0", layout() + 1)
            case "the first with this layout":
                return wheel_of_first(folder)
            case _:
                raise AssertionError(which)

    return build


@pytest.fixture
async def visit(server: EmbeddedRedis) -> AsyncIterator[Visit]:
    """Starts such processes, and ends them after the test."""
    async with AsyncExitStack() as stack:

        async def visit(wheel: Wheel, label: str, phases: str, **options: Any) -> Worker:
            told = {"url": server.url, "label": label, "limit": LIMIT, "phases": phases}
            worker = await Worker.spawn("visit", told | options, wheel.environment)
            stack.push_async_callback(worker.end)
            return worker

        yield visit


async def took(worker: Worker, wheel: Wheel) -> None:
    """Have it take its names."""
    worker.go_on()
    file = Path((await worker.heard("took"))["file"])
    assert file.is_relative_to(wheel.folder), "it imports another version"


async def served(admin: Redis, labels: list[str], names: list[str], more: int = SERVED) -> None:
    """Wait until each process used each name *more* times."""
    keys = [f"served:{label}:{name}" for label in labels for name in names]
    before = [int(count or 0) for count in await admin.mget(keys)]

    async def enough() -> bool:
        now = await admin.mget(keys)
        return all(int(n or 0) >= m + more for n, m in zip(now, before, strict=True))

    await until(enough, "all were served", 30.0)


@pytest.mark.parametrize("which", ["another version", "the first with this layout"])
async def test_versions_with_one_layout_share_a_name(
    wheel: Callable[[str], Wheel], visit: Visit, admin: Redis, client_a: Redis, which: str
) -> None:
    """In each class, whichever was first: the limit holds, both are served, status shows both."""
    wheels = [await asyncio.to_thread(wheel, each) for each in ("this", which)]
    assert {each.layout for each in wheels} == {layout()}
    takes = [{f"fair-{n}": "fair", f"zset-{n}": "zset"} for n in range(2)]
    names = {**takes[0], **takes[1]}
    labels = ["here", "there"]
    workers = [
        await visit(each, label, "take,load", takes=takes[n], names=names)
        for n, (each, label) in enumerate(zip(wheels, labels, strict=True))
    ]
    for worker, each in zip(workers, wheels, strict=True):
        await took(worker, each)
    for worker in workers:
        worker.go_on()
    await served(admin, labels, [*names])
    for name, kind in names.items():
        made = FairSemaphore if kind == "fair" else Semaphore
        await _shows_both(made(client_a, name, LIMIT), dict(zip(labels, wheels, strict=True)))
    await served(admin, labels, [*names])
    for worker in workers:
        worker.go_on()
        most = (await worker.heard("loaded"))["most"]
        assert most.keys() == names.keys()
        assert max(most.values()) <= LIMIT
        assert await worker.ended() == 0


async def _shows_both(semaphore: AnySemaphore, wheels: dict[str, Wheel]) -> None:
    """Status names the version of each process."""
    seen: dict[str | None, str | None] = {}
    expected = {label: each.version for label, each in wheels.items()}

    async def both() -> bool:
        status = await semaphore.status()
        clients = [each.client for each in status.holders]
        clients += [each.client for each in status.waiters]
        seen.update({client.label: client.version for client in clients})
        return len(seen) == len(expected)

    await until(both, "both hold or wait")
    assert seen == expected


@pytest.mark.parametrize(
    ("first", "second"), [("this", "another layout"), ("another layout", "this")]
)
async def test_another_layout_is_refused_and_changes_nothing(
    wheel: Callable[[str], Wheel], visit: Visit, admin: Redis, first: str, second: str
) -> None:
    """Under load, and byte by byte. The error names the layouts, and the versions in use."""
    user, guest = [await asyncio.to_thread(wheel, each) for each in (first, second)]
    names = {"fair": "fair", "zset": "zset"}
    at_work = await visit(user, "user", "take,load,hold", takes=names, names=names)
    refused = await visit(guest, "guest", "take,attempt,attempt", takes={}, names=names)
    await took(at_work, user)
    await took(refused, guest)
    at_work.go_on()
    await served(admin, ["user"], [*names])
    await _is_refused(refused, user, guest)
    await served(admin, ["user"], [*names])
    at_work.go_on()
    assert max((await at_work.heard("loaded"))["most"].values()) <= LIMIT
    at_work.go_on()
    await at_work.heard("holds")
    before = await _contents(admin)
    await _is_refused(refused, user, guest)
    assert await _contents(admin) == before
    at_work.go_on()
    assert [await at_work.ended(), await refused.ended()] == [0, 0]


async def _is_refused(worker: Worker, user: Wheel, guest: Wheel) -> None:
    worker.go_on()
    answers = (await worker.heard("tried"))["answers"]
    assert len(answers) == 18
    for kind, is_mode_mismatch, found, own, versions, message in answers:
        assert (kind, is_mode_mismatch) == ("LayoutMismatch", True), message
        assert (found, own, versions) == (user.layout, guest.layout, [user.version])
        assert user.version in message


async def _contents(admin: Redis) -> dict[bytes, object]:
    names = cast("list[bytes]", await admin.keys("redsem:*"))
    assert names
    return {name: await admin.dump(name) for name in sorted(names)}
