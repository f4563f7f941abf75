"""Two versions of the library on one server, each in a process of its own."""

import re
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from redis.asyncio import Redis

import redsem_async
from redsem_async import FairSemaphore, Semaphore
from redsem_async._redis.scripts import layout
from redsem_async.testing._embedded import EmbeddedRedis
from tests.harness.children import Worker
from tests.harness.wait import until

CHECKOUT = Path(__file__).resolve().parents[2]
LIMIT = 2
SERVED = 30  # uses of each name by each process under load


def first_with_this_layout(folder: Path) -> Path:
    """The package of the commit that the changelog names as the first with the present layout."""
    line = rf"^<!-- layout {layout()} since: ([0-9a-f]{{7,40}}) -->$"
    found = re.search(line, (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert found, f"add to CHANGELOG.md: <!-- layout {layout()} since: COMMIT -->"
    known = ["git", "cat-file", "-e", found[1]]
    if subprocess.run(known, cwd=CHECKOUT, stderr=subprocess.DEVNULL, check=False).returncode:
        # A clone without the history: where it came from may have it.
        subprocess.run(["git", "fetch", "-q", "--unshallow"], cwd=CHECKOUT, check=False)
    command = ["git", "archive", found[1], "redsem_async"]
    try:
        archive = subprocess.run(command, cwd=CHECKOUT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.fail(f"git does not give commit {found[1]}, in a clone with all history: {error}")
    subprocess.run(["tar", "x"], cwd=folder, input=archive, check=True)
    return folder


async def served(admin: Redis, labels: list[str], names: list[str]) -> None:
    """Wait until each process used each name `SERVED` times more."""
    keys = [f"served:{label}:{name}" for label in labels for name in names]
    before = [int(count or 0) for count in await admin.mget(keys)]

    async def enough() -> bool:
        now = await admin.mget(keys)
        return all(int(n or 0) >= m + SERVED for n, m in zip(now, before, strict=True))

    await until(enough, "all were served", 30.0)


async def test_versions_with_one_layout_share_a_name(
    server: EmbeddedRedis, admin: Redis, client_a: Redis, tmp_path: Path
) -> None:
    """In each class, whichever was first: the limit holds, both are served, status shows both."""
    folders = {"here": Path(redsem_async.__file__).parents[1]}
    folders["there"] = first_with_this_layout(tmp_path)
    labels, versions, workers = [*folders], dict[str | None, str](), list[Worker]()
    names = {f"{kind}-{label}": kind for kind in ("fair", "zset") for label in labels}
    async with AsyncExitStack() as stack:
        for label, folder in folders.items():
            takes = {name: kind for name, kind in names.items() if name.endswith(label)}
            told = {"url": server.url, "label": label, "limit": LIMIT}
            told |= {"takes": takes, "names": names}
            environment = {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
            worker = await Worker.spawn("visit", told, environment)
            stack.push_async_callback(worker.end)
            worker.go_on()
            took = await worker.heard("took")
            assert Path(took["file"]).is_relative_to(folder), "it imports another version"
            versions[label] = took["version"]
            workers.append(worker)
        for worker in workers:
            worker.go_on()
        await served(admin, labels, [*names])
        for name, kind in names.items():
            made = FairSemaphore if kind == "fair" else Semaphore
            semaphore, seen = made(client_a, name, LIMIT), dict[str | None, str | None]()

            async def shows_both() -> bool:
                status = await semaphore.status()  # noqa: B023
                clients = [holder.client for holder in status.holders]
                clients += [waiter.client for waiter in status.waiters]
                seen.update({client.label: client.version for client in clients})  # noqa: B023
                return len(seen) == len(versions)  # noqa: B023

            await until(shows_both, "both hold or wait")
            assert seen == versions
        await served(admin, labels, [*names])
        for worker in workers:
            worker.go_on()
            most = (await worker.heard("loaded"))["most"]
            assert most.keys() == names.keys()
            assert max(most.values()) <= LIMIT
            assert await worker.ended() == 0
